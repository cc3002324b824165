"""The layout of checkpoints, and one between its step and the next forward, still in copy."""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from deepvm.checkpoint.format.byte_samples import ByteSamples
from deepvm.checkpoint.format.flatten import FlatState
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.sharded import (
    Part,
    holders_of,
    is_sharded,
    local,
    parts_of,
    storage_of,
    writers,
)
from deepvm.checkpoint.format.tensor_bytes import as_bytes
from deepvm.checkpoint.format.torch_zip import Image, lay_out
from deepvm.checkpoint.snapshot.copying import SnapshotCopy
from deepvm.checkpoint.snapshot.host_buffer import FillProgress, Piece, Slot, checksum, pieces_of
from deepvm.checkpoint.training.ranks import Ranks, shards
from deepvm.checkpoint.training.save_handle import Handle
from deepvm.checkpoint.training.state import StorageRoles, TrainingState, tensors_of

log = logging.getLogger("deepvm.checkpoint")

Seen = list[tuple[torch.Tensor, int]]
"""Tensors with their version counters."""


@dataclass(frozen=True)
class SnapshotLayout:
    """The file of all versions of one structure, and which rank copies what.

    Attributes:
        structure: of the state; another one needs another layout. Empty if each version needs its
            own.
        image: the file. shares: which rank sends what of it.
        compare: pieces of this rank and of its neighbour; empty for a single rank.
        disagreements: how many parts differ that several ranks hold.
    """

    structure: list[Hashable]
    image: Image
    shares: Layout
    compare: tuple[tuple[Piece, ...], ...] = ()
    disagreements: int = 0

    @classmethod
    def of(
        cls,
        tree: Any,
        parts: FlatState,
        state: TrainingState,
        ranks: Ranks,
        records: Sequence[torch.Tensor],
    ) -> SnapshotLayout:
        """Lay out the file of a (flattened) state; ``records`` are those of several ranks."""
        image = lay_out(tree, parts, ranks.world)
        if ranks.world == 1:
            return cls(parts.structure if image.lasting else [], image, image.layout())
        # Each rank sends its parts of what is sharded, and its record, rank 0 buffers and numbers;
        # the rest is shared.
        held = ranks.gather_objects(parts_of(parts.regions))
        numbers = {s._cdata: n for n, s in enumerate(parts.storages) if n not in parts.regions}
        owners = {numbers[cdata]: 0 for cdata in state.owned().buffers if cdata in numbers}
        owners |= {numbers[t.untyped_storage()._cdata]: r for r, t in enumerate(records)}
        owned = [(Segment(image.storages[n], image.sizes[n]), r) for n, r in owners.items()]
        owned += [(image.pickle, 0), *writers(parts.regions, image.storages, held)]
        layout = Layout(image.size, shards(image.size, ranks.world, owned), image.fields)
        neighbours = (
            pieces_of(image, layout, r) for r in (ranks.rank, (ranks.rank + 1) % ranks.world)
        )
        compare = tuple(
            tuple(p for p in pieces if p.storage not in parts.regions) for pieces in neighbours
        )
        return cls(parts.structure, image, layout, compare, _compare_parts(parts, held, ranks))

    def fits(self, parts: FlatState) -> bool:
        """Whether it is that of such a state."""
        return parts.structure == self.structure and parts.regions == self.image.regions


def _compare_parts(parts: FlatState, held: Sequence[Mapping[int, Part]], ranks: Ranks) -> int:
    """Compare the parts that several ranks hold, of which one is saved for all.

    Returns how many differ. Collective.

    Where experts, or stages of a pipeline, are sharded under one name they are not copies of each
    other.
    """
    several = [
        (n, those)
        for n in parts.regions
        for those in holders_of(n, held).values()
        if len(those) > 1
    ]
    own: dict[int, int] = {}
    for number, those in several:
        if ranks.rank in those:
            runs = [
                Piece(0, run.start, run.length, run.place) for run in parts.regions[number].runs()
            ]
            own[number] = checksum([as_bytes(parts.storages[number])], runs)
    sums = ranks.gather_objects(own) if several else []
    different = [(n, those) for n, those in several if len({sums[rank][n] for rank in those}) > 1]
    for number, those in different[:1]:
        log.error(
            "ranks %s hold different values of %s%s, as if they were copies: versions have those of"
            " one of them; give what is not a copy a name of its own, or save with DeepVMWriter",
            *(", ".join(map(str, those)), parts.place_of(number)),
            f" and {len(different) - 1} more" if len(different) > 1 else "",
        )
    return len(different)


@dataclass
class PendingSnapshot:
    """A version not sent yet.

    Attributes:
        handle: the user's. model: the state_dict after the step; the tensors are the model's own.
        early: samplers and random states after the step, or the records of the ranks.
        patience_s: how long it may wait for a slot. parts: of the whole state, as it is copied.
        owned: whose memory was whose after the step. seen: the tensors of model and optimizers.
        slot, filling, copying: where it is copied to, and progress; None before that starts.
        samples: of what is copied in the background. at_boundary: nothing of the next iteration has
            happened.
        still: storages copied at once, by ``_cdata``. late: numbers of those that the training
            thread copies last.
    """

    handle: Handle
    model: dict[str, Any]
    early: Mapping[str, Any]
    patience_s: float
    parts: FlatState
    owned: StorageRoles
    seen: Seen = field(default_factory=list)
    samples: ByteSamples = field(default_factory=lambda: ByteSamples((), ()))
    at_boundary: bool = False
    slot: Slot | None = None
    filling: FillProgress | None = None
    copying: SnapshotCopy | None = None
    still: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)

    @cached_property
    def own(self) -> set[int]:
        """The storages of ``model`` and ``early``, by ``_cdata``."""
        return {storage_of(tensor)._cdata for tensor in tensors_of((self.model, self.early))}

    def divide(self, restless: Collection[int]) -> tuple[set[int], set[int], set[int]]:
        """Storage numbers, by when they are copied: in the background, at once, before sending.

        Only an optimizer changes the first, unless they are ``restless`` (by ``_cdata``); anything
        may change the second, such as the next forward; the last follow the step: schedulers,
        moving averages.
        """
        own = self.own
        gated = self.owned.gated
        cdata = {number: storage._cdata for number, storage in enumerate(self.parts.storages)}
        background = {n for n, c in cdata.items() if c in gated and c not in restless}
        at_once = {n for n, c in cdata.items() if n not in background and (c in own or c in gated)}
        return background, at_once, cdata.keys() - background - at_once


def seen_now(parts: FlatState, storages: Collection[int]) -> Seen:
    """The tensors on these storages (by ``_cdata``), with their version counters."""
    # Whoever changes a DTensor's part by itself counts there.
    tensors = chain(parts.tensors, (local(t) for t in parts.tensors if is_sharded(t)))
    return [
        (t, t._version)
        for t in tensors
        if not t.is_inference() and storage_of(t)._cdata in storages
    ]


def changed_since(seen: Seen) -> set[int]:
    """The storages, by ``_cdata``, changed in place since then, except through ``.data``."""
    return {storage_of(tensor)._cdata for tensor, version in seen if tensor._version != version}
