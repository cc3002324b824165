"""What is decided once for all versions of one structure: the file, and who of several ranks copies what."""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from deepvm.checkpoint.format.fallback import lay_out
from deepvm.checkpoint.format.flatten import Parts
from deepvm.checkpoint.format.layout import Layout, Segment
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.checkpoint.snapshot.host_buffer import Piece, pieces_of
from deepvm.checkpoint.training.ranks import Ranks, shards
from deepvm.checkpoint.training.state import TrainingState


@dataclass(frozen=True)
class Plan:
    """How versions look.

    Attributes:
        structure: of the state; another one needs another plan; empty where each version needs its own.
        image: the file. layout: who sends what of it.
        compare: pieces of this rank and of its neighbour, empty for a single rank.
    """

    structure: list[Hashable]
    image: Image
    layout: Layout
    compare: tuple[tuple[Piece, ...], ...] = ()

    def compared(self, storages: Set[int]) -> list[list[Piece]]:
        """What of ``compare`` lies in these storages."""
        return [[piece for piece in pieces if piece.storage in storages] for pieces in self.compare]


def make_plan(tree: Any, parts: Parts, state: TrainingState, ranks: Ranks, records: Sequence[torch.Tensor]) -> Plan:
    """Lay the file out.

    Args:
        tree: the state.
        parts: the same taken apart.
        state: whose buffers belong to rank 0.
        ranks: who shares the rest.
        records: of each rank, where there are several.
    """
    image = lay_out(tree, parts, ranks.world)
    if ranks.world == 1:
        return Plan(parts.structure if image.lasting else [], image, image.layout())
    # Only rank 0's buffers and numbers count; a record only its rank can tell; the rest is shared out evenly.
    numbers = {storage._cdata: n for n, storage in enumerate(parts.storages)}
    owners = {numbers[cdata]: 0 for cdata in state.owned().buffers if cdata in numbers}
    owners |= {numbers[t.untyped_storage()._cdata]: r for r, t in enumerate(records)}
    owned = [(Segment(image.storages[n], image.sizes[n]), r) for n, r in owners.items()]
    layout = Layout(image.size, shards(image.size, ranks.world, [*owned, (image.pickle, 0)]), image.fields)
    compare = tuple(pieces_of(image, layout, r) for r in (ranks.rank, (ranks.rank + 1) % ranks.world))
    return Plan(parts.structure, image, layout, compare)
