"""The only module that uses an integer-program solver: HiGHS, in process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

import numpy as np

from deepvm.errors import SolverError
from deepvm.planner.search.formulation import Formulation, SolveStatus

try:
    from highspy import Highs, HighsModelStatus, HighsStatus, HighsVarType
except ImportError:
    raise SolverError(
        "HiGHS cannot be run here: pip install highspy, or plan with --solver frontier"
    ) from None

SOLVER = "highs"
# Gaps of 0: the default relative gap of 1e-4 would accept a plan that is not the best. One thread:
# the programs are small, and starting a thread pool costs more than solving them. No feasibility
# jump, which takes half the time of a small program to find a first solution that presolve and
# rounding find as well. Releases before 1.11 ignore the option.
_OPTIONS = {
    "output_flag": False,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.0,
    "threads": 1,
    "mip_heuristic_run_feasibility_jump": False,
}
_ENDS = {
    HighsModelStatus.kInfeasible: SolveStatus.INFEASIBLE,
    # All variables are bounded.
    HighsModelStatus.kUnboundedOrInfeasible: SolveStatus.INFEASIBLE,
    HighsModelStatus.kTimeLimit: SolveStatus.TIME_LIMIT,
}
_Terms = tuple[tuple[int, float], ...]


class NoProof(Exception):
    """The solver has no proven answer; ``status`` says why."""

    def __init__(self, status: SolveStatus) -> None:
        """Keep the status."""
        super().__init__(status.value)
        self.status = status


class IntegerProgram:
    """A formulation that is narrowed and solved for several objectives in turn; not thread-safe."""

    def __init__(self, formulation: Formulation, *, deadline: float) -> None:
        """Load a formulation; ``deadline``: a ``time.monotonic()``."""
        self._deadline = deadline
        self._upper = np.array(list(formulation.upper.values()), dtype=np.float64)
        self._rows = [_reduced(c.terms, c.bound, c.sense) for c in formulation.constraints]

    def add(self, terms: Iterable[tuple[int, float]], bound: float) -> None:
        """Add a ``<=`` row with whole or real coefficients."""
        self._rows.append(_reduced(tuple(terms), bound, "<="))

    def close(self, variables: Iterable[int]) -> None:
        """Fix variables at 0."""
        self._upper[list(variables)] = 0

    def minimise(self, objective: Mapping[int, float]) -> tuple[int, ...]:
        """Solve for one objective: the values of the variables, rounded and unchecked.

        Raises :class:`NoProof`.
        """
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            raise NoProof(SolveStatus.TIME_LIMIT)
        solver = Highs()  # type: ignore[no-untyped-call]
        for option, value in {**_OPTIONS, "time_limit": seconds}.items():
            solver.setOptionValue(option, value)
        count = len(self._upper)
        columns = np.arange(count, dtype=np.int32)
        costs = np.zeros(count)
        costs[list(objective)] = list(objective.values())
        solver.addVars(count, np.zeros(count), self._upper)
        solver.changeColsIntegrality(count, columns, np.full(count, HighsVarType.kInteger))
        solver.changeColsCost(count, columns, costs)
        for terms, bound, sense in self._rows:
            least = bound if sense == "==" else -math.inf
            variables = np.array([v for v, _ in terms], dtype=np.int32)
            coefficients = np.array([c for _, c in terms], dtype=np.float64)
            added = solver.addRow(least, bound, len(terms), variables, coefficients)
            if added == HighsStatus.kError:  # such as for a coefficient of 1e15 or more
                raise NoProof(SolveStatus.NUMERICAL)
        solver.run()
        status = solver.getModelStatus()
        if status != HighsModelStatus.kOptimal:
            raise NoProof(_ENDS.get(status, SolveStatus.NUMERICAL))
        return tuple(round(value) for value in solver.getSolution().col_value)


def _reduced(terms: _Terms, bound: float, sense: str) -> tuple[_Terms, float, str]:
    """A row divided by the greatest common divisor of its coefficients, if they are whole.

    Micro-dollars become small.

    A bound of ``<=`` is rounded down, which loses no whole-number solution.
    """
    whole = [c for _, c in terms if isinstance(c, int)]
    divisor = math.gcd(*whole) if len(whole) == len(terms) else 0
    if not divisor:
        return terms, bound, sense
    reduced = tuple((v, int(c) // divisor) for v, c in terms)
    return reduced, bound // divisor if sense == "<=" else bound / divisor, sense
