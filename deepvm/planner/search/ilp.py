"""The best plan by integer programming: the proof of what the enumeration finds.

One weighted objective such as "throughput minus a little price" is wrong here: the weight falls
below the solver's tolerance, and the solver returns a dearer memory tier even at gap 0. So the best
plan is found lexicographically: the best value, then the lowest price, then the fewest memory nodes
and the first names. Each solution is checked in whole numbers. A wrong one is reported, not
repaired: the enumeration has the answer anyway.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deepvm.planner.columns import UNLIMITED_USD, IntArray
from deepvm.planner.scoring import tie_floor
from deepvm.planner.search.enumeration import Block, Choice, price_order, skyband, useful_tier
from deepvm.planner.search.formulation import SolveStatus, formulate
from deepvm.planner.search.solver import SOLVER, IntegerProgram, NoProof

# Solutions that break a row within the solver's tolerance before the solver is given up
_MOST_TRIES = 50
_LOOSE = 1e-6  # relative slack in the row that keeps a value


@dataclass(frozen=True)
class SolverResult:
    """The best plan if ``status`` is ``optimal``; ``solver``: empty if nothing was solved."""

    status: SolveStatus
    choice: Choice | None = None
    solver: str = ""


def prove(blocks: Sequence[Block], budget: int, *, time_limit_s: float) -> SolverResult:
    """Solve each architecture (DeepVM step 3), then compare them (step 4).

    The blocks come in the order of their names; ``budget``: micro-dollars an hour; the time is for
    all solves together.
    """
    deadline = time.monotonic() + time_limit_s
    small = [b for b in (useful(block, budget) for block in blocks) if len(b.sizes)]
    solver = SOLVER if small else ""
    found: list[Choice] = []
    for block in small:
        try:
            found.append(_Search(block, budget, deadline).best())
        except NoProof as stop:
            if stop.status is not SolveStatus.INFEASIBLE:
                return SolverResult(stop.status, None, solver)
    if not found:
        return SolverResult(SolveStatus.INFEASIBLE, None, solver)
    floor = tie_floor(max(c.value for c in found))
    equal = [c for c in found if c.value >= floor]
    return SolverResult(
        SolveStatus.OPTIMAL, min(equal, key=lambda c: (c.price, c.memory_count)), solver
    )


def useful(block: Block, budget: int) -> Block:
    """The part of a block that can be in the best plan; no sizes if there is no plan.

    A size is dominated when another scores more and costs less in every resource: money, senders
    (n), its network, and the memory nodes of its zone. GPU quotas are checked for each size and
    need no column.
    """
    sizes = block.sizes
    tier = block.tier
    tiered = block.architecture.tiered
    if len(tier):
        tier = tier.take(useful_tier(tier, 1))
    possible = sizes.price <= budget
    if tiered:
        possible &= np.asarray(tier.offered.any(axis=0))[sizes.memory_set]
    affordable = np.flatnonzero(possible)
    rows = sizes.take(affordable)
    order = np.unique(block.scoring.scores[affordable], return_inverse=True)[1]
    columns: list[IntArray] = [-order, price_order(rows.price)]
    # What a size may cost falls with its expected time
    if len(rows) and rows.most_usd.min() < UNLIMITED_USD:
        columns += [-rows.most_usd]
    if tiered:
        columns += [rows.count, -rows.n_sat]
        if not tier.offered.all():
            columns += [
                -sold.astype(np.int64)[rows.memory_set] for sold in np.unique(tier.offered, axis=0)
            ]
    kept = affordable[skyband(np.column_stack(columns), 1)]
    return replace(block, sizes=sizes.take(kept), tier=tier, scoring=block.scoring.take(kept))


def decode(block: Block, values: Sequence[int]) -> Choice:
    """The plan that a solution of a block's program stands for."""
    sizes = len(block.sizes)
    tier = block.tier
    size = list(values[:sizes]).index(1)
    memory = None
    count = 0
    price = int(block.sizes.price[size])
    if block.architecture.tiered:
        memory = list(values[sizes : sizes + len(tier)]).index(1)
        count = values[sizes + len(tier) + memory]
        price += int(tier.price[memory]) * count
    value = float(block.scoring.values(np.array([size]), np.array([price]))[0])
    return Choice(block, size, memory, count, price, value)


