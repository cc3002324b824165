"""From the argument ``strategy`` to what does it; each strategy has one line here."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.checkpoint.snapshot.mmap_snapshot import IntoFile
from deepvm.checkpoint.snapshot.strategies import CloneFirst, Strategy
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.errors import RequestError


def choose(name: str, tiers: Sequence[Tier], job: str, world: int) -> Strategy:
    """The strategy of this name; see :mod:`deepvm.checkpoint.snapshot.strategies`.

    Args:
        name: ``C``, ``G``, ``D``, or ``layerwise``, which copies as C does, layer by layer.
        tiers: where versions go.
        job: whose they are.
        world: how many ranks there are.

    Raises:
        RequestError: there is none of this name, or it cannot be used here.
    """
    if name in ("C", "layerwise"):
        return Strategy()
    if name == "G":
        return CloneFirst()
    if name == "D":
        folders = [tier.folder for tier in tiers if isinstance(tier, FileTier)]
        if not folders:
            raise RequestError("strategy", name, "with a file:///folder among the tiers; without one use C")
        if world > 1:
            raise RequestError("strategy", name, f"for one rank; there are {world}: use C")
        return IntoFile(folders[0], job)
    raise RequestError("strategy", name, "C, G, D or layerwise")
