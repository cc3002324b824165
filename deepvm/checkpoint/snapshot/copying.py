"""Copies a checkpoint into its slot, in the background or by layer, and gates the next step.

On a GPU (LightCheck III-C) a stream of our own per device copies groups, each followed by an event.
The gate is an event too: the training's stream waits for it, the CPU does not.
"""

import threading
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, UntypedStorage

from deepvm.checkpoint.format.checksums import UpTo
from deepvm.checkpoint.format.tensor_bytes import as_bytes
from deepvm.checkpoint.snapshot.host_buffer import Slot, Sources, groups
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.strategies import Strategy
from deepvm.checkpoint.training.layerwise import LayerUpdates
from deepvm.checkpoint.training.ranks import Ranks
from deepvm.checkpoint.training.state import TrainingState
from deepvm.errors import CheckpointError, RequestError
from deepvm.io.failpoints import point
from deepvm.records import InitVar, dataclass

# CUDA makes a thread wait for the device once 56 spin-free events are queued (seen on an H100 and
# an H200, CUDA 13.0): the gate would open when the copy has ended, not when it is queued. A
# checkpoint is queued in two parts of so many events each.
_MOST_EVENTS = 24


@dataclass(eq=False, repr=False)
class SnapshotCopy:
    """A copy that the training thread starts and the background finishes.

    Whether the state changed since :meth:`watch` is checked once, at its end or at the gate before.
    """

    _strategy: Strategy
    _slot: Slot
    _sources: Sources
    _later: Sequence[int]  # pieces that :meth:`run` copies: only the optimizer changes them
    now: InitVar[Sequence[int]]  # pieces that are copied at once
    hold: InitVar[bool]  # keep the gate shut until :meth:`run` even if there are no later ones

    def __post_init__(self, now: Sequence[int], hold: bool) -> None:
        self.error: BaseException | None = None
        self._asking = threading.Lock()
        self._ended = not self._later
        self._change = ""
        self._changed: Callable[[], str] | None = None
        self._opened = threading.Event()
        if not self._later and not hold:
            self._opened.set()
        self._events: list[tuple[torch.device, torch.cuda.Event]] = []
        self._gate: list[tuple[torch.device, torch.cuda.Event]] = []
        self._api = self._strategy.api
        self._streams = self._strategy.streams(self._sources)
        for device, stream in self._streams.items():
            stream.wait_event(self._api.mark(self._api.current(device)))
        queued, plain = self._split(now)
        for _, device, event in self._queue(self._sources, queued):
            self._api.current(device).wait_event(event)
            self._events.append((device, event))
        self._slot.copy(self._sources, plain)

    @property
    def open(self) -> bool:
        # First: the gate's events come before it opens
        if not self._opened.is_set() or self._changed is not None:
            return False
        return all(event.query() for _, event in self._gate)  # type: ignore[no-untyped-call]

    def wait(self, limit_s: float) -> bool:
        """Wait until this thread, or its stream, may change the state; returns whether in time."""
        if not self._opened.wait(limit_s):
            return False
        self._ask()
        for device, event in self._gate:
            self._api.current(device).wait_event(event)
        return True

    def run(self, reached: UpTo, also: Callable[[], None] = lambda: None) -> None:
        """In the background: copy what only the optimizer changes, do ``also``, and open the gate.

        ``reached`` gets the file offset below which a tier may read; the end only if all is right.
        """
        try:
            point("snapshot.before-copy")
            sources = self._sources
            last = self._slot.end - 1  # held back until all is known to be right

            def partly(end: int) -> None:
                reached(min(end, last))

            queued, plain = self._split(self._later)
            # What is queued is not there yet
            progress = (lambda end: None) if queued or self._events else partly
            # On our stream: torch may hand out memory there that the training's stream still uses.
            with self._api.within([*self._streams.values()]):
                clones = self._strategy.clones(self._slot.pieces, sources, self._later)
            if clones is not None:
                self._clone(clones, sources, [*queued, *plain])
                sources = clones
            copied = self._queue(sources, queued)
            if clones is None:
                self._gate = [(device, event) for _, device, event in copied]
                self._slot.copy(sources, plain, progress)
            with self._api.within([*self._streams.values()]):
                also()
            self._opened.set()
            if clones is not None:
                self._slot.copy(sources, plain, progress)
            for _, event in self._events:
                event.synchronize()
            for number, (_, _, event) in enumerate(copied, start=1):
                event.synchronize()
                partly(copied[number][0] if number < len(copied) else last)
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
        """Fail if the state changes before its copy ends; ``changed`` names the change or ""."""
        with self._asking:
            if not self._ended:
                self._changed = changed

    def _ask(self, ended: bool = False) -> None:
        with self._asking:
            if self._changed is not None:
                self._change = self._changed()
                self._changed = None
            self._ended = self._ended or ended

    def _split(self, which: Iterable[int]) -> tuple[list[int], list[int]]:
        queued: list[int] = []
        plain: list[int] = []
        for number in which:
            device = self._slot.pieces[number].of(self._sources).device
            (queued if device in self._streams else plain).append(number)
        return queued, plain

    def _queue(
        self, sources: Sources, which: Sequence[int]
    ) -> list[tuple[int, torch.device, torch.cuda.Event]]:
        found: list[tuple[int, torch.device, torch.cuda.Event]] = []
        for numbers, parts in groups(self._slot.pieces, sources, which, _MOST_EVENTS):
            device = parts[0].device
            stream = self._streams[device]
            self._api.copy(stream, [self._slot.targets[number] for number in numbers], parts)
            found.append((self._slot.offset(numbers[0]), device, self._api.mark(stream)))
        return found

    def _clone(self, clones: Sources, sources: Sources, which: Sequence[int]) -> None:
        for numbers, parts in groups(self._slot.pieces, sources, which):
            into = [self._slot.pieces[number].of(clones) for number in numbers]
            stream = self._streams.get(parts[0].device)
            if stream is None:
                torch._foreach_copy_(into, parts)
            else:
                self._api.copy(stream, into, parts)
        self._gate = [(device, self._api.mark(stream)) for device, stream in self._streams.items()]