class _Search:
    """The stages: each narrows what the next may choose from."""

    def __init__(self, block: Block, budget: int, deadline: float) -> None:
        tier = block.tier if block.architecture.tiered else None
        self._block = block
        self._formulation = formulate(block.sizes, tier, budget)
        self._program = IntegerProgram(self._formulation, deadline=deadline)
        self._prices = {v: float(p) for v, p in enumerate(self._formulation.prices) if p}
        self._worst_value = -np.inf
        self._highest_price = UNLIMITED_USD
        self._any_found = False

    def best(self) -> Choice:
        # Dense ranks instead of the scores: differences of 1 instead of differences that drown in
        # a tolerance.
        order = np.unique(self._block.scoring.scores, return_inverse=True)[1] + 1
        ranks = {row: -float(o) for row, o in enumerate(order.tolist())}
        if self._block.scoring.per_dollar:
            found = self._best_per_dollar()
        else:
            found = self._find(ranks)
        self._keep_value(tie_floor(found.value))
        self._highest_price = self._find(self._prices).price
        self._program.add(enumerate(self._formulation.prices), self._highest_price)
        return self._find(self._name_order())

    def _best_per_dollar(self) -> Choice:
        """Lowest price / score by Dinkelbach's method (Management Science 13, 1967).

        Minimise price - ratio x score, take the ratio of the solution, and repeat until it stops
        falling.
        """
        scores = self._block.scoring.scores.tolist()
        better = self._find(self._prices)
        while True:
            found = better
            ratio = -better.value
            gain = {v: self._prices.get(v, 0.0) - ratio * s for v, s in enumerate(scores)}
            better = self._find({**self._prices, **gain})
            if better.value <= found.value:
                return found

    def _keep_value(self, floor: float) -> None:
        """Exclude plans of lower value."""
        self._worst_value = floor
        scores = self._block.scoring.scores
        if not self._block.scoring.per_dollar:
            self._program.close(np.flatnonzero(scores < floor).tolist())
            return
        memory = [(v, p) for v, p in self._prices.items() if v >= len(scores)]
        # No memory nodes cost `most`, so it is as good as infinite; without this limit a score that
        # is 1e10 times the best one's gives a coefficient that HiGHS refuses.
        upper = list(self._formulation.upper.values())
        most = 2 * sum(p * upper[v] for v, p in memory)
        # Looser than the tie, which HiGHS takes for rounding and calls infeasible; `_find` checks
        # the tie.
        loose = floor * (1 + _LOOSE)
        terms = [
            (v, max(self._prices.get(v, 0.0) + loose * s, -most))
            for v, s in enumerate(scores.tolist())
        ]
        self._program.add([*terms, *memory], 0.0)

    def _name_order(self) -> Mapping[int, float]:
        """Order as one whole number: fewer memory nodes, size by name and n, memory type."""
        places = np.unique(self._block.sizes.order, return_inverse=True)[1].tolist()
        sizes = len(places)
        tier = (len(self._formulation.upper) - len(places)) // 2
        order = {row: float(place * max(tier, 1)) for row, place in enumerate(places)}
        order |= {sizes + w: float(w) for w in range(tier)}
        return order | {sizes + tier + w: float(sizes * tier) for w in range(tier)}

    def _find(self, objective: Mapping[int, float]) -> Choice:
        """Solve and check the answer exactly; raises :class:`NoProof` without one."""
        for _ in range(_MOST_TRIES):
            try:
                values = self._program.minimise(objective)
            except NoProof as stop:
                if stop.status is SolveStatus.INFEASIBLE and self._any_found:
                    break  # the solver contradicts itself
                raise
            if self._formulation.violated(values):
                break
            found = decode(self._block, values)
            if found.value >= self._worst_value and found.price <= self._highest_price:
                self._any_found = True
                return found
            # Do not return this type, size and memory-node type again.
            if found.memory is None:
                self._program.close([found.size])
            else:
                self._program.add([(found.size, 1), (len(self._block.sizes) + found.memory, 1)], 1)
        raise NoProof(SolveStatus.NUMERICAL)
