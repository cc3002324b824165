"""The best plan by integer programming: the proof of what the enumeration finds.

One weighted objective such as "throughput minus a little price" is wrong here: the weight falls
below the solver's tolerance, and the solver returns a more expensive memory tier even at gap 0. So
the best plan is found lexicographically: the best value, then the lowest price, then the fewest
memory nodes and the first names. Each solution is checked in whole numbers. A wrong one is
reported, not repaired: the enumeration has the answer anyway.

All coefficients are whole numbers (micro-dollars, bytes, vCPUs, VMs), so that a solver's
floating-point solution can be checked exactly.

The variables are x (one-hot over (v, n)) and, in a tiered architecture, y (one-hot over w) and m
(memory nodes of each w, 0 where y is 0). Saturation (eq. 7) stays linear without a big M: n_sat(v,
w) is the smaller of the two VMs' own values, so n < n_sat m splits into one row each. For v, m >=
floor(n/n_sat(v)) + 1 is a constant of (v, n); for w, all m but the chosen one are 0, so n + 1 <=
sum of n_sat(w) m(w) says the same as n < n_sat(w) m(w) in whole numbers.

Memory (eq. 6, of nodes that share a version): share(w) m >= f s. In whole numbers that is m >=
ceil(f s / share(w)), so the row is: sum of m(w) >= sum of ceil(f s / share(w)) y(w). In bytes its
coefficients would be 1e11, and a missing byte would vanish in the solver's tolerance.

PuLP builds the program, HiGHS solves it in process; no other module uses them.
"""

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pulp

from deepvm.core.arrays import IntArray
from deepvm.core.cluster.instances import Market, quota_limit
from deepvm.errors import SolverError
from deepvm.planner.columns import UNLIMITED_USD, MemoryNodeTable, TrainingTable
from deepvm.planner.options import MOST_NODES
from deepvm.planner.search.enumeration import (
    Block,
    Choice,
    SolveStatus,
    price_order,
    skyband,
    tie_floor,
    useful_tier,
)
from deepvm.records import dataclass, replace

SOLVER = "highs"
_Terms = tuple[tuple[int, float], ...]
# Wrong solutions, within the solver's tolerance, before the proof is abandoned
_MAX_TRIES = 50
_SLACK = 1e-6  # relative slack in the row that keeps a value


@dataclass(frozen=True)
class Constraint:
    """Sum of coefficient x variable, compared with a bound."""

    name: str  # choose: what makes a solution a plan
    terms: tuple[tuple[int, int], ...]  # (variable, coefficient)
    sense: Literal["<=", "=="]
    bound: int


@dataclass(frozen=True)
class Formulation:
    """An integer program without its objective, which changes from stage to stage."""

    upper: Mapping[str, int]  # whole-number variables by name, from 0 to this bound
    constraints: tuple[Constraint, ...]
    prices: tuple[int, ...]  # of each variable

    def violated(self, values: Sequence[int]) -> tuple[str, ...]:
        """Names of the constraints that a solution breaks."""
        broken = []
        for row in self.constraints:
            left = sum(coefficient * values[variable] for variable, coefficient in row.terms)
            if left > row.bound or (row.sense == "==" and left < row.bound):
                broken.append(row.name)
        return tuple(dict.fromkeys(broken))


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
    limits = sizes.most_usd.tolist()
    # The most expensive plan: one size, and at most one node more than VMs train. A higher limit
    # restricts nothing.
    dearest = max(prices[: len(sizes)], default=0)
    dearest += (MOST_NODES + 1) * max(prices[len(sizes) :], default=0)
    if limits and min(limits) < dearest:
        # Price x expected time <= total budget: price of size and nodes, less its limit, <= 0
        least = [min(limit, dearest) for limit in limits] + [0] * (len(prices) - len(limits))
        terms = tuple(
            (v, p - limit) for v, (p, limit) in enumerate(zip(prices, least, strict=True))
        )
        rows.append(Constraint("total-budget", terms, "<=", 0))
    return Formulation(upper, (*rows, *_quota_rows(sizes, tier, counts)), prices)


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


def _quota_rows(
    sizes: TrainingTable, tier: MemoryNodeTable | None, counts: Sequence[int]
) -> Iterator[Constraint]:
    """VCPUs per family and market within quotas (DeepVM V-A); ``counts``: of memory nodes."""
    for market, used in zip(Market, (sizes.spot, sizes.on_demand), strict=True):
        chosen = zip(sizes.type_index.tolist(), used.tolist(), strict=True)
        units = [(x, sizes.types[t], n) for x, (t, n) in enumerate(chosen)]
        if tier is not None and market is Market.ON_DEMAND:
            units += [(m, t, 1) for m, t in zip(counts, tier.types, strict=True)]
        for family in dict.fromkeys(t.quota_family for _, t, _ in units):
            limit = quota_limit(sizes.quotas, family, market)
            terms = tuple((v, n * t.vcpus) for v, t, n in units if n and t.quota_family == family)
            if limit is not None and terms:
                yield Constraint("quota", terms, "<=", limit)


