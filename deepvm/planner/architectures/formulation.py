"""The integer program as plain data.

All coefficients are whole numbers (micro-dollars, bytes, vCPUs, VMs), so that a solution can be checked exactly after
a solver has found it in floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from deepvm.core.cluster.instances import Market, quota_limit
from deepvm.planner.columns import MemoryTier, Sizes
from deepvm.planner.request import MOST_NODES


@dataclass(frozen=True)
class Variable:
    """A whole-number variable between 0 and ``upper``."""

    name: str
    upper: int


@dataclass(frozen=True)
class Constraint:
    """Sum of coefficient x variable, compared with a bound.

    Attributes:
        name: ``budget``, ``quota``, ``memory``, ``saturation``, or ``choose`` for what makes a solution a plan.
        label: what this row says.
        terms: (variable, coefficient) pairs.
    """

    name: str
    label: str
    terms: tuple[tuple[int, int], ...]
    sense: Literal["<=", "=="]
    bound: int

    def holds(self, values: Sequence[int]) -> bool:
        """Whether the row holds, in exact whole-number arithmetic."""
        left = sum(coefficient * values[variable] for variable, coefficient in self.terms)
        return left <= self.bound if self.sense == "<=" else left == self.bound


@dataclass(frozen=True)
class Formulation:
    """An integer program without its objective, which changes from stage to stage.

    Attributes:
        variables: the first ``len(sizes)`` are the one-hot choice of (type, n).
        prices: micro-dollars an hour that a unit of each variable costs.
        sizes: what the first variables stand for. tier: the memory nodes, None where there are none.
    """

    variables: tuple[Variable, ...]
    constraints: tuple[Constraint, ...]
    prices: tuple[int, ...]
    sizes: Sizes
    tier: MemoryTier | None = None

    def violated(self, values: Sequence[int]) -> tuple[str, ...]:
        """Names of the constraints that these values break, exactly."""
        return tuple(dict.fromkeys(c.name for c in self.constraints if not c.holds(values)))

    def price(self, values: Sequence[int]) -> int:
        """Exact price in micro-dollars an hour."""
        return sum(p * v for p, v in zip(self.prices, values, strict=True))


@dataclass(frozen=True)
class Pick:
    """A decoded solution.

    Attributes:
        size: row of the sizes. memory: row of the memory tier, None without memory nodes.
        memory_count: how many memory nodes.
    """

    size: int
    memory: int | None = None
    memory_count: int = 0


class SolveStatus(str, Enum):
    """How a solve ended. All of them are results that a user can read; none is raised."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time-limit"
    """The time ran out; a plan that was found so far may stand beside it."""
    INFEASIBLE = "infeasible"
    NUMERICAL = "numerical-trouble"
    """The solver gave up, or its answer did not pass the exact check."""


def choose_one_size(sizes: Sizes) -> tuple[tuple[Variable, ...], Constraint]:
    """One binary variable for each (type, n), of which exactly one is chosen."""
    variables = tuple(Variable(f"x_{row}", 1) for row in range(len(sizes)))
    return variables, Constraint("choose", "one GPU type and size", tuple((r, 1) for r in range(len(sizes))), "==", 1)


def budget_row(prices: Sequence[int], budget: int) -> Constraint:
    """The hourly price must not exceed the budget (DeepVM eq. 3, 5)."""
    return Constraint("budget", "price <= PW", tuple((v, p) for v, p in enumerate(prices) if p), "<=", budget)


def total_budget_row(prices: Sequence[int], sizes: Sizes) -> tuple[Constraint, ...]:
    """The price must not exceed what the chosen size may cost an hour, for its expected time, within a total budget.

    Linear because exactly one size is chosen: the sum of its price and its memory nodes', less its limit, is <= 0.
    """
    limits, nodes = sizes.most_usd.tolist(), prices[len(sizes) :]
    # As much as the dearest plan costs: one size, and at most a node more than VMs train. A larger limit is none.
    most = max(prices[: len(sizes)], default=0) + (MOST_NODES + 1) * max(nodes, default=0)
    if not limits or min(limits) >= most:
        return ()
    terms = tuple((v, p - (min(limits[v], most) if v < len(limits) else 0)) for v, p in enumerate(prices))
    return (Constraint("total-budget", "price x expected time <= total budget", terms, "<=", 0),)


def quota_rows(sizes: Sizes, tier: MemoryTier | None, counts: Sequence[int] = ()) -> tuple[Constraint, ...]:
    """VCPUs of each family and market within the account's quota, inclusive (DeepVM V-A).

    Args:
        sizes: what the first variables stand for.
        tier: the memory nodes, which are on-demand VMs; None where there are none.
        counts: the variables that count memory nodes, in the tier's order.
    """
    rows = []
    vcpus = [sizes.types[t].vcpus for t in sizes.type_index.tolist()]
    families = [sizes.types[t].quota_family for t in sizes.type_index.tolist()]
    for market, used in ((Market.SPOT, sizes.spot.tolist()), (Market.ON_DEMAND, sizes.on_demand.tolist())):
        nodes = [] if tier is None or market is Market.SPOT else list(zip(counts, tier.types, strict=True))
        for family in dict.fromkeys([*families, *(t.quota_family for _, t in nodes)]):
            limit = quota_limit(sizes.quotas, family, market)
            terms = [(r, n * v) for r, (n, v, f) in enumerate(zip(used, vcpus, families, strict=True)) if f == family]
            terms += [(m, t.vcpus) for m, t in nodes if t.quota_family == family]
            terms = [t for t in terms if t[1]]
            if limit is not None and terms:
                rows.append(Constraint("quota", f"{market.value} vCPUs of {family}", tuple(terms), "<=", limit))
    return tuple(rows)
