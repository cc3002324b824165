"""Tiering: n spot GPU VMs train, m on-demand CPU VMs hold the checkpoints (multi-level checkpointing)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from deepvm.planner.architectures.base import Architecture
from deepvm.planner.architectures.formulation import (
    Constraint,
    Formulation,
    Pick,
    Variable,
    budget_row,
    choose_one_size,
    quota_rows,
    total_budget_row,
)
from deepvm.planner.columns import IntArray, MemoryTier, Sizes


class Tiering(Architecture):
    """n spot(v) + m on_demand(w) <= PW, MEM(w) >= f s, n/m < n_sat(v, w) (DeepVM eq. 5, 6, 7), w offered where v is.

    The variables are x (one-hot over (v, n)), y (one-hot over w) and m (memory nodes of each w, 0 where y is 0).

    Saturation stays linear without a big M: n_sat(v, w) is the smaller of the two VMs' own values, so
    n < n_sat m splits into one row each. For v, m >= floor(n/n_sat(v)) + 1 is a constant of (v, n); for w, all m but
    the chosen one are 0, so n + 1 <= sum of n_sat(w) m(w) says the same as n < n_sat(w) m(w) in whole numbers.
    """

    name: ClassVar[str] = "tiering"
    summary: ClassVar[str] = "n spot GPU VMs + m on-demand CPU VMs as memory nodes"
    constraints: ClassVar[tuple[str, ...]] = ("budget", "quota", "memory", "saturation", "zone")
    tiered: ClassVar[bool] = True

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """All are spot."""
        return count, np.zeros_like(count)

    def formulate(self, sizes: Sizes, tier: MemoryTier, budget: int) -> Formulation:
        """One-hot over (v, n), one-hot over w, integer m, under eq. 5-7 and the quotas."""
        size_vars, one_size = choose_one_size(sizes)
        first_type, first_count = len(sizes), len(sizes) + len(tier)
        most = tier.most_useful(sizes, budget).tolist()
        variables = (
            *size_vars,
            *(Variable(f"y_{w}", 1) for w in range(len(tier))),
            *(Variable(f"m_{w}", limit) for w, limit in enumerate(most)),
        )
        types = range(first_type, first_count)
        counts = range(first_count, first_count + len(tier))
        senders = (sizes.count // sizes.n_sat + 1).tolist()
        prices = (*sizes.price.tolist(), *([0] * len(tier)), *tier.price.tolist())
        constraints = (
            one_size,
            Constraint("choose", "one memory-node type", tuple((y, 1) for y in types), "==", 1),
            *(
                Constraint("choose", f"memory nodes only of the chosen type {w}", ((m, 1), (y, -limit)), "<=", 0)
                for w, (y, m, limit) in enumerate(zip(types, counts, most, strict=True))
            ),
            Constraint(
                "memory",
                "MEM(w) >= f s (eq. 6)",
                tuple((y, -room) for y, room in zip(types, tier.room_bytes.tolist(), strict=True)),
                "<=",
                -tier.needed_bytes,
            ),
            Constraint(
                "saturation",
                "n/m < n_sat of the senders (eq. 7)",
                (*enumerate(senders), *((m, -1) for m in counts)),
                "<=",
                0,
            ),
            Constraint(
                "saturation",
                "n/m < n_sat of the memory nodes (eq. 7)",
                (
                    *enumerate(sizes.count.tolist()),
                    *((m, -limit) for m, limit in zip(counts, tier.n_sat.tolist(), strict=True)),
                ),
                "<=",
                -1,
            ),
            *(
                Constraint(
                    "zone",
                    f"memory nodes of type {w} only where they are offered",
                    ((y, 1), *((x, 1) for x in np.flatnonzero(~tier.offered[w, sizes.offers]).tolist())),
                    "<=",
                    1,
                )
                for w, y in enumerate(types)
                if not tier.offered[w, sizes.offers].all()
            ),
            budget_row(prices, budget),
            *total_budget_row(prices, sizes),
            *quota_rows(sizes, tier, counts),
        )
        return Formulation(variables, constraints, prices, sizes, tier)

    def decode(self, formulation: Formulation, values: Sequence[int]) -> Pick:
        """The size, the memory-node type and how many of them."""
        sizes, tier = len(formulation.sizes), len(formulation.tier or ())
        memory = list(values[sizes : sizes + tier]).index(1)
        return Pick(list(values[:sizes]).index(1), memory, values[sizes + tier + memory])