class NoProof(Exception):
    """The solver has no proven answer; ``status`` says why."""

    def __init__(self, status: SolveStatus) -> None:
        super().__init__(status.value)
        self.status = status


def _backend(seconds: float) -> Any:
    # Gaps of 0: the default relative gap of 1e-4 would accept a plan that is not the best. One
    # thread: the programs are small, and starting a thread pool costs more than solving them. No
    # feasibility jump, which takes half the time of a small program to find a first solution that
    # presolve and rounding find as well. Releases before 1.11 ignore the option.
    return _Highs(
        msg=False,
        gapRel=0.0,
        gapAbs=0.0,
        threads=1,
        timeLimit=seconds,
        mip_heuristic_run_feasibility_jump=False,
    )


class _Highs(pulp.HiGHS):  # type: ignore[misc]  # PuLP is not typed
    """HiGHS with all variables made integer at once: PuLP does it one by one, in quadratic time."""

    def buildSolverModel(self, lp: Any) -> None:  # noqa: N802  the name is PuLP's
        from highspy import HighsVarType

        self.mip = False
        super().buildSolverModel(lp)
        count = lp.solverModel.getNumCol()
        columns = np.arange(count, dtype=np.int32)
        kinds = np.full(count, HighsVarType.kInteger)
        lp.solverModel.changeColsIntegrality(count, columns, kinds)


