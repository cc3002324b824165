"""The only place that talks to an integer-program solver.

PuLP builds the program; HiGHS solves it inside this process (``pulp.HiGHS``), and CBC, which PuLP ships, takes over
where HiGHS is missing or gives up.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import pulp

from deepvm.errors import SolverError
from deepvm.planner.formulation import Constraint, Formulation


class SolveStatus(str, Enum):
    """How a solve ended. All of them are results that a user can read; none is raised."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time-limit"
    """The time ran out; a plan that was found so far may stand beside it."""
    INFEASIBLE = "infeasible"
    NUMERICAL = "numerical-trouble"
    """The solver gave up, or its answer did not pass the exact check."""


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
        return pulp.HiGHS(**options)
    with warnings.catch_warnings():
        # PuLP 3.3 announces that PuLP 4 renames this class; the dependency is pinned below 4.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pulp.PULP_CBC_CMD(**options)


class IntegerProgram:
    """A formulation, loaded once and solved for several objectives.

    Not safe for use from several threads at once.
    """

    def __init__(self, formulation: Formulation, *, deadline: float, backends: Sequence[str] = ()) -> None:
        """Build the PuLP problem.

        Args:
            formulation: the variables and rows.
            deadline: ``time.monotonic()`` at which the solver must stop.
            backends: which solvers to try, in this order; all that are available when empty.
        """
        self._formulation, self._deadline = formulation, deadline
        self._backends = tuple(backends) or available_backends()
        self._problem = pulp.LpProblem("deepvm", pulp.LpMinimize)
        self._variables = [pulp.LpVariable(v.name, 0, v.upper, pulp.LpInteger) for v in formulation.variables]
        self._rows = 0
        self._undo: list[Callable[[], None]] | None = None
        for constraint in formulation.constraints:
            self.add(constraint)

    def add(self, constraint: Constraint, *, keep: bool = False) -> None:
        """Add a row of whole numbers.

        The row is divided by the greatest common divisor of its coefficients, rounding a bound of ``<=`` down: no
        whole-number solution is lost, and prices in micro-dollars become small numbers.

        Args:
            keep: whether the row outlives the :meth:`scope` in which it is added.
        """
        divisor = math.gcd(*(c for _, c in constraint.terms)) or 1
        terms = [(v, c // divisor) for v, c in constraint.terms]
        bound = constraint.bound // divisor if constraint.sense == "<=" else constraint.bound / divisor
        self._add(terms, bound, constraint.sense, keep)

    def add_real(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        """Add a ``<=`` row with real coefficients."""
        self._add(terms, bound, "<=", False)

    def _add(self, terms: Iterable[tuple[int, float]], bound: float, sense: str, keep: bool) -> None:
        expression = pulp.LpAffineExpression([(self._variables[v], c) for v, c in terms])
        compare = pulp.LpConstraintLE if sense == "<=" else pulp.LpConstraintEQ
        name = f"r_{self._rows}"
        self._rows += 1
        self._problem += pulp.LpConstraint(expression, compare, name, bound)
        if self._undo is not None and not keep:
            self._undo.append(lambda: self._problem.constraints.pop(name))

    def close(self, variables: Iterable[int], *, keep: bool = False) -> None:
        """Hold variables at 0; ``keep`` as in :meth:`add`."""
        for index in variables:
            variable = self._variables[index]
            if self._undo is not None and not keep and variable.upBound != 0:
                self._undo.append(partial(setattr, variable, "upBound", variable.upBound))
            variable.upBound = 0

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is added or closed inside holds only there, unless it says ``keep``."""
        self._undo = []
        try:
            yield
        finally:
            undo, self._undo = self._undo, None
            for step in reversed(undo):
                step()

    def minimise(self, objective: Mapping[int, float]) -> Solution:
        """Solve for one objective, a coefficient for each variable that has one.

        HiGHS first; if it is unavailable or gives up, the next backend. The values are rounded to whole numbers and
        not trusted: the caller checks them against the formulation.
        """
        terms = [(self._variables[v], c) for v, c in objective.items()]
        self._problem.setObjective(pulp.LpAffineExpression(terms))
        solution = Solution(SolveStatus.NUMERICAL)
        for name in self._backends:
            solution = self._solve(name)
            if solution.status is not SolveStatus.NUMERICAL:
                break
        return solution

    def _solve(self, name: str) -> Solution:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            return Solution(SolveStatus.TIME_LIMIT, (), name)
        try:
            self._problem.solve(_backend(name, seconds))
        except pulp.PulpSolverError:
            return Solution(SolveStatus.NUMERICAL, (), name)
        if self._problem.status == pulp.LpStatusInfeasible:
            return Solution(SolveStatus.INFEASIBLE, (), name)
        found = [v.varValue for v in self._variables]
        values = () if None in found else tuple(round(x) for x in found)
        if self._problem.status == pulp.LpStatusOptimal and self._problem.sol_status == pulp.LpSolutionOptimal:
            return Solution(SolveStatus.OPTIMAL if values else SolveStatus.NUMERICAL, values, name)
        if time.monotonic() >= self._deadline:
            return Solution(SolveStatus.TIME_LIMIT, values, name)
        return Solution(SolveStatus.NUMERICAL, (), name)
