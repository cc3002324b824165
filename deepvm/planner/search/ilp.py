"""The best plan by integer programming: the proof of what the enumeration finds.

One weighted objective such as "throughput minus a little price" is wrong here: the weight falls below the solver's
tolerance, and the solver returns a dearer memory tier even at gap 0. So the best plan is found lexicographically: the
best value; with that value the lowest price; at that price the fewest memory nodes and the first names. Each solution
is decoded and checked in whole numbers before it counts. What the solver gets wrong is not repaired but reported: the
enumeration, which ranks all plans anyway, has the answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from deepvm.planner.architectures.formulation import Constraint, Formulation, Pick, SolveStatus
from deepvm.planner.columns import IntArray
from deepvm.planner.scoring import Scoring, tie_floor
from deepvm.planner.search.dominance import price_order, skyband
from deepvm.planner.search.frontier import Block, Choice, rank, useful_tier
from deepvm.planner.search.solver import SOLVER, IntegerProgram

_MOST_TRIES = 50
"""Plans that may pass a row only by the solver's tolerance before it is no longer believed."""

_LOOSE = 1e-6
"""By how much, relative, a plan may miss a value before the solver is told to leave it out."""


@dataclass(frozen=True)
class Proof:
    """What the integer program says.

    Attributes:
        status: ``optimal`` or ``infeasible`` when it is proven; otherwise why it is not.
        choice: the best plan, None unless it is proven.
        solver: who proved it; empty when there was nothing to solve.
    """

    status: SolveStatus
    choice: Choice | None = None
    solver: str = ""


def prove(blocks: Sequence[Block], budget: int, *, time_limit_s: float) -> Proof:
    """Solve each architecture (DeepVM step 3), then compare them (step 4).

    Args:
        blocks: the candidates of each architecture.
        budget: micro-dollars an hour.
        time_limit_s: seconds for all solves together.
    """
    deadline = time.monotonic() + time_limit_s
    proofs = [_prove(block, budget, deadline) for block in blocks]
    solver = next((p.solver for p in proofs if p.solver), "")
    for proof in proofs:
        if proof.status not in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
            return Proof(proof.status, None, solver)
    best = rank([p.choice for p in proofs if p.choice], 1)
    return Proof(SolveStatus.OPTIMAL, best[0], solver) if best else Proof(SolveStatus.INFEASIBLE, None, solver)


def _prove(block: Block, budget: int, deadline: float) -> Proof:
    """The best plan of one architecture."""
    nodes = _useful_nodes(block)
    sizes = _useful_sizes(block, nodes, budget)
    if not len(sizes) or (block.architecture.tiered and not len(nodes)):
        return Proof(SolveStatus.INFEASIBLE)
    tier = block.tier.take(np.isin(np.arange(len(block.tier)), nodes))
    formulation = block.architecture.formulate(block.sizes.take(sizes), tier, budget)
    scoring = Scoring(block.scoring.scores[sizes], block.scoring.per_dollar)
    search = _Search(formulation, scoring, IntegerProgram(formulation, deadline=deadline), block.architecture.decode)
    try:
        pick = search.best()
    except _Unproven as stop:
        return Proof(stop.status, None, SOLVER)
    memory = None if pick.memory is None else int(nodes[pick.memory])
    size, price, value = int(sizes[pick.size]), search.price(pick), search.value(pick)
    return Proof(SolveStatus.OPTIMAL, Choice(block, size, memory, pick.memory_count, price, value), SOLVER)


def _useful_nodes(block: Block) -> IntArray:
    """Rows of the memory tier that can be in the best plan."""
    return np.flatnonzero(useful_tier(block.tier, 1)) if len(block.tier) else np.zeros(0, dtype=np.int64)


def _useful_sizes(block: Block, nodes: IntArray, budget: int) -> IntArray:
    """Rows of the sizes that can be in the best plan with these memory nodes.

    A size is worse than another when it scores less and costs more in every resource: money, senders (n), what its
    network lets it send, and the memory nodes that are sold where it stands. The quotas of GPU VMs are checked for each
    size and need no column.
    """
    offered = block.tier.offered[nodes]
    possible = block.sizes.price <= budget
    if block.architecture.tiered:
        possible &= np.asarray(offered.any(axis=0))[block.sizes.offers]
    affordable = np.flatnonzero(possible)
    rows = block.sizes.take(affordable)
    order = np.unique(block.scoring.scores[affordable], return_inverse=True)[1]
    columns = [-order, price_order(rows.price)]
    if len(rows) and rows.most_usd.min() < np.iinfo(np.int64).max:  # what a size may cost falls with its expected time
        columns += [-rows.most_usd]
    if block.architecture.tiered:
        columns += [rows.count, -rows.n_sat]
        if block.tier.offers_differ:
            columns += [-sold.astype(np.int64)[rows.offers] for sold in np.unique(offered, axis=0)]
    return affordable[skyband(np.column_stack(columns), 1)]


class _Unproven(Exception):
    """The search ends without a proven plan; ``status`` says why."""

    def __init__(self, status: SolveStatus) -> None:
        super().__init__(status.value)
        self.status = status


