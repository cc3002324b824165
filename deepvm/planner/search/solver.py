"""The only place that talks to an integer-program solver.

PuLP builds the program; HiGHS solves it inside this process (``pulp.HiGHS``), and CBC, which PuLP ships, takes over
where HiGHS is missing or gives up.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pulp

from deepvm.errors import SolverError
from deepvm.planner.architectures.formulation import Constraint, Formulation, SolveStatus


@dataclass(frozen=True)
class Solution:
    """One solve.

    Attributes:
        values: a whole number for each variable; empty without a solution.
        solver: who found it, ``highs`` or ``cbc``.
    """

    status: SolveStatus
    values: tuple[int, ...] = ()
    solver: str = ""


BACKENDS = ("highs", "cbc")

_Row = tuple[tuple[tuple[int, float], ...], float, str]
"""Terms, bound, sense, as the solver gets them."""


def available_backends() -> tuple[str, ...]:
    """The solvers that can be run here, best first.

    Raises:
        SolverError: there is none.
    """
    found = tuple(b for b in BACKENDS if _backend(b, 1.0).available())
    if not found:
        raise SolverError("neither HiGHS nor CBC can be run here; install one with: pip install highspy")
    return found


def _backend(name: str, seconds: float) -> Any:
    # Gaps of 0: the default relative gap of 1e-4 would accept a plan that is not the best.
    # One thread: the programs are small, and starting a thread pool costs more than solving them.
    options: dict[str, Any] = {"msg": False, "gapRel": 0.0, "gapAbs": 0.0, "threads": 1, "timeLimit": seconds}
    if name == "highs":
        # Feasibility jump looks for a first solution, which presolve and rounding find here as well; it takes half of
        # the time of a small program. Releases before 1.11 do not have it and ignore the option.
        return _Highs(**options, mip_heuristic_run_feasibility_jump=False)
    with _as_in_pulp_3():
        return pulp.PULP_CBC_CMD(**options)


@contextmanager
def _as_in_pulp_3() -> Iterator[None]:
    # PuLP 3.3 announces the names of PuLP 4 at nearly every call; the dependency is pinned below 4.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class _Highs(pulp.HiGHS):  # type: ignore[misc]  # PuLP is not typed
    """HiGHS with all variables made whole at once: PuLP does it one by one, which takes the square of their number."""

    def buildSolverModel(self, lp: Any) -> None:  # noqa: N802  the name is PuLP's
        from highspy import HighsVarType

        self.mip = False
        super().buildSolverModel(lp)
        count = lp.solverModel.getNumCol()
        columns, kinds = np.arange(count, dtype=np.int32), np.full(count, HighsVarType.kInteger)
        lp.solverModel.changeColsIntegrality(count, columns, kinds)


class IntegerProgram:
    """A formulation that is solved for several objectives, with rows that come and go.

    Not safe for use from several threads at once.
    """

    def __init__(self, formulation: Formulation, *, deadline: float, backends: Sequence[str] = ()) -> None:
        """Load the formulation.

        Args:
            formulation: the variables and rows.
            deadline: ``time.monotonic()`` at which the solver must stop.
            backends: which solvers to try, in this order; all that are available when empty.
        """
        self._formulation, self._deadline = formulation, deadline
        self._backends = tuple(backends) or available_backends()
        self._upper = [v.upper for v in formulation.variables]
        self._rows = [_reduced(c) for c in formulation.constraints]
        self._scoped: tuple[list[int], list[_Row]] | None = None

    def add(self, constraint: Constraint, *, keep: bool = False) -> None:
        """Add a row of whole numbers.

        Args:
            constraint: the row.
            keep: whether it outlives the :meth:`scope` in which it is added.
        """
        self._add(_reduced(constraint), keep)

    def add_real(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        """Add a ``<=`` row with real coefficients."""
        self._add((tuple(terms), bound, "<="), keep=False)

    def _add(self, row: _Row, keep: bool) -> None:
        self._rows.append(row)
        if self._scoped is not None and keep:
            self._scoped[1].append(row)

    def close(self, variables: Iterable[int], *, keep: bool = False) -> None:
        """Hold variables at 0; ``keep`` as in :meth:`add`."""
        for variable in variables:
            self._upper[variable] = 0
            if self._scoped is not None and keep:
                self._scoped[0][variable] = 0

    def is_open(self, variable: int) -> bool:
        """Whether a variable may be above 0."""
        return self._upper[variable] > 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is added or closed inside holds only there, unless it says ``keep``."""
        self._scoped = list(self._upper), list(self._rows)
        try:
            yield
        finally:
            (self._upper, self._rows), self._scoped = self._scoped, None

    def minimise(self, objective: Mapping[int, float]) -> Solution:
        """Solve for one objective, a coefficient for each variable that has one.

        HiGHS first; if it is unavailable or gives up, the next backend. The values are rounded to whole numbers and
        not trusted: the caller checks them against the formulation.
        """
        problem, variables = self._build(objective)
        solution = Solution(SolveStatus.NUMERICAL)
        for name in self._backends:
            solution = self._solve(problem, variables, name)
            if solution.status is not SolveStatus.NUMERICAL:
                break
        return solution

    @_as_in_pulp_3()
    def _build(self, objective: Mapping[int, float]) -> tuple[Any, dict[int, Any]]:
        """The PuLP problem and its variables by number; those that are held at 0 are left out.

        PuLP hands a problem to the solver as a whole each time, so nothing is gained by keeping it.
        """
        problem = pulp.LpProblem("deepvm", pulp.LpMinimize)
        variables = {
            index: problem.add_variable(v.name, 0, upper, pulp.LpInteger)
            for index, (v, upper) in enumerate(zip(self._formulation.variables, self._upper, strict=True))
            if upper
        }

        def expression(terms: Iterable[tuple[int, float]]) -> Any:
            return pulp.LpAffineExpression([(variables[v], c) for v, c in terms if v in variables])

        problem.setObjective(expression(objective.items()))
        for number, (terms, bound, sense) in enumerate(self._rows):
            compare = pulp.LpConstraintLE if sense == "<=" else pulp.LpConstraintEQ
            problem.addConstraint(pulp.LpConstraint(expression(terms), compare, f"r_{number}", bound))
        return problem, variables

    def _solve(self, problem: Any, variables: dict[int, Any], name: str) -> Solution:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            return Solution(SolveStatus.TIME_LIMIT, (), name)
        try:
            problem.solve(_backend(name, seconds))
        except (pulp.PulpSolverError, IndexError):
            # IndexError: HiGHS refuses a row with a coefficient of 1e15 or more, and PuLP looks for its value.
            return Solution(SolveStatus.NUMERICAL, (), name)
        if problem.status == pulp.LpStatusInfeasible:
            return Solution(SolveStatus.INFEASIBLE, (), name)
        found = {index: v.varValue for index, v in variables.items()}
        # A variable in no row and no objective never reaches the solver, and has no value: any does.
        known = any(x is not None for x in found.values())
        values = tuple(round(found.get(i) or 0) for i in range(len(self._upper))) if known else ()
        if problem.status == pulp.LpStatusOptimal and problem.sol_status == pulp.LpSolutionOptimal:
            return Solution(SolveStatus.OPTIMAL if values else SolveStatus.NUMERICAL, values, name)
        if time.monotonic() >= self._deadline:
            return Solution(SolveStatus.TIME_LIMIT, values, name)
        return Solution(SolveStatus.NUMERICAL, (), name)


def _reduced(constraint: Constraint) -> _Row:
    """A row of whole numbers divided by their greatest common divisor.

    A bound of ``<=`` is rounded down: no whole-number solution is lost, and micro-dollars become small numbers.
    """
    divisor = math.gcd(*(c for _, c in constraint.terms)) or 1
    terms = tuple((v, c // divisor) for v, c in constraint.terms)
    bound = constraint.bound // divisor if constraint.sense == "<=" else constraint.bound / divisor
    return terms, bound, constraint.sense
