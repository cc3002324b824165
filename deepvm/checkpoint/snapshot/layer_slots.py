"""Copy layers during backward, into the slot of a version whose step has not ended yet.

What only a layer's update changes is copied as soon as the layer is updated; the rest after the step. A storage that
was changed or replaced since its copy, as its version counter tells, is copied again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from deepvm.checkpoint.snapshot.copying import Copying
from deepvm.checkpoint.snapshot.host_buffer import Slot, as_bytes
from deepvm.checkpoint.snapshot.pipeline import Pipeline
from deepvm.checkpoint.snapshot.strategies import Strategy
from deepvm.checkpoint.training.layerwise import LayerUpdates
from deepvm.checkpoint.training.ranks import Ranks
from deepvm.checkpoint.training.state import TrainingState
from deepvm.errors import RequestError


class LayerSlots:
    """The layers of a layerwise training, and their slots: ``filled`` during the finished step, or the next one's."""

    def __init__(self, strategy: Strategy, pipeline: Pipeline, state: TrainingState) -> None:
        """Not layerwise yet."""
        self.updates: LayerUpdates | None = None
        self.copies: dict[torch.Tensor, Copying] = {}
        self._strategy, self._pipeline, self._state = strategy, pipeline, state
        self._next: LayerSlot | None = None
        self.filled: LayerSlot | None = None

    def divide(self, model: torch.nn.Module, world: int, before: Callable[[Sequence[Copying]], None]) -> None:
        """Update and copy layer by layer; ``before`` gets the copies an update must wait for. Raises RequestError."""
        for name, value in self._state.extra.items():
            if isinstance(value, torch.amp.GradScaler):
                raise RequestError(f"extra[{name!r}]", "GradScaler", 'with another strategy than "layerwise"')

        def gate(layer: Sequence[torch.Tensor]) -> None:
            before([self.copies[p] for p in layer if p in self.copies])

        def copy(layer: Sequence[torch.Tensor]) -> None:
            if self._next is not None:
                copying = self._next.copy([*layer, *self._state.optimizer_tensors(layer)])
                self.copies |= dict.fromkeys(layer, copying)

        self.updates = LayerUpdates(model, self._state.optimizer, gate, copy, world)

    def turn(self) -> None:
        """A step has finished."""
        self.drop()
        self.filled, self._next = self._next, None

    def prepare(self, storages: Sequence[torch.UntypedStorage], ranks: Ranks) -> None:
        """Take a slot for the next step, if all ranks can; collective. The storages are the previous version's."""
        if self._next is not None:
            return
        slot = self._pipeline.take()
        if ranks.minimum([slot is not None])[0] and slot is not None:
            self._next = LayerSlot(self._strategy, slot, storages, self._pipeline.background)
        elif slot is not None:
            self._pipeline.give_back(slot)

    def take(self, patience_s: float) -> Slot | None:
        """A slot for the finished step: that of its layers, or a free one."""
        return self._pipeline.take(patience_s) if self.filled is None else self.filled.slot

    def drop(self) -> None:
        """The finished step is not saved: give its layers' slot back."""
        if self.filled is not None:
            self.give_back(self.filled.slot)

    def give_back(self, slot: Slot | None) -> None:
        """Give a slot back, if there is one, once the copies into it are done."""
        if slot is None:
            return
        if self.filled is not None and self.filled.slot is slot:
            self.filled = None
        self._pipeline.background(lambda: self._pipeline.give_back(slot))

    def done(self, storages: Sequence[torch.UntypedStorage]) -> tuple[set[int], Callable[[], None]]:
        """Use the slot: the storages that need no copy any more, and a check that raises if a layer's copy failed."""
        filled, self.filled = self.filled, None
        return (set(), lambda: None) if filled is None else (filled.done(storages), filled.check)


class LayerSlot:
    """The slot of the next version, into which layers are copied during backward."""

    def __init__(
        self,
        strategy: Strategy,
        slot: Slot,
        storages: Sequence[torch.UntypedStorage],
        background: Callable[[Callable[[], None]], None],
    ) -> None:
        """Nothing is copied yet; the storages are the previous version's, in file order; replaced ones are left out."""
        self.slot = slot
        self._strategy, self._storages, self._background = strategy, storages, background
        self._numbers = {storage._cdata: number for number, storage in enumerate(storages)}
        self._pieces: dict[int, list[int]] = {}
        for number, piece in enumerate(slot.pieces):
            self._pieces.setdefault(piece.storage, []).append(number)
        self._copied: dict[int, list[tuple[torch.Tensor, int]]] = {}
        self._twice: set[int] = set()
        self._copyings: list[Copying] = []
        self._lock = threading.Lock()

    def copy(self, tensors: Sequence[torch.Tensor]) -> Copying:
        """Copy the memory of these tensors, which only their layer's update changes; returns its gate."""
        sources: list[torch.Tensor | None] = [None] * len(self._storages)
        with self._lock:
            found: dict[int, list[tuple[torch.Tensor, int]]] = {}
            for tensor in tensors:
                number = self._numbers.get(tensor.untyped_storage()._cdata)
                if number in self._copied:
                    self._twice.add(number)  # two layers share it, and the second was updated after its copy
                elif number is not None:
                    found.setdefault(number, []).append((tensor, tensor._version))
                    sources[number] = as_bytes(self._storages[number])
            self._copied |= found
        which = sorted(p for n in found if sources[n] is not None for p in self._pieces.get(n, ()))
        copying = Copying(self._strategy, self.slot, sources, which, ())
        self._copyings.append(copying)
        self._background(lambda: copying.run(lambda end: None))
        return copying

    def check(self) -> None:
        """After all copies: raise what one of them raised."""
        for copying in self._copyings:
            if copying.error is not None:
                raise copying.error

    def done(self, storages: Sequence[torch.UntypedStorage]) -> set[int]:
        """The storages of a version that need no copy any more: unchanged since theirs began."""
        return {
            number
            for number, seen in self._copied.items()
            if number not in self._twice
            and storages[number]._cdata == self._storages[number]._cdata
            and all(tensor._version == version for tensor, version in seen)
        }
