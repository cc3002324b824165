"""The only module that uses an integer-program solver: PuLP builds, HiGHS solves in process."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pulp

from deepvm.errors import SolverError
from deepvm.planner.search.formulation import Formulation, SolveStatus

SOLVER = "highs"
_Terms = tuple[tuple[int, float], ...]


class NoProof(Exception):
    """The solver has no proven answer; ``status`` says why."""

    def __init__(self, status: SolveStatus) -> None:
        """Keep the status."""
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
        """Load a formulation; ``deadline``: a ``time.monotonic()``.

        Raises a SolverError if HiGHS cannot run here.
        """
        if not _backend(1.0).available():
            raise SolverError(
                "HiGHS cannot be run here: pip install highspy, or plan with --solver frontier"
            )
        self._deadline = deadline
        self._upper = list(formulation.upper.items())
        self._rows = [_reduced(c.terms, c.bound, c.sense) for c in formulation.constraints]

    def add(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        """Add a ``<=`` row with whole or real coefficients."""
        self._rows.append(_reduced(tuple(terms), bound, "<="))

    def close(self, variables: Iterable[int]) -> None:
        """Fix variables at 0."""
        for variable in variables:
            self._upper[variable] = (self._upper[variable][0], 0)

    def minimise(self, objective: Mapping[int, float]) -> tuple[int, ...]:
        """Solve for one objective: the values of the variables, rounded and unchecked.

        Raises :class:`NoProof`.
        """
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
        found = {index: v.varValue for index, v in variables.items()}
        if all(x is None for x in found.values()):
            raise NoProof(SolveStatus.NUMERICAL)
        # A variable in no row and no objective never reaches the solver; any value will do.
        return tuple(round(found.get(i) or 0) for i in range(len(self._upper)))

    def _build(self, objective: Mapping[int, float]) -> tuple[Any, dict[int, Any]]:
        """The whole PuLP problem, and its variables that are not fixed at 0."""
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

    Micro-dollars become small.

    A bound of ``<=`` is rounded down, which loses no whole-number solution.
    """
    whole = [c for _, c in terms if isinstance(c, int)]
    divisor = 0
    if len(whole) == len(terms):
        divisor = math.gcd(*whole)
    if not divisor:
        return terms, bound, sense
    reduced = tuple((v, int(c) // divisor) for v, c in terms)
    return reduced, bound // divisor if sense == "<=" else bound / divisor, sense
