"""How a version leaves the training's memory, by LightCheck's strategies (III-A), and the gate before the next step.

- ``C``: into host memory, page-locked if the state is on a GPU; the tiers send from there. The default.
- ``G``: into a copy on the device first, which is soon done and opens the gate, then as with C. Takes as much device
  memory as the state; if that is not free, C is used and logged.
- ``D``: into the memory-mapped file that becomes the version: see :mod:`deepvm.checkpoint.snapshot.mmap_snapshot`.

On a GPU (LightCheck III-C) a stream of our own per device copies groups, each followed by an event. The gate is an
event too: the training's stream waits for it, the CPU does not. The times of a handle are CPU times: they do not
include how long the GPU's stream waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

import torch

from deepvm.checkpoint.files.failpoints import point
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.checkpoint.snapshot.cuda_streams import CUDA, Cuda, Event, Stream
from deepvm.checkpoint.snapshot.host_buffer import GROUP_BYTES, Piece, Slot, as_bytes
from deepvm.errors import CheckpointError

log = logging.getLogger("deepvm.checkpoint")

Sources = Sequence[torch.Tensor | None]
_SHARE = 0.9  # of what is free on a device: the training's next peak may be higher than its last


class Copying:
    """One version's copy: started by the training thread, done in the background, with the gate between the two.

    The state must not change while it is copied. Whether it did since :meth:`watch` is checked once: at the end of the
    copy, or by whoever passes the gate before that.

    Attributes:
        error: why :meth:`run` failed.
    """

    def __init__(
        self,
        strategy: Strategy,
        slot: Slot,
        sources: Sources,
        later: Sequence[int],
        now: Sequence[int],
        hold: bool = False,
    ) -> None:
        """Copy at once what may change at any time, and mark the training's place in its streams.

        Args:
            strategy: how memory is copied.
            slot: memory for the version.
            sources: each storage as bytes, None where it has none.
            later: pieces that only the optimizer changes, copied by :meth:`run`.
            now: pieces that anything may change.
            hold: keep the gate shut until :meth:`run` even if nothing is left to copy.
        """
        self._strategy, self._slot, self._sources, self._later = strategy, slot, sources, later
        self.error: BaseException | None = None
        self._asking, self._ended, self._change = threading.Lock(), not later, ""
        self._changed: Callable[[], str] | None = None
        self._opened = threading.Event()
        if not later and not hold:
            self._opened.set()
        self._events: list[tuple[torch.device, Event]] = []
        self._gate: list[tuple[torch.device, Event]] = []
        self._api, self._streams = strategy.api, strategy.streams(sources)
        for device, stream in self._streams.items():
            stream.wait_event(self._api.mark(self._api.current(device)))
        queued, plain = self._split(now)
        for _, device, event in self._queue(sources, queued):
            self._api.current(device).wait_event(event)
            self._events.append((device, event))
        slot.copy(sources, plain)

    @property
    def open(self) -> bool:
        """Whether the gate is open."""
        return self._opened.is_set() and self._changed is None and all(event.query() for _, event in self._gate)

    def wait(self, limit_s: float) -> bool:
        """Wait until this thread, or its stream, may change the state; returns whether that was in time."""
        if not self._opened.wait(limit_s):
            return False
        self._ask()
        for device, event in self._gate:
            self._api.current(device).wait_event(event)
        return True

    def run(self, reached: Callable[[int], None], also: Callable[[], None] = lambda: None) -> None:
        """In the background: copy what only the optimizer changes, and open the gate.

        Args:
            reached: called with the file offset below which all is copied; never with the end of the file.
            also: what else to do before the state may change.
        """
        try:
            point("snapshot.before-copy")
            sources = self._sources
            last = len(self._slot.view) - 1  # held back until all is known to be right

            def partly(end: int) -> None:
                reached(min(end, last))

            queued, plain = self._split(self._later)
            # On our stream: torch may hand out memory there that the training's stream still uses.
            with self._api.within([*self._streams.values()]):
                clones = self._strategy.clones(self._slot.pieces, sources, self._later)
            if clones is not None:
                self._clone(clones, sources, [*queued, *plain])
                sources = clones
            groups = self._queue(sources, queued)
            if clones is None:
                self._gate = [(device, event) for _, device, event in groups]
                self._slot.copy(sources, plain, (lambda end: None) if queued else partly)
            with self._api.within([*self._streams.values()]):
                also()
            self._opened.set()
            if clones is not None:
                self._slot.copy(sources, plain, (lambda end: None) if queued else partly)
            for _, event in self._events:
                event.synchronize()
            for number, (_, _, event) in enumerate(groups, start=1):
                event.synchronize()
                partly(groups[number][0] if number < len(groups) else last)
            self._ask(ended=True)
            if self._change:
                raise CheckpointError(self._change)
            point("snapshot.after-copy")
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._sources = ()  # the training may free its memory
            self._opened.set()

    def watch(self, changed: Callable[[], str]) -> None:
        """Fail if the state changes between now and the end of its copy.

        Args:
            changed: describes what changed, empty if nothing did.
        """
        with self._asking:
            if not self._ended:
                self._changed = changed

    def _ask(self, ended: bool = False) -> None:
        with self._asking:
            if self._changed is not None:
                self._change, self._changed = self._changed(), None
            self._ended = self._ended or ended

    def _split(self, which: Iterable[int]) -> tuple[list[int], list[int]]:
        """Pieces that a stream copies, and the rest."""
        queued: list[int] = []
        plain: list[int] = []
        for number in which:
            source = self._sources[self._slot.pieces[number].storage]
            assert source is not None
            (queued if source.device in self._streams else plain).append(number)
        return queued, plain

    def _queue(self, sources: Sources, which: Sequence[int]) -> list[tuple[int, torch.device, Event]]:
        """Queue copies in groups; for each its file offset, its device, and the event after it."""
        found: list[tuple[int, torch.device, Event]] = []
        pieces = self._slot.pieces
        for group in _groups(pieces, sources, which):
            out = [_part(sources, pieces[number]) for number in group]
            device = out[0].device
            self._api.copy(self._streams[device], [self._slot.targets[number] for number in group], out)
            first = pieces[group[0]]
            begin = self._slot.image.storages[first.storage] + first.start
            found.append((begin, device, self._api.mark(self._streams[device])))
        return found

    def _clone(self, clones: Sources, sources: Sources, which: Sequence[int]) -> None:
        pieces = self._slot.pieces
        for group in _groups(pieces, sources, which):
            into = [_part(clones, pieces[number]) for number in group]
            out = [_part(sources, pieces[number]) for number in group]
            stream = self._streams.get(out[0].device)
            if stream is None:
                torch._foreach_copy_(into, out)
            else:
                self._api.copy(stream, into, out)
        self._gate = [(device, self._api.mark(stream)) for device, stream in self._streams.items()]


class StorageBytes:
    """The state's storages as tensors of bytes, reused from version to version.

    A storage kept here stays in memory until the next version, or until :meth:`forget`.
    """

    def __init__(self) -> None:
        """Empty."""
        self.storages: list[torch.UntypedStorage] = []
        self._known: dict[int, tuple[int, torch.Tensor | None]] = {}

    def of(self, storages: list[torch.UntypedStorage]) -> list[torch.Tensor | None]:
        """Each as a tensor of bytes that shares its memory, None where it is empty."""
        found = {}
        for storage in storages:
            # The tensor keeps its storage alive, so its number is unique. But it may have grown.
            number, size = storage._cdata, storage.nbytes()
            known = self._known.get(number)
            found[number] = known if known is not None and known[0] == size else (size, as_bytes(storage))
        self.storages, self._known = storages, found
        return [found[storage._cdata][1] for storage in storages]

    def forget(self) -> None:
        """Let go of the storages."""
        self.storages, self._known = [], {}


class Strategy:
    """Strategy C: host memory."""

    def __init__(self, api: Cuda = CUDA) -> None:
        """Nothing is taken yet.

        Args:
            api: access to devices with streams.
        """
        self.api = api
        self._streams: dict[torch.device, Stream] = {}
        self._pins = True

    def slot(self, image: Image, layout: Layout, rank: int) -> Slot:
        """Memory for a version.

        Raises:
            CheckpointError: there is none now.
        """
        return self.pinned(Slot(image, layout, rank))

    def streams(self, sources: Sources) -> dict[torch.device, Stream]:
        """A stream for each device of the sources that has streams."""
        devices = {source.device for source in sources if source is not None}
        devices = {device for device in devices if self.api.has(device)}
        for device in devices - self._streams.keys():
            self._streams[device] = self.api.stream(device)
        return {device: self._streams[device] for device in devices}

    def clones(self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> Sources | None:
        """Memory on the sources' devices to copy these pieces into first; None to copy straight to the host."""
        return None

    def pinned(self, slot: Slot) -> Slot:
        """The slot, page-locked where a GPU is used and the system allows it."""
        if self._pins and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            address, size = slot.address, len(slot.view)
            problem = self.api.pin(address, size)
            if problem:
                self._pins = False
                log.warning("memory of %d bytes cannot be page-locked, copies take longer: %s", size, problem)
            else:
                slot.on_release = lambda: self.api.unpin(address)
        return slot

    def close(self) -> None:
        """Remove what was prepared for later versions."""


