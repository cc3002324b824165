"""The integer program of a block of candidates as plain data.

All coefficients are whole numbers (micro-dollars, bytes, vCPUs, VMs), so that a solver's
floating-point solution can be checked exactly.

The variables are x (one-hot over (v, n)) and, in a tiered architecture, y (one-hot over w) and m
(memory nodes of each w, 0 where y is 0). Saturation (eq. 7) stays linear without a big M: n_sat(v,
w) is the smaller of the two VMs' own values, so n < n_sat m splits into one row each. For v, m >=
floor(n/n_sat(v)) + 1 is a constant of (v, n); for w, all m but the chosen one are 0, so n + 1 <=
sum of n_sat(w) m(w) says the same as n < n_sat(w) m(w) in whole numbers.

Memory (eq. 6, of nodes that share a version): share(w) m >= f s. In whole numbers that is m >=
ceil(f s / share(w)), so the row is: sum of m(w) >= sum of ceil(f s / share(w)) y(w). In bytes its
coefficients would be 1e11, and a byte that is lacking would drown in the solver's tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

import numpy as np

from deepvm.core.cluster.instances import Market, quota_limit
from deepvm.planner.columns import MemoryNodeTable, TrainingTable
from deepvm.planner.options import MOST_NODES


class SolveStatus(str, Enum):
    """How a solve ended; always a result, never an error."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time-limit"
    INFEASIBLE = "infeasible"
    NUMERICAL = "numerical-trouble"
    """The solver gave up, or its answer did not pass the exact check."""


@dataclass(frozen=True)
class Constraint:
    """Sum of coefficient x variable, compared with a bound.

    ``terms`` are (variable, coefficient) pairs.

    ``name``: ``budget``, ``quota``, ``memory``, ``saturation`` ...; ``choose`` for what makes a
    solution a plan.
    """

    name: str
    terms: tuple[tuple[int, int], ...]
    sense: Literal["<=", "=="]
    bound: int

    def holds(self, values: Sequence[int]) -> bool:
        """Whether it holds, exactly."""
        left = sum(coefficient * values[variable] for variable, coefficient in self.terms)
        if self.sense == "<=":
            return left <= self.bound
        return left == self.bound


@dataclass(frozen=True)
class Formulation:
    """An integer program without its objective, which changes from stage to stage.

    ``upper``: whole-number variables by name, from 0 to this bound; ``prices``: micro-dollars an
    hour of each.
    """

    upper: Mapping[str, int]
    constraints: tuple[Constraint, ...]
    prices: tuple[int, ...]

    def violated(self, values: Sequence[int]) -> tuple[str, ...]:
        """Names of the constraints that these values break."""
        return tuple(dict.fromkeys(c.name for c in self.constraints if not c.holds(values)))


def formulate(sizes: TrainingTable, tier: MemoryNodeTable | None, budget: int) -> Formulation:
    """The integer program for a budget in micro-dollars/h; ``tier``: None without memory nodes."""
    upper = {f"x_{row}": 1 for row in range(len(sizes))}
    prices = tuple(sizes.price.tolist())
    counts = range(0)
    rows = [Constraint("choose", tuple((x, 1) for x in range(len(sizes))), "==", 1)]
    if tier is not None:
        needed = tier.needed(sizes.count, sizes.n_sat).max(axis=0)
        most = np.minimum(np.minimum(needed, tier.max_count), budget // tier.price).tolist()
        upper |= {f"y_{w}": 1 for w in range(len(tier))} | {
            f"m_{w}": limit for w, limit in enumerate(most)
        }
        prices += (*([0] * len(tier)), *tier.price.tolist())
        counts = range(len(sizes) + len(tier), len(upper))
        rows += _memory_rows(sizes, tier, most)
    # DeepVM eq. 3, 5
    rows.append(
        Constraint("budget", tuple((v, p) for v, p in enumerate(prices) if p), "<=", budget)
    )
    rows += [*_total_budget_row(prices, sizes), *_quota_rows(sizes, tier, counts)]
    return Formulation(upper, tuple(rows), prices)


def _memory_rows(
    sizes: TrainingTable, tier: MemoryNodeTable, most: Sequence[int]
) -> Iterator[Constraint]:
    """One type of memory nodes, enough for f x s (eq. 6) and n (eq. 7), in the size's zone."""
    types = range(len(sizes), len(sizes) + len(tier))
    counts = range(types.stop, types.stop + len(tier))
    yield Constraint("choose", tuple((y, 1) for y in types), "==", 1)
    for y, m, limit in zip(types, counts, most, strict=True):
        yield Constraint("choose", ((m, 1), (y, -limit)), "<=", 0)
    for_versions = zip(types, tier.for_versions.tolist(), strict=True)
    yield Constraint("memory", (*for_versions, *((m, -1) for m in counts)), "<=", 0)
    for_senders = (sizes.count // sizes.n_sat + 1).tolist()
    yield Constraint("saturation", (*enumerate(for_senders), *((m, -1) for m in counts)), "<=", 0)
    served = ((m, -limit) for m, limit in zip(counts, tier.n_sat.tolist(), strict=True))
    yield Constraint("saturation", (*enumerate(sizes.count.tolist()), *served), "<=", -1)
    for w, y in enumerate(types):
        apart = np.flatnonzero(~tier.offered[w, sizes.memory_set]).tolist()
        if apart:
            yield Constraint("zone", ((y, 1), *((x, 1) for x in apart)), "<=", 1)


def _total_budget_row(prices: Sequence[int], sizes: TrainingTable) -> Iterator[Constraint]:
    """Price x expected time <= total budget: price of size and nodes, less its limit, <= 0."""
    limits = sizes.most_usd.tolist()
    nodes = prices[len(sizes) :]
    # The dearest plan: one size, and at most one node more than VMs train. A higher limit is none.
    most = max(prices[: len(sizes)], default=0) + (MOST_NODES + 1) * max(nodes, default=0)
    if limits and min(limits) < most:
        terms = tuple(
            (v, p - (min(limits[v], most) if v < len(limits) else 0)) for v, p in enumerate(prices)
        )
        yield Constraint("total-budget", terms, "<=", 0)


def _quota_rows(
    sizes: TrainingTable, tier: MemoryNodeTable | None, counts: Sequence[int]
) -> Iterator[Constraint]:
    """VCPUs per family and market within quotas (DeepVM V-A); ``counts``: of memory nodes."""
    for market, used in ((Market.SPOT, sizes.spot), (Market.ON_DEMAND, sizes.on_demand)):
        chosen = zip(sizes.type_index.tolist(), used.tolist(), strict=True)
        units = [(x, sizes.types[t], n) for x, (t, n) in enumerate(chosen)]
        if tier is not None and market is Market.ON_DEMAND:
            units += [(m, t, 1) for m, t in zip(counts, tier.types, strict=True)]
        for family in dict.fromkeys(t.quota_family for _, t, _ in units):
            limit = quota_limit(sizes.quotas, family, market)
            terms = tuple((v, n * t.vcpus) for v, t, n in units if n and t.quota_family == family)
            if limit is not None and terms:
                yield Constraint("quota", terms, "<=", limit)
