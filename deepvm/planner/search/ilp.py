"""The best k plans of one architecture by integer programming, exactly.

One weighted objective such as "throughput minus a little price" is wrong here: the weight falls below the solver's
tolerance, and the solver returns a dearer memory tier even at gap 0. So each rank is solved lexicographically: the best
value; with that value the lowest price; at that price the fewest memory nodes and the first names. Every solution is
decoded and checked in whole numbers before it counts; the next rank excludes the plans already found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.planner.architectures.formulation import Constraint, Formulation, Pick, SolveStatus
from deepvm.planner.scoring import Scoring, tie_floor
from deepvm.planner.search.dominance import price_order, skyband
from deepvm.planner.search.frontier import Block, Choice, useful_tier
from deepvm.planner.search.solver import IntegerProgram

IntArray = npt.NDArray[np.int64]

_MOST_REPAIRS = 50
"""Solutions that may fail the exact check before the solver is no longer believed."""

_LOOSE = 1e-6
"""By how much, relative, a plan may miss a value before the solver is told to leave it out."""


@dataclass(frozen=True)
class IlpResult:
    """Ranked plans of one block.

    Attributes:
        status: ``optimal`` when every rank was proven; otherwise why it stopped early.
        choices: best first; those of an unfinished rank are left out unless they are all there is.
        solver: who solved it.
    """

    status: SolveStatus
    choices: tuple[Choice, ...]
    solver: str = ""


def solve(block: Block, budget: int, top: int, *, time_limit_s: float, backends: Sequence[str] = ()) -> IlpResult:
    """Rank the best plans of a block within a budget.

    Args:
        block: the candidates of one architecture.
        budget: micro-dollars an hour.
        top: how many plans.
        time_limit_s: seconds for all solves together.
        backends: see :class:`IntegerProgram`.
    """
    tier_kept = _useful_nodes(block, top)
    sizes_kept = _useful_sizes(block, tier_kept, budget, top)
    if not len(sizes_kept) or (block.architecture.tiered and not len(tier_kept)):
        return IlpResult(SolveStatus.INFEASIBLE, ())
    tier_mask = np.isin(np.arange(len(block.tier)), tier_kept)
    formulation = block.architecture.formulate(block.sizes.take(sizes_kept), block.tier.take(tier_mask), budget)
    scoring = Scoring(block.scoring.scores[sizes_kept], block.scoring.per_dollar)
    program = IntegerProgram(formulation, deadline=time.monotonic() + time_limit_s, backends=backends)
    search = _Search(formulation, scoring, program, block.architecture.decode)
    choices: list[Choice] = []
    status = SolveStatus.OPTIMAL
    while len(choices) < top:
        status, pick = search.best()
        if pick is None:
            break
        if status is not SolveStatus.OPTIMAL and choices:
            break  # what is proven stays; an unproven plan must not stand behind proven ones as if it were one
        value, price = search.value(pick), search.price(pick)
        memory = None if pick.memory is None else int(tier_kept[pick.memory])
        choices.append(Choice(block, int(sizes_kept[pick.size]), memory, pick.memory_count, price, value))
        if status is not SolveStatus.OPTIMAL:
            break
        search.exclude(pick)
    if status is SolveStatus.INFEASIBLE and choices:
        status = SolveStatus.OPTIMAL  # fewer plans exist than were asked for
    return IlpResult(status, tuple(choices), search.solver)


def _useful_nodes(block: Block, top: int) -> IntArray:
    """Rows of the memory tier that can be in one of the best ``top`` plans."""
    return np.flatnonzero(useful_tier(block.tier, top)) if len(block.tier) else np.zeros(0, dtype=np.int64)


def _useful_sizes(block: Block, tier_kept: IntArray, budget: int, top: int) -> IntArray:
    """Rows of the sizes that can be in one of the best ``top`` plans with these memory nodes.

    A size is worse than another when it scores less and costs more in every resource: money, senders (n), what its
    network lets it send, and the memory nodes that are sold where it stands. The quotas of GPU VMs are checked for each
    size and need no column.
    """
    offered = block.tier.offered[tier_kept]
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
            columns += [-nodes.astype(np.int64)[rows.offers] for nodes in np.unique(offered, axis=0)]
    return affordable[skyband(np.column_stack(columns), top)]


class _Search:
    """The stages of one rank, over a program that remembers which plans are taken."""

    def __init__(
        self,
        formulation: Formulation,
        scoring: Scoring,
        program: IntegerProgram,
        decode: Callable[[Formulation, Sequence[int]], Pick],
    ) -> None:
        self._formulation, self._scoring, self._program, self._decode = formulation, scoring, program, decode
        self._prices = {v: float(p) for v, p in enumerate(formulation.prices) if p}
        self.solver = ""

    def price(self, pick: Pick) -> int:
        """Exact price of a plan in micro-dollars an hour."""
        tier = self._formulation.tier
        memory = 0 if pick.memory is None or tier is None else int(tier.price[pick.memory]) * pick.memory_count
        return int(self._formulation.sizes.price[pick.size]) + memory

    def value(self, pick: Pick) -> float:
        """What the policy maximises, by the same arithmetic as the frontier's."""
        rows, prices = np.array([pick.size], dtype=np.int64), np.array([self.price(pick)], dtype=np.int64)
        return float(self._scoring.values(rows, prices)[0])

    def exclude(self, pick: Pick, *, keep: bool = True) -> None:
        """Do not return this type, size and memory-node type again."""
        if pick.memory is None:
            self._program.close([pick.size], keep=keep)
        else:
            both = ((pick.size, 1), (len(self._formulation.sizes) + pick.memory, 1))
            self._program.add(Constraint("choose", "not again", both, "<=", 1), keep=keep)

    def best(self) -> tuple[SolveStatus, Pick | None]:
        """The best remaining plan: value, then price, then memory nodes and names."""
        status, pick = self._staged()
        if status is SolveStatus.INFEASIBLE and pick is not None:
            status = SolveStatus.NUMERICAL  # a plan was found and then nothing: the solver contradicts itself
        return status, pick

    def _staged(self) -> tuple[SolveStatus, Pick | None]:
        status, pick = self._best_per_dollar() if self._scoring.per_dollar else self._best_score()
        if status is not SolveStatus.OPTIMAL or pick is None:
            return status, pick
        floor = tie_floor(self.value(pick))
        scores = self._scoring.scores
        if self._formulation.tier is None and self._alone(floor):
            return status, pick
        with self._program.scope():
            if self._scoring.per_dollar:
                memory = [(v, p) for v, p in self._prices.items() if v >= len(scores)]
                # No memory nodes cost `most`, so a size that may spend as much may spend anything; without this limit a
                # score that is 1e10 times the best one's gives a coefficient that HiGHS refuses.
                most = 2 * sum(p * self._formulation.variables[v].upper for v, p in memory)
                # Looser than the tie, which HiGHS takes for rounding and calls infeasible; `_find` keeps to the tie.
                loose = floor * (1 + _LOOSE)
                terms = [(v, max(self._prices.get(v, 0.0) + loose * s, -most)) for v, s in enumerate(scores.tolist())]
                self._program.add_real([*terms, *memory], 0.0)
            else:
                self._program.close(np.flatnonzero(scores < floor).tolist())
            status, cheapest = self._find(self._prices, lambda p: self.value(p) >= floor)
            if status is not SolveStatus.OPTIMAL or cheapest is None:
                return status, cheapest or pick
            lowest = self.price(cheapest)
            prices = tuple(enumerate(self._formulation.prices))
            self._program.add(Constraint("budget", "lowest price", prices, "<=", lowest))
            status, first = self._find(self._name_order(), lambda p: self.value(p) >= floor and self.price(p) <= lowest)
            return status, first or cheapest

    def _alone(self, floor: float) -> bool:
        """Whether only one size is left whose score reaches ``floor``, so that there are no equals to choose from."""
        if self._scoring.per_dollar:
            return False
        equals = np.flatnonzero(self._scoring.scores >= floor).tolist()
        return sum(self._program.is_open(v) for v in equals) == 1

    def _best_score(self) -> tuple[SolveStatus, Pick | None]:
        # Dense ranks in place of the scores: differences of 1 instead of differences that drown in a tolerance.
        order = np.unique(self._scoring.scores, return_inverse=True)[1] + 1
        return self._find({row: -float(o) for row, o in enumerate(order.tolist())})

    def _best_per_dollar(self) -> tuple[SolveStatus, Pick | None]:
        """Lowest price / score by Dinkelbach's method (Management Science 13, 1967).

        Minimise price - ratio x score, take the ratio of the solution, and repeat until it stands still.
        """
        scores = self._scoring.scores.tolist()
        status, pick = self._find(self._prices)
        while status is SolveStatus.OPTIMAL and pick is not None:
            ratio = -self.value(pick)
            gain = {v: self._prices.get(v, 0.0) - ratio * s for v, s in enumerate(scores)}
            status, better = self._find({**self._prices, **gain})
            if better is None or self.value(better) <= self.value(pick):
                break
            pick = better
        return status, pick

    def _name_order(self) -> Mapping[int, float]:
        """Fewer memory nodes, then the size by name and n, then the row of the memory type, as one whole number."""
        sizes, tier = len(self._formulation.sizes), len(self._formulation.tier or ())
        places = np.unique(self._formulation.sizes.order, return_inverse=True)[1].tolist()
        order = {row: float(place * max(tier, 1)) for row, place in enumerate(places)}
        order |= {sizes + w: float(w) for w in range(tier)}
        return order | {sizes + tier + w: float(sizes * tier) for w in range(tier)}

    def _find(
        self, objective: Mapping[int, float], accept: Callable[[Pick], bool] = lambda pick: True
    ) -> tuple[SolveStatus, Pick | None]:
        """Solve, and believe the answer only after exact checks; what fails them is cut off and solved again."""
        for _ in range(_MOST_REPAIRS):
            solution = self._program.minimise(objective)
            self.solver = solution.solver or self.solver
            broken = self._formulation.violated(solution.values) if solution.values else ("choose",)
            if "choose" in broken:  # nothing was found, or not even one cluster is chosen
                trouble = solution.status is SolveStatus.OPTIMAL
                return (SolveStatus.NUMERICAL if trouble else solution.status), None
            pick = self._decode(self._formulation, solution.values)
            if not broken and accept(pick):
                return solution.status, pick
            self._cut_off(pick, broken)
        return SolveStatus.NUMERICAL, None

    def _cut_off(self, pick: Pick, broken: Sequence[str]) -> None:
        """Exclude a plan that passed the solver's tolerances and breaks a constraint, and nothing that is feasible.

        With too few memory nodes (saturation) this pair needs more of them; in every other case it needs fewer.
        """
        if pick.memory is None:
            self.exclude(pick, keep=bool(broken))
            return
        sizes, tier = len(self._formulation.sizes), len(self._formulation.tier or ())
        x, y, m = pick.size, sizes + pick.memory, sizes + tier + pick.memory
        count = pick.memory_count
        if "saturation" in broken:
            terms, bound = ((x, count + 1), (y, count + 1), (m, -1)), count + 1
        else:
            slack = self._formulation.variables[m].upper - count + 1
            terms, bound = ((m, 1), (x, slack), (y, slack)), count - 1 + 2 * slack
        self._program.add(Constraint("choose", "cut off", terms, "<=", bound), keep=bool(broken))