class StorageBytes:
    """The last checkpoint's storages as byte tensors, kept in memory until :meth:`forget`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.storages: list[UntypedStorage] = []
        self._known: dict[tuple[int, int], Tensor | None] = {}

    def of(self, storages: list[UntypedStorage]) -> list[Tensor | None]:
        """Each as a tensor of bytes that shares its memory, None where it is empty."""
        # Storages are kept alive, so their numbers are unique. But one may have grown.
        keys = [(storage._cdata, storage.nbytes()) for storage in storages]
        known = self._known
        self.storages = storages
        self._known = {
            k: known[k] if k in known else as_bytes(s) for k, s in zip(keys, storages, strict=True)
        }
        return [self._known[key] for key in keys]


class LayerSlots:
    """The layers of a layerwise training and their slots, filled during a step."""

    def __init__(self, strategy: Strategy, pipeline: Pipeline, state: TrainingState) -> None:
        self.updates: LayerUpdates | None = None
        self.copies: dict[Tensor, SnapshotCopy] = {}
        self.strategy = strategy
        self._pipeline = pipeline
        self._state = state
        self._next: LayerSlot | None = None
        self.filled: LayerSlot | None = None

    def divide(
        self, model: torch.nn.Module, world: int, before: Callable[[Sequence[SnapshotCopy]], None]
    ) -> None:
        """Update and copy layer by layer; ``before`` gets the copies an update must wait for."""
        for name, value in self._state.extra.items():
            if isinstance(value, torch.amp.GradScaler):
                allowed = 'with another strategy than "layerwise"'
                raise RequestError(f"extra[{name!r}]", "GradScaler", allowed)

        def gate(layer: Sequence[Tensor]) -> None:
            before([self.copies[p] for p in layer if p in self.copies])

        def copy(layer: Sequence[Tensor]) -> None:
            if self._next is not None:
                copying = self._next.copy([*layer, *self._state.optimizer_tensors(layer)])
                self.copies |= dict.fromkeys(layer, copying)

        self.updates = LayerUpdates(model, self._state.optimizer, gate, copy, world)

    def turn(self) -> None:
        self.drop()
        self.filled = self._next
        self._next = None

    def prepare(self, storages: Sequence[UntypedStorage], ranks: Ranks) -> None:
        """Take a slot for the next step if all ranks can; collective."""
        if self._next is not None:
            return
        slot = self._pipeline.take()
        if ranks.minimum([slot is not None])[0] and slot is not None:
            self._next = LayerSlot(self.strategy, slot, storages, self._pipeline)
        elif slot is not None:
            self._pipeline.give_back(slot)

    def take(self, patience_s: float, *, urgent: bool = False) -> Slot | None:
        """A slot for the finished step: that of its layers, or a free one."""
        if self.filled is None:
            return self._pipeline.take(patience_s, urgent=urgent)
        return self.filled.slot

    def drop(self) -> None:
        if self.filled is not None:
            self.give_back(self.filled.slot)

    def give_back(self, slot: Slot | None) -> None:
        if slot is None:
            return
        if self.filled is not None and self.filled.slot is slot:
            self.filled = None
        self._pipeline.background(lambda: self._pipeline.give_back(slot))

    def done(self, storages: Sequence[UntypedStorage]) -> tuple[set[int], Callable[[], None]]:
        """Use the slot: storages already copied, and a check that raises if a copy failed."""
        filled = self.filled
        self.filled = None
        if filled is None:
            return set(), lambda: None
        return filled.done(storages), filled.check


@dataclass(eq=False, repr=False)
class LayerSlot:
    """The slot of the next checkpoint, into which layers are copied during backward."""

    _strategy: Strategy
    slot: Slot
    _storages: Sequence[UntypedStorage]  # of the last checkpoint; replaced ones are skipped
    _pipeline: Pipeline

    def __post_init__(self) -> None:
        self._numbers = {storage._cdata: number for number, storage in enumerate(self._storages)}
        self._pieces: dict[int, list[int]] = {}
        for number, piece in enumerate(self.slot.pieces):
            self._pieces.setdefault(piece.storage, []).append(number)
        self._copied: dict[int, list[tuple[Tensor, int]]] = {}
        self._twice: set[int] = set()
        self._copyings: list[SnapshotCopy] = []
        self._lock = threading.Lock()

    def copy(self, tensors: Sequence[Tensor]) -> SnapshotCopy:
        sources: list[Tensor | None] = [None] * len(self._storages)
        with self._lock:
            found: dict[int, list[tuple[Tensor, int]]] = {}
            for tensor in tensors:
                number = self._numbers.get(tensor.untyped_storage()._cdata)
                if number in self._copied:
                    # Two layers share it, and the second was updated after its copy
                    self._twice.add(number)
                elif number is not None:
                    found.setdefault(number, []).append((tensor, tensor._version))
                    sources[number] = as_bytes(self._storages[number])
            self._copied |= found
        which = sorted(p for n in found if sources[n] is not None for p in self._pieces.get(n, ()))
        copying = SnapshotCopy(self._strategy, self.slot, sources, which, (), hold=False)
        self._copyings.append(copying)
        self._pipeline.background(lambda: copying.run(lambda end: None))
        return copying

    def check(self) -> None:
        for copying in self._copyings:
            if copying.error is not None:
                raise copying.error

    def done(self, storages: Sequence[UntypedStorage]) -> set[int]:
        """The storages that need no further copy: unchanged since theirs started."""
        return {
            number
            for number, seen in self._copied.items()
            if number not in self._twice
            and storages[number]._cdata == self._storages[number]._cdata
            and all(tensor._version == version for tensor, version in seen)
        }