class _Search:
    """The stages: each narrows what the next may choose from."""

    def __init__(
        self,
        formulation: Formulation,
        scoring: Scoring,
        program: IntegerProgram,
        decode: Callable[[Formulation, Sequence[int]], Pick],
    ) -> None:
        self._formulation, self._scoring, self._program, self._decode = formulation, scoring, program, decode
        self._prices = {v: float(p) for v, p in enumerate(formulation.prices) if p}
        self._worst_value, self._highest_price = -np.inf, np.inf
        self._any_found = False

    def price(self, pick: Pick) -> int:
        """Exact price of a plan in micro-dollars an hour."""
        tier = self._formulation.tier
        memory = 0 if pick.memory is None or tier is None else int(tier.price[pick.memory]) * pick.memory_count
        return int(self._formulation.sizes.price[pick.size]) + memory

    def value(self, pick: Pick) -> float:
        """What the policy maximises, by the same arithmetic as the frontier's."""
        rows, prices = np.array([pick.size], dtype=np.int64), np.array([self.price(pick)], dtype=np.int64)
        return float(self._scoring.values(rows, prices)[0])

    def best(self) -> Pick:
        """The best plan: value, then price, then memory nodes and names.

        Raises:
            _Unproven: there is none, or the solver did not prove it.
        """
        pick = self._best_per_dollar() if self._scoring.per_dollar else self._best_score()
        self._hold_value(tie_floor(self.value(pick)))
        self._hold_price(self.price(self._find(self._prices)))
        return self._find(self._name_order())

    def _best_score(self) -> Pick:
        # Dense ranks in place of the scores: differences of 1 instead of differences that drown in a tolerance.
        order = np.unique(self._scoring.scores, return_inverse=True)[1] + 1
        return self._find({row: -float(o) for row, o in enumerate(order.tolist())})

    def _best_per_dollar(self) -> Pick:
        """Lowest price / score by Dinkelbach's method (Management Science 13, 1967).

        Minimise price - ratio x score, take the ratio of the solution, and repeat until it stands still.
        """
        scores = self._scoring.scores.tolist()
        better = self._find(self._prices)
        while True:
            pick, ratio = better, -self.value(better)
            gain = {v: self._prices.get(v, 0.0) - ratio * s for v, s in enumerate(scores)}
            better = self._find({**self._prices, **gain})
            if self.value(better) <= self.value(pick):
                return pick

    def _hold_value(self, floor: float) -> None:
        """From here on only plans of at least this value."""
        self._worst_value, scores = floor, self._scoring.scores
        if not self._scoring.per_dollar:
            self._program.close(np.flatnonzero(scores < floor).tolist())
            return
        memory = [(v, p) for v, p in self._prices.items() if v >= len(scores)]
        # No memory nodes cost `most`, so a size that may spend as much may spend anything; without this limit a score
        # that is 1e10 times the best one's gives a coefficient that HiGHS refuses.
        most = 2 * sum(p * self._formulation.variables[v].upper for v, p in memory)
        # Looser than the tie, which HiGHS takes for rounding and calls infeasible; `_find` keeps to the tie.
        loose = floor * (1 + _LOOSE)
        terms = [(v, max(self._prices.get(v, 0.0) + loose * s, -most)) for v, s in enumerate(scores.tolist())]
        self._program.add_real([*terms, *memory], 0.0)

    def _hold_price(self, highest: int) -> None:
        """From here on only plans of at most this price."""
        self._highest_price = highest
        prices = tuple(enumerate(self._formulation.prices))
        self._program.add(Constraint("budget", "lowest price", prices, "<=", highest))

    def _name_order(self) -> Mapping[int, float]:
        """Fewer memory nodes, then the size by name and n, then the row of the memory type, as one whole number."""
        sizes, tier = len(self._formulation.sizes), len(self._formulation.tier or ())
        places = np.unique(self._formulation.sizes.order, return_inverse=True)[1].tolist()
        order = {row: float(place * max(tier, 1)) for row, place in enumerate(places)}
        order |= {sizes + w: float(w) for w in range(tier)}
        return order | {sizes + tier + w: float(sizes * tier) for w in range(tier)}

    def _find(self, objective: Mapping[int, float]) -> Pick:
        """Solve, and believe the answer only after exact checks.

        Raises:
            _Unproven: no solution, or one that breaks a constraint.
        """
        for _ in range(_MOST_TRIES):
            solution = self._program.minimise(objective)
            if solution.status is SolveStatus.INFEASIBLE and self._any_found:
                break  # a plan was found and then none: the solver contradicts itself
            if solution.status is not SolveStatus.OPTIMAL:
                raise _Unproven(solution.status)
            if self._formulation.violated(solution.values):
                break
            pick = self._decode(self._formulation, solution.values)
            if self.value(pick) >= self._worst_value and self.price(pick) <= self._highest_price:
                self._any_found = True
                return pick
            self._exclude(pick)
        raise _Unproven(SolveStatus.NUMERICAL)

    def _exclude(self, pick: Pick) -> None:
        """Do not return this type, size and memory-node type again."""
        if pick.memory is None:
            self._program.close([pick.size])
        else:
            both = ((pick.size, 1), (len(self._formulation.sizes) + pick.memory, 1))
            self._program.add(Constraint("choose", "not again", both, "<=", 1))
