"""How a version leaves the training's memory, by LightCheck's strategies (III-A), and the gate before the next step.

- ``C``: into memory of this machine, page-locked where the state is on a GPU; the tiers send from there. The default.
- ``G``: into a copy on the device first, which is soon done and opens the gate, and from there as with C. Costs the
  device as much memory as the state; where that is not free, C is used and the log says so.
- ``D``: into the file that becomes the version, mapped into memory: see
  :mod:`deepvm.checkpoint.snapshot.mmap_snapshot`.

On a GPU (LightCheck III-C) a stream of our own copies, one for each device, in groups with an event behind each. The
gate is an event too: the stream of the training waits for it, the processor does not. The times of a handle are those
of the processor: how long the GPU's own stream waits is not in them.
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
    """One version's copy: begun by the thread that trains, done in the background, with the gate between the two.

    The state must not change while it is copied. Whether it did since :meth:`watch` is asked once: when the copy has
    ended, or by whoever passes the gate before that.

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
        """Copy what may change at any time, and mark where the training is.

        Args:
            strategy: where to, by way of what.
            slot: memory for the version.
            sources: each storage as bytes, None where it has none.
            later: pieces that only the optimizer changes: they are copied by :meth:`run`.
            now: those that anything may change.
            hold: the gate stays shut until :meth:`run`, though there may be nothing to copy.
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
        """Whether the gate is open, so that nobody need wait."""
        return self._opened.is_set() and self._changed is None and all(event.query() for _, event in self._gate)

    def wait(self, limit_s: float) -> bool:
        """Until the state may be changed, by this thread or on the stream on which it works; whether that came."""
        if not self._opened.wait(limit_s):
            return False
        self._ask()
        for device, event in self._gate:
            self._api.current(device).wait_event(event)
        return True

    def run(self, reached: Callable[[int], None], also: Callable[[], None] = lambda: None) -> None:
        """In the background: copy what only the optimizer changes, and open the gate.

        Args:
            reached: is told the place in the file below which all is copied; of the last byte, by nobody here.
            also: what else must be done before the state changes.
        """
        try:
            point("snapshot.before-copy")
            sources = self._sources
            last = len(self._slot.view) - 1  # whoever waits for the last byte gets it when all is known to be right

            def partly(end: int) -> None:
                reached(min(end, last))

            queued, plain = self._split(self._later)
            # On our stream: torch may hand out memory there that the training's stream has not done with.
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
            self._sources = ()  # the training may give its memory back
            self._opened.set()

    def watch(self, changed: Callable[[], str]) -> None:
        """Fail if the state changes from now on, before its copy has ended.

        Args:
            changed: tells what has, empty when nothing has.
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
        """Pieces that a stream copies, and the others."""
        queued: list[int] = []
        plain: list[int] = []
        for number in which:
            source = self._sources[self._slot.pieces[number].storage]
            assert source is not None
            (queued if source.device in self._streams else plain).append(number)
        return queued, plain

    def _queue(self, sources: Sources, which: Sequence[int]) -> list[tuple[int, torch.device, Event]]:
        """Queue copies in groups; for each where it begins in the file, its device, and the event behind it."""
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


class Bytes:
    """The state's storages as bytes; made anew only for those that are others than in the version before.

    A storage that is kept here stays in memory until the next version, or until :meth:`forget`.
    """

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.storages: list[torch.UntypedStorage] = []
        self._known: dict[int, tuple[int, torch.Tensor | None]] = {}

    def of(self, storages: list[torch.UntypedStorage]) -> list[torch.Tensor | None]:
        """Each as a tensor of bytes that shares its memory, None where it is empty."""
        found = {}
        for storage in storages:
            # The tensor keeps its storage alive: no other can have the same number. But it may have grown.
            number, size = storage._cdata, storage.nbytes()
            known = self._known.get(number)
            found[number] = known if known is not None and known[0] == size else (size, as_bytes(storage))
        self.storages, self._known = storages, found
        return [found[storage._cdata][1] for storage in storages]

    def forget(self) -> None:
        """What was kept may be replaced now."""
        self.storages, self._known = [], {}


class Strategy:
    """Strategy C: memory of this machine."""

    def __init__(self, api: Cuda = CUDA) -> None:
        """Nothing is taken yet.

        Args:
            api: how devices with streams are used.
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
        """The stream for each device, of those that have any, on which a source is."""
        devices = {source.device for source in sources if source is not None}
        devices = {device for device in devices if self.api.has(device)}
        for device in devices - self._streams.keys():
            self._streams[device] = self.api.stream(device)
        return {device: self._streams[device] for device in devices}

    def clones(self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> Sources | None:
        """Memory on the sources' devices to copy these pieces into first; None for straight away."""
        return None

    def pinned(self, slot: Slot) -> Slot:
        """The slot with its memory locked into its pages, where a GPU is used and the system allows it."""
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
        """Remove what was made only for versions to come."""


class CloneFirst(Strategy):
    """Strategy G: a copy on the device first."""

    def __init__(self, api: Cuda = CUDA) -> None:
        """Nothing is taken yet."""
        super().__init__(api)
        self._clones: list[torch.Tensor | None] = []
        self._told = False

    def clones(self, pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> Sources | None:
        """The same memory for every version: its copy waits until the one before has left it."""
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
            return 2**63  # torch has no way to ask that is the same for all: an allocation that fails will tell
        with open("/proc/meminfo") as file:
            return next(int(row.split()[1]) * 1024 for row in file if row.startswith("MemAvailable"))

    def _none(self, why: str) -> Sources | None:
        if not self._told:
            self._told = True
            log.warning("strategy G has no room for a copy on the device, C is used: it needs %s", why)
        return None


def _groups(pieces: Sequence[Piece], sources: Sources, which: Sequence[int]) -> list[list[int]]:
    """Pieces of one device that follow one another, together no larger than a group."""
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