class CloneFirst(Strategy):
    """Strategy G: a copy on the device first."""

    def __init__(self, api: Cuda = CUDA) -> None:
        """Nothing is taken yet."""
        super().__init__(api)
        self._clones: list[torch.Tensor | None] = []
        self._warned = False

    def clones(self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> Sources | None:
        """The same memory for every version: a copy waits until the previous one has left it."""
        used = {pieces[number].storage for number in which}
        wanted = [source if number in used else None for number, source in enumerate(sources)]
        if [_kind(c) for c in self._clones] != [_kind(w) for w in wanted]:
            self._clones = []
            needed: dict[torch.device, int] = {}
            for source in wanted:
                if source is not None:
                    needed[source.device] = needed.get(source.device, 0) + source.nbytes
            try:
                for device, size in needed.items():
                    if size > _SHARE * self._room(device):
                        return self._none(f"{size} bytes on {device}, of which {self._room(device)} are free")
                self._clones = [None if w is None else torch.empty_like(w) for w in wanted]
            except torch.OutOfMemoryError as error:
                return self._none(str(error))
        return self._clones

    def _room(self, device: torch.device) -> int:
        if self.api.has(device):
            return self.api.room(device)
        if device.type != "cpu":
            return 2**63  # torch has no common way to ask: a failed allocation will tell
        with open("/proc/meminfo") as file:
            return next(int(row.split()[1]) * 1024 for row in file if row.startswith("MemAvailable"))

    def _none(self, why: str) -> Sources | None:
        if not self._warned:
            self._warned = True
            log.warning("strategy G has no room for a copy on the device, C is used: it needs %s", why)
        return None


def _groups(pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> list[list[int]]:
    """Consecutive pieces of one device, together no larger than a group."""
    found: list[list[int]] = []
    size, device = 0, None
    for number in which:
        source = sources[pieces[number].storage]
        assert source is not None
        length = pieces[number].length
        if not found or source.device != device or size + length > GROUP_BYTES:
            found.append([])
            size, device = 0, source.device
        found[-1].append(number)
        size += length
    return found


def _part(sources: Sources, piece: Piece) -> torch.Tensor:
    source = sources[piece.storage]
    assert source is not None
    return source[piece.start : piece.start + piece.length]


def _kind(tensor: torch.Tensor | None) -> tuple[torch.device, int] | None:
    return None if tensor is None else (tensor.device, tensor.nbytes)
