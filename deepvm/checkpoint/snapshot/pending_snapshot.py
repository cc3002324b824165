"""The plan of a version, and a version between its step and the next forward: being copied, its numbers not read."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from deepvm.checkpoint.format.flatten import FlatState
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.torch_zip import Image, lay_out
from deepvm.checkpoint.snapshot.copying import Copying
from deepvm.checkpoint.snapshot.host_buffer import Filling, Piece, Slot, pieces_of
from deepvm.checkpoint.training.ranks import Ranks, shards
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import Owned, TrainingState, tensors_of

Seen = list[tuple[torch.Tensor, int]]
CHANGED = (
    "{} tensors were changed in forward or backward, otherwise than by an optimizer, while they were copied; from now "
    "on training waits for their copies"
)


@dataclass(frozen=True)
class Plan:
    """The file of all versions of one structure, and which rank copies what.

    Attributes:
        structure: of the state; another one needs another plan. Empty if each version needs its own.
        image: the file. layout: who sends what of it.
        compare: pieces of this rank and of its neighbour; empty for a single rank.
    """

    structure: list[Hashable]
    image: Image
    layout: Layout
    compare: tuple[tuple[Piece, ...], ...] = ()

    def compared(self, storages: Set[int]) -> list[list[Piece]]:
        """The part of ``compare`` in these storages."""
        return [[piece for piece in pieces if piece.storage in storages] for pieces in self.compare]


def make_plan(tree: Any, parts: FlatState, state: TrainingState, ranks: Ranks, records: Sequence[torch.Tensor]) -> Plan:
    """Lay the file out.

    Args:
        tree: the state.
        parts: the flattened state.
        state: its buffers belong to rank 0.
        ranks: share the rest.
        records: of each rank, if there are several.
    """
    image = lay_out(tree, parts, ranks.world)
    if ranks.world == 1:
        return Plan(parts.structure if image.lasting else [], image, image.layout())
    # Rank 0 sends buffers and numbers, each rank its record; the rest is shared evenly.
    numbers = {storage._cdata: n for n, storage in enumerate(parts.storages)}
    owners = {numbers[cdata]: 0 for cdata in state.owned().buffers if cdata in numbers}
    owners |= {numbers[t.untyped_storage()._cdata]: r for r, t in enumerate(records)}
    owned = [(Segment(image.storages[n], image.sizes[n]), r) for n, r in owners.items()]
    layout = Layout(image.size, shards(image.size, ranks.world, [*owned, (image.pickle, 0)]), image.fields)
    compare = tuple(pieces_of(image, layout, r) for r in (ranks.rank, (ranks.rank + 1) % ranks.world))
    return Plan(parts.structure, image, layout, compare)


@dataclass
class PendingSnapshot:
    """A version not sent yet.

    Attributes:
        handle: the user's. model: the state_dict after the step; the tensors are the model's own.
        early: samplers and random states after the step, or the records of the ranks.
        patience_s: how long it may wait for a slot. parts: of the whole state after the step.
        seen: the tensors of model and optimizers, with their version counters.
        owned: whose memory was whose after the step.
        slot, filling, copying: where it is copied to, and progress; None before that starts.
        storages: of the whole state, in file order. still: those copied at once, by ``_cdata``.
        late: numbers of the storages that the training thread copies last.
    """

    handle: Handle
    model: Mapping[str, Any]
    early: Mapping[str, Any]
    patience_s: float
    parts: FlatState
    owned: Owned
    seen: Seen = field(default_factory=list)
    slot: Slot | None = None
    filling: Filling | None = None
    copying: Copying | None = None
    storages: Sequence[torch.UntypedStorage] = ()
    still: Collection[int] = ()
    late: Sequence[int] = ()

    @cached_property
    def own(self) -> set[int]:
        """The storages of ``model`` and ``early``, by ``_cdata``."""
        return {tensor.untyped_storage()._cdata for tensor in tensors_of((self.model, self.early))}


@dataclass(frozen=True)
class Division:
    """When each storage of a version is copied.

    Attributes:
        background: only an optimizer changes them. at_once: anything may, such as the next forward.
        late: what follows the step: schedulers, moving averages.
    """

    background: set[int]
    at_once: set[int]
    late: Sequence[int]

    @classmethod
    def of(cls, parts: FlatState, pending: PendingSnapshot, restless: Collection[int]) -> Division:
        """Divide.

        Args:
            parts: of the whole state.
            pending: the version.
            restless: storages that only an optimizer should change, but others do; by ``_cdata``.
        """
        own, gated = pending.own, pending.owned.gated
        cdata = [storage._cdata for storage in parts.storages]
        background = {n for n, c in enumerate(cdata) if c in gated and c not in restless}
        at_once = {n for n, c in enumerate(cdata) if n not in background and (c in own or c in gated)}
        return cls(background, at_once, [n for n in range(len(cdata)) if n not in background and n not in at_once])


def seen_now(parts: FlatState, storages: Collection[int]) -> Seen:
    """The tensors on these storages (by ``_cdata``), with their version counters."""
    return [(t, t._version) for t in parts.tensors if not t.is_inference() and t.untyped_storage()._cdata in storages]


def changed_since(seen: Seen) -> set[int]:
    """The storages, by ``_cdata``, changed in place since then; changes through ``.data`` go unnoticed."""
    return {tensor.untyped_storage()._cdata for tensor, version in seen if tensor._version != version}
