"""Single-Anchor: n-1 spot GPU VMs and one on-demand GPU VM of the same type, which keeps the checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from deepvm.planner.architectures.base import Architecture
from deepvm.planner.architectures.formulation import (
    Formulation,
    Pick,
    budget_row,
    choose_one_size,
    quota_rows,
    total_budget_row,
)
from deepvm.planner.columns import IntArray, MemoryTier, Sizes


class SingleAnchor(Architecture):
    """(n-1) spot(v) + on_demand(v) <= PW, n >= 2 (DeepVM eq. 3; the text says "must not exceed", so <=)."""

    name: ClassVar[str] = "single-anchor"
    summary: ClassVar[str] = "n-1 spot GPU VMs + 1 on-demand GPU VM of the same type"
    constraints: ClassVar[tuple[str, ...]] = ("budget", "quota")
    smallest_count: ClassVar[int] = 2
    known_to_baselines: ClassVar[bool] = True

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """All but one are spot."""
        return count - 1, np.ones_like(count)

    def formulate(self, sizes: Sizes, tier: MemoryTier, budget: int) -> Formulation:
        """One-hot over (v, n) under eq. 3 and the quotas."""
        size_vars, one_size = choose_one_size(sizes)
        prices = tuple(sizes.price.tolist())
        return Formulation(
            variables=size_vars,
            constraints=(
                one_size,
                budget_row(prices, budget),
                *total_budget_row(prices, sizes),
                *quota_rows(sizes, None),
            ),
            prices=prices,
            sizes=sizes,
        )

    def decode(self, formulation: Formulation, values: Sequence[int]) -> Pick:
        """The one size that is chosen."""
        return Pick(size=list(values).index(1))
