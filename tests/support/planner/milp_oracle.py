"""Small mixed-integer programs against brute force.

As a script, in any environment that has PuLP and highspy.

A solver release that calls a wrong optimum optimal, or that writes to stdout, is excluded in
pyproject.toml.
"""

from __future__ import annotations

import itertools
import random
import sys
import warnings
from typing import Any, NamedTuple

import pulp

TOLERANCE = 1e-4  # rows may be broken by 1e-6
OPTIONS: dict[str, Any] = {"msg": False, "gapRel": 0.0, "gapAbs": 0.0, "threads": 1}
OPTIONS["mip_heuristic_run_feasibility_jump"] = False  # as in deepvm.planner.search.ilp


class Program(NamedTuple):
    """Minimize cost x values with rows >= bound.

    All values are whole numbers but, if it is ``mixed``, the last.
    """

    low: list[int]
    high: list[int]
    cost: list[float]
    rows: list[tuple[list[int], float]]
    mixed: bool


KNOWN = Program([0, 8], [20, 20], [1.0, 2.0], [([1, 1], 20.1)], mixed=True)
"""Its optimum is 28.2; HiGHS 1.14 says 29."""


def drawn(seed: int) -> Program:
    rng = random.Random(seed)
    low = [rng.randint(0, 3) for _ in range(rng.randint(2, 4))]
    high = [least + rng.randint(0, 5) for least in low]
    cost = [rng.choice((rng.randint(-9, 9), rng.uniform(-5, 5))) for _ in low]
    rows = [
        (
            [rng.randint(-6, 6) for _ in low],
            rng.choice((rng.randint(-9, 30), round(rng.uniform(-9, 30), 1))),
        )
        for _ in range(rng.randint(1, 3))
    ]
    return Program(low, high, cost, rows, mixed=bool(seed % 2))


def solved(program: Program) -> float | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        problem = pulp.LpProblem("oracle", pulp.LpMinimize)
        last = len(program.low) - 1
        values = [
            problem.add_variable(
                f"v{i}", low, high, "Continuous" if program.mixed and i == last else "Integer"
            )
            for i, (low, high) in enumerate(zip(program.low, program.high, strict=True))
        ]
        problem.setObjective(pulp.lpSum(c * v for c, v in zip(program.cost, values, strict=True)))
        for weights, bound in program.rows:
            problem.addConstraint(
                pulp.lpSum(w * v for w, v in zip(weights, values, strict=True)) >= bound
            )
        problem.solve(pulp.HiGHS(**OPTIONS))
        return (
            float(pulp.value(problem.objective)) if problem.status == pulp.LpStatusOptimal else None
        )


def brute_force(program: Program) -> float | None:
    whole = len(program.low) - program.mixed
    best = None
    for chosen in itertools.product(
        *(range(program.low[i], program.high[i] + 1) for i in range(whole))
    ):
        low, high = (
            (float(program.low[-1]), float(program.high[-1])) if program.mixed else (0.0, 0.0)
        )
        for weights, bound in program.rows:
            left = bound - sum(w * v for w, v in zip(weights, chosen, strict=False))
            weight = weights[-1] if program.mixed else 0
            if weight > 0:
                low = max(low, left / weight)
            elif weight < 0:
                high = min(high, left / weight)
            elif left > 1e-9:
                low, high = 1.0, 0.0  # this row cannot hold
        if low > high + 1e-9:
            continue
        last = program.cost[-1] * (low if program.cost[-1] >= 0 else high) if program.mixed else 0.0
        cost = sum(c * v for c, v in zip(program.cost, chosen, strict=False)) + last
        best = cost if best is None else min(best, cost)
    return best


def wrong(count: int) -> list[str]:
    """The known program, one at which 1.12 prints, and so many random ones: those that are wrong,
    in words.
    """
    found = []
    for program in (KNOWN, drawn(6890), *map(drawn, range(count))):
        got, right = solved(program), brute_force(program)
        if (got is None) != (right is None) or (
            got is not None and right is not None and abs(got - right) > TOLERANCE
        ):
            found.append(f"{program}: {got}, not {right}")
    return found


if __name__ == "__main__":
    answers = wrong(int(sys.argv[1]))
    sys.stderr.write("\n".join(answers))
    sys.exit(len(answers) > 0)