class IntegerProgram:
    """A formulation that is narrowed and solved for several objectives in turn; not thread-safe."""

    def __init__(self, formulation: Formulation, *, deadline: float) -> None:
        """``deadline``: a ``time.monotonic()``. Raises a SolverError if HiGHS cannot run here."""
        if not _backend(1.0).available():
            raise SolverError(
                "HiGHS cannot be run here: pip install highspy, or plan with --solver frontier"
            )
        self._deadline = deadline
        self._upper = list(formulation.upper.items())
        self._rows = [_reduced(c.terms, c.bound, c.sense) for c in formulation.constraints]

    def add(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        self._rows.append(_reduced(tuple(terms), bound, "<="))

    def close(self, variables: Iterable[int]) -> None:
        for variable in variables:
            self._upper[variable] = (self._upper[variable][0], 0)

    def minimize(self, objective: Mapping[int, float]) -> tuple[int, ...]:
        """The best values of the variables, rounded and unchecked. Raises :class:`NoProof`."""
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise NoProof(SolveStatus.TIME_LIMIT)
        problem, variables = self._build(objective)
        try:
            problem.solve(_backend(seconds))
        except (pulp.PulpSolverError, IndexError):
            # IndexError: HiGHS refuses a row with a coefficient of 1e15 or more, and PuLP looks for
            # its value.
            raise NoProof(SolveStatus.NUMERICAL) from None
        if problem.status == pulp.LpStatusInfeasible:
            raise NoProof(SolveStatus.INFEASIBLE)
        if problem.status != pulp.LpStatusOptimal or problem.sol_status != pulp.LpSolutionOptimal:
            late = time.monotonic() >= self._deadline
            raise NoProof(SolveStatus.TIME_LIMIT if late else SolveStatus.NUMERICAL)
        solution = {index: v.varValue for index, v in variables.items()}
        if all(x is None for x in solution.values()):
            raise NoProof(SolveStatus.NUMERICAL)
        # A variable in no row and no objective never reaches the solver; any value is right.
        return tuple(round(solution.get(i) or 0) for i in range(len(self._upper)))

    def _build(self, objective: Mapping[int, float]) -> tuple[Any, dict[int, Any]]:
        with warnings.catch_warnings():
            # PuLP 3.3 warns of PuLP 4 at nearly every call; the dependency is pinned below 4.
            warnings.simplefilter("ignore", DeprecationWarning)
            problem = pulp.LpProblem("deepvm", pulp.LpMinimize)
            variables = {
                index: problem.add_variable(name, 0, upper, pulp.LpInteger)
                for index, (name, upper) in enumerate(self._upper)
                if upper
            }

            def expression(terms: Iterable[tuple[int, float]]) -> Any:
                return pulp.LpAffineExpression(
                    [(variables[v], c) for v, c in terms if v in variables]
                )

            problem.setObjective(expression(objective.items()))
            for number, (terms, bound, sense) in enumerate(self._rows):
                if sense == "<=":
                    compare = pulp.LpConstraintLE
                else:
                    compare = pulp.LpConstraintEQ
                problem.addConstraint(
                    pulp.LpConstraint(expression(terms), compare, f"r_{number}", bound)
                )
        return problem, variables


def _reduced(terms: _Terms, bound: float, sense: str) -> tuple[_Terms, float, str]:
    """A row divided by the greatest common divisor of its coefficients, if they are whole.

    A bound of ``<=`` is rounded down, which loses no whole-number solution.
    """
    whole = [c for _, c in terms if isinstance(c, int)]
    divisor = math.gcd(*whole)
    if len(whole) < len(terms) or not divisor:
        return terms, bound, sense
    if sense == "<=":
        bound = bound // divisor
    else:
        bound = bound / divisor
    return tuple((v, int(c) // divisor) for v, c in terms), bound, sense


@dataclass(frozen=True)
class SolverResult:
    """The best plan if ``status`` is ``optimal``; ``solver``: empty if nothing was solved."""

    status: SolveStatus
    choice: Choice | None = None
    solver: str = ""


def prove(blocks: Sequence[Block], budget: int, *, time_limit_s: float) -> SolverResult:
    """Solve each architecture (DeepVM step 3), then compare them (step 4).

    The blocks come in the order of their names; the time is for all solves together.
    """
    deadline = time.monotonic() + time_limit_s
    small = [b for b in (useful(block, budget) for block in blocks) if len(b.sizes)]
    solver = SOLVER if small else ""
    choices: list[Choice] = []
    for block in small:
        try:
            choices.append(_Search(block, budget, deadline).best())
        except NoProof as stop:
            if stop.status is not SolveStatus.INFEASIBLE:
                return SolverResult(stop.status, None, solver)
    if not choices:
        return SolverResult(SolveStatus.INFEASIBLE, None, solver)
    floor = tie_floor(max(c.value for c in choices))
    equal = [c for c in choices if c.value >= floor]
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
    scored = replace(block.scoring, scores=block.scoring.scores[kept])
    return replace(block, sizes=sizes.take(kept), tier=tier, scoring=scored)


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
        # Dense ranks instead of the scores: differences of 1, above the solver's tolerance.
        order = np.unique(self._block.scoring.scores, return_inverse=True)[1] + 1
        ranks = {row: -float(o) for row, o in enumerate(order.tolist())}
        if self._block.scoring.per_dollar:
            choice = self._best_per_dollar()
        else:
            choice = self._find(ranks)
        self._keep_value(tie_floor(choice.value))
        self._highest_price = self._find(self._prices).price
        self._program.add(enumerate(self._formulation.prices), self._highest_price)
        # One whole number: fewer memory nodes, size by name and n, memory type
        places = np.unique(self._block.sizes.order, return_inverse=True)[1].tolist()
        sizes = len(places)
        tier = (len(self._formulation.upper) - sizes) // 2
        names = {row: float(place * max(tier, 1)) for row, place in enumerate(places)}
        names |= {sizes + w: float(w) for w in range(tier)}
        names |= {sizes + tier + w: float(sizes * tier) for w in range(tier)}
        return self._find(names)

    def _best_per_dollar(self) -> Choice:
        """Lowest price / score by Dinkelbach's method (Management Science 13, 1967)."""
        scores = self._block.scoring.scores.tolist()
        better = self._find(self._prices)
        while True:
            choice = better
            ratio = -better.value
            gain = {v: self._prices.get(v, 0.0) - ratio * s for v, s in enumerate(scores)}
            better = self._find({**self._prices, **gain})
            if better.value <= choice.value:
                return choice

    def _keep_value(self, floor: float) -> None:
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
        loose = floor * (1 + _SLACK)
        terms = [
            (v, max(self._prices.get(v, 0.0) + loose * s, -most))
            for v, s in enumerate(scores.tolist())
        ]
        self._program.add([*terms, *memory], 0.0)

    def _find(self, objective: Mapping[int, float]) -> Choice:
        """Solve and check the answer exactly; raises :class:`NoProof` without one."""
        for _ in range(_MAX_TRIES):
            try:
                values = self._program.minimize(objective)
            except NoProof as stop:
                if stop.status is SolveStatus.INFEASIBLE and self._any_found:
                    break  # the solver contradicts itself
                raise
            if self._formulation.violated(values):
                break
            choice = decode(self._block, values)
            if choice.value >= self._worst_value and choice.price <= self._highest_price:
                self._any_found = True
                return choice
            # Do not return this type, size and memory-node type again.
            if choice.memory is None:
                self._program.close([choice.size])
            else:
                pair = choice.size, len(self._block.sizes) + choice.memory
                self._program.add([(variable, 1) for variable in pair], 1)
        raise NoProof(SolveStatus.NUMERICAL)
