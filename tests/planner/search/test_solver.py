"""How a solve can end, and that no solver is believed without an exact check."""

from __future__ import annotations

import importlib.metadata
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pulp
import pytest
from packaging.specifiers import SpecifierSet
from support import oracle
from support.builders import catalog, cpu_type, gpu_type, paper
from support.pace import soon
from support.places import ROOT
from support.planner import milp_oracle
from support.planner.agreement import blocks_for
from support.planning import recommend

from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.memory_nodes import SaturationTable
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.errors import SolverError
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import PlanRequest
from deepvm.planner.search import ilp
from deepvm.planner.search.enumeration import Block, SolveStatus
from deepvm.planner.search.ilp import Constraint, Formulation, IntegerProgram, NoProof

NEVER = float("inf")


def program(
    *constraints: Constraint, upper: Sequence[int] = (5, 5), deadline: float = NEVER
) -> IntegerProgram:
    """A few variables between 0 and ``upper``; prices play no part here."""
    variables = {f"v_{i}": u for i, u in enumerate(upper)}
    return IntegerProgram(Formulation(variables, constraints, (0,) * len(upper)), deadline=deadline)


def stop(solved: IntegerProgram, objective: dict[int, float]) -> SolveStatus:
    """Why there is no proven answer."""
    with pytest.raises(NoProof) as caught:
        solved.minimize(objective)
    return caught.value.status


def row(terms: dict[int, int], sense: str, bound: int) -> Constraint:
    return Constraint("choose", tuple(terms.items()), sense, bound)  # type: ignore[arg-type]


class TestProgram:
    def test_optimal(self) -> None:
        assert program(row({0: 2, 1: 3}, "<=", 12)).minimize({0: -2.0, 1: -3.1}) == (0, 4)

    def test_infeasible(self) -> None:
        contradiction = (row({0: 1, 1: 1}, "<=", 3), row({0: -1, 1: -1}, "<=", -4))
        assert stop(program(*contradiction), {0: 1.0}) is SolveStatus.INFEASIBLE

    def test_no_time_at_all(self) -> None:
        late = program(row({0: 1}, "<=", 3), deadline=time.monotonic() - 1)
        assert stop(late, {0: 1.0}) is SolveStatus.TIME_LIMIT

    def test_time_runs_out_while_solving(self) -> None:
        # Market split (Cornuejols and Dawande 1998): 60 yes-or-no variables in 6 such rows take
        # hours, not tenths.
        rng = random.Random(1998)
        weights = [[rng.randint(0, 99) for _ in range(60)] for _ in range(6)]
        rows = [row(dict(enumerate(w)), "==", sum(w) // 2) for w in weights]
        hard = program(*rows, upper=[1] * 60, deadline=time.monotonic() + 0.3)
        with soon(30):
            assert stop(hard, {0: 1.0}) is SolveStatus.TIME_LIMIT

    def test_rows_are_divided_by_their_divisor_without_losing_whole_solutions(self) -> None:
        found = program(row({0: 300_000, 1: 200_000}, "<=", 799_999)).minimize({0: -3.0, 1: -2.0})
        assert found in ((1, 2), (2, 0))  # 700 000; the bound becomes 7
        assert program(row({0: 4}, "==", 12)).minimize({})[0] == 3
        assert stop(program(row({0: 4}, "==", 10)), {}) is SolveStatus.INFEASIBLE

    def test_rows_and_closed_variables_narrow_it(self) -> None:
        p = program(row({0: 1, 1: 1}, "<=", 7))
        best = {0: -2.0, 1: -1.0}
        assert p.minimize(best) == (5, 2)
        p.add([(0, 1)], 1)
        assert p.minimize(best) == (1, 5)
        p.add([(1, 1.0)], 2.5)
        assert p.minimize(best) == (1, 2)
        p.close([0])
        assert p.minimize(best) == (0, 2)

    def test_nothing_open(self) -> None:
        p = program(row({0: 1}, "<=", 3))
        p.close([0, 1])
        assert stop(p, {0: 1.0}) in (SolveStatus.NUMERICAL, SolveStatus.INFEASIBLE)


class TestBackend:
    def test_it_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ilp, "_backend", lambda seconds: pulp.COIN_CMD(path="/nowhere/cbc"))
        with pytest.raises(SolverError, match="pip install highspy"):
            recommend(paper(), 3)
        assert len(recommend(paper(), 3, solver="frontier")) == 3

    def test_it_cannot_be_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        p = program(row({0: 1}, "<=", 3))
        monkeypatch.setattr(
            ilp, "_backend", lambda seconds: pulp.COIN_CMD(path="/nowhere/cbc", msg=False)
        )
        assert stop(p, {0: -1.0}) is SolveStatus.NUMERICAL  # COIN_CMD raises PulpSolverError

    def test_it_refuses_a_row(self) -> None:
        # HiGHS takes no coefficient of 1e15 or more; PuLP then looks for the value of a row that is
        # not there.
        too_large = row({0: 10**16, 1: 1}, "<=", 3 * 10**16)
        assert stop(program(too_large, upper=(5, 1)), {0: -1.0}) is SolveStatus.NUMERICAL


class TestExactCheck:
    """HiGHS's tolerances are real: it takes plans that cost a micro-dollar too much at 100 $000/h
    a VM.
    """

    def dear(self) -> tuple[Catalog, PlanRequest]:
        shop = catalog(
            gpu_type(
                on_demand_usd_per_hour=None,
                spot_usd_per_hour="99999.999999",
                speedups=(RingSpeedup(0.0, 0.0),),
            ),
            cpu_type("c1", on_demand_usd_per_hour="49999.999999", network_gbps=5),
            cpu_type("c2", on_demand_usd_per_hour="99999.999998", network_gbps=25),
            cpu_type("c3", on_demand_usd_per_hour="50000.000001", network_gbps=1),
            cpu_type("c4", on_demand_usd_per_hour="50000.000001", network_gbps=25),
            default_speedup="ring",
            n_sat=SaturationTable((1.0,), (1,)),
        )
        # 7 + 8 nodes cost 1 099 $999.999985/h with c1: 3 micro-dollars more than this.
        request = PlanRequest(
            budget=Decimal("1099999.999982"), max_nodes=12, top=2, architectures=("tiering",)
        )
        return shop, request

    def test_a_plan_that_costs_a_micro_dollar_too_much_is_not_believed(self) -> None:
        shop, request = self.dear()
        expected = oracle.answer(shop, request)
        answer = solve(shop, request)
        assert [r.cluster.micro_usd_per_hour for r in answer] == [p.micro_usd for p in expected]
        assert all(r.cluster.micro_usd_per_hour <= request.budget_micro_usd for r in answer)
        assert (answer.status is SolveStatus.NUMERICAL) == bool(answer.doubt)

    def test_one_micro_dollar_decides(self) -> None:
        shop = catalog(
            gpu_type(spot_usd_per_hour="50000.000001", on_demand_usd_per_hour=None),
            cpu_type(on_demand_usd_per_hour="49999.999999"),
        )
        assert len(recommend(shop, "100000")) == 1
        assert len(recommend(shop, "99999.999999")) == 0

    def test_a_weighted_objective_would_lose_the_price(self) -> None:
        # Throughput of 5e12 beside a difference of 1e-6 $/h: no weight could hold both.
        shop = catalog(
            gpu_type(eflops=5e12),
            cpu_type("a-dearer", on_demand_usd_per_hour="0.200001"),
            cpu_type("b-cheaper", on_demand_usd_per_hour="0.2"),
        )
        best = recommend(shop, 3, architecture="tiering", top=2)
        assert best.status is SolveStatus.OPTIMAL
        assert [r.cluster.memory.instance.name for r in best if r.cluster.memory] == [
            "b-cheaper",
            "a-dearer",
        ]


class Liar:
    """A solver that gives answers of its own; ``answer`` gets the variables by name and returns
    values by name.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], dict[str, float] | None]) -> None:
        self._answer = answer

    def available(self) -> bool:
        return True

    def actualSolve(self, lp: Any, **_: Any) -> int:  # noqa: N802  PuLP's name
        variables = {v.name: v for v in lp.variables()}
        values = self._answer(variables)
        if values is None:
            lp.assignStatus(pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound)
            return int(pulp.LpStatusNotSolved)
        for name, variable in variables.items():
            variable.varValue = values.get(name, 0.0)
        lp.assignStatus(pulp.LpStatusOptimal, pulp.LpSolutionOptimal)
        return int(pulp.LpStatusOptimal)


def deceived(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[dict[str, Any]], dict[str, float] | None]
) -> None:
    monkeypatch.setattr(ilp, "_backend", lambda seconds: Liar(answer))


class TestLies:
    """A solver may say anything: the answer is right all the same, and doubt is reported."""

    def assert_right_and_in_doubt(self, answer: Recommendations, words: str) -> None:
        assert answer.status is SolveStatus.NUMERICAL
        assert words in answer.doubt
        expected = recommend(paper(), 3, solver="frontier")
        assert [r.cluster for r in answer] == [r.cluster for r in expected]

    def test_nothing_chosen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        deceived(monkeypatch, lambda variables: {})
        self.assert_right_and_in_doubt(recommend(paper(), 3), "numerical trouble")

    def test_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        deceived(monkeypatch, lambda variables: None)
        self.assert_right_and_in_doubt(recommend(paper(), 3), "numerical trouble")

    def test_a_feasible_plan_that_is_not_the_best(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def first_size(variables: dict[str, Any]) -> dict[str, float]:
            return {min(variables, key=lambda v: int(v[2:])): 1.0}

        deceived(monkeypatch, first_size)
        answer = recommend(paper(), 3, architecture="single-anchor")
        assert answer.status is SolveStatus.NUMERICAL
        assert "disagreed with the exact enumeration" in answer.doubt
        expected = recommend(paper(), 3, architecture="single-anchor", solver="frontier")
        assert [r.cluster for r in answer] == [r.cluster for r in expected]

    @pytest.mark.parametrize("wrong", ["too few nodes", "too many nodes"])
    def test_a_plan_that_breaks_a_constraint_is_not_believed(
        self, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        lies = []

        class Wrong(pulp.HiGHS):  # type: ignore[misc]
            def actualSolve(self, lp: Any) -> Any:  # noqa: N802  PuLP's name
                status = super().actualSolve(lp)
                values = {v.name: v for v in lp.variables()}
                nodes = [
                    v
                    for n, v in values.items()
                    if n.startswith("m_") and v.varValue and v.varValue > 0.5
                ]
                lies.append(wrong)
                nodes[0].varValue = 0.0 if "few" in wrong else nodes[0].upBound
                return status

        options = {"msg": False, "gapRel": 0.0, "gapAbs": 0.0, "threads": 1}
        monkeypatch.setattr(ilp, "_backend", lambda seconds: Wrong(timeLimit=60, **options))
        self.assert_right_and_in_doubt(recommend(paper(), 3), "numerical trouble")
        assert lies

    def test_a_solver_that_contradicts_itself_is_not_believed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A best plan, and then no plan of that value at all."""
        calls = []

        class Forgetful(pulp.HiGHS):  # type: ignore[misc]
            def actualSolve(self, lp: Any) -> Any:  # noqa: N802  PuLP's name
                calls.append(lp)
                if len(calls) == 1:
                    return super().actualSolve(lp)
                lp.assignStatus(pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible)
                return pulp.LpStatusInfeasible

        monkeypatch.setattr(ilp, "_backend", lambda seconds: Forgetful(msg=False))
        blocks = blocks_for(paper(), PlanRequest(budget=Decimal(3), architectures=("tiering",)))
        assert ilp.prove(blocks, 3_000_000, time_limit_s=60) == ilp.SolverResult(
            SolveStatus.NUMERICAL, None, "highs"
        )


class TestTolerance:
    """What passes a row only by the solver's tolerance is excluded.

    A solver that keeps offering it is not believed.
    """

    def test_what_was_excluded_is_not_offered_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = PlanRequest(budget=Decimal(3), architectures=("tiering",), max_nodes=3)
        (block,) = blocks_for(paper(), request)
        offered: list[set[str]] = []

        def answer(variables: dict[str, Any]) -> dict[str, float] | None:
            offered.append(set(variables))
            return {"x_0": 1.0, "y_0": 1.0, "m_0": 1.0}

        deceived(monkeypatch, answer)
        search = search_of(block, request)
        search._worst_value = np.inf
        with pytest.raises(NoProof) as caught:
            search._find({0: 1.0})
        assert caught.value.status is SolveStatus.NUMERICAL
        assert len(offered) == 50

    def test_a_size_that_stands_alone_is_closed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = PlanRequest(budget=Decimal(3), architectures=("single-anchor",), max_nodes=3)
        (block,) = blocks_for(paper(), request)
        offered: list[set[str]] = []

        def answer(variables: dict[str, Any]) -> dict[str, float]:
            offered.append(set(variables))
            return {"x_0": 1.0}

        deceived(monkeypatch, answer)
        search = search_of(block, request)
        search._worst_value = np.inf
        with pytest.raises(NoProof):
            search._find({0: 1.0})
        assert ["x_0" in names for names in offered] == [True, False]


def search_of(block: Block, request: PlanRequest) -> ilp._Search:
    return ilp._Search(block, request.budget_micro_usd, NEVER)


class TestResults:
    def test_the_time_limit_is_a_result(self) -> None:
        answer = recommend(paper(), 3, time_limit_s=1e-6)
        assert answer.status is SolveStatus.TIME_LIMIT
        assert "time limit" in answer.doubt
        assert [r.cluster for r in answer] == [
            r.cluster for r in recommend(paper(), 3, solver="frontier")
        ]

    def test_the_enumeration_needs_no_time_limit(self) -> None:
        assert (
            recommend(paper(), 3, time_limit_s=1e-6, solver="frontier").status
            is SolveStatus.OPTIMAL
        )

    def test_the_time_limit_of_the_proof(self) -> None:
        blocks = blocks_for(paper(), PlanRequest(budget=Decimal(3)))
        assert ilp.prove(blocks, 3_000_000, time_limit_s=-1.0) == ilp.SolverResult(
            SolveStatus.TIME_LIMIT, None, "highs"
        )

    def test_time_runs_out_between_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is not proven to the end is no proof."""
        original = IntegerProgram.minimize
        solves = []

        def late(self: IntegerProgram, objective: Any) -> tuple[int, ...]:
            solves.append(objective)
            if len(solves) >= 2:
                raise NoProof(SolveStatus.TIME_LIMIT)
            return original(self, objective)

        monkeypatch.setattr(IntegerProgram, "minimize", late)
        answer = recommend(paper(), "6.5")
        assert answer.status is SolveStatus.TIME_LIMIT
        assert [r.cluster for r in answer] == [
            r.cluster for r in recommend(paper(), "6.5", solver="frontier")
        ]

    def test_fewer_plans_than_were_asked_for_are_no_failure(self) -> None:
        answer = recommend(paper(), "0.3242", top=5)
        assert answer.status is SolveStatus.OPTIMAL
        assert len(answer) == 1

    def test_infeasible_by_both_solvers(self) -> None:
        for name in ("ilp", "frontier"):
            assert recommend(paper(), 0, solver=name).status is SolveStatus.INFEASIBLE


ALLOWED = SpecifierSet(re.findall('"highspy(.*)"', (ROOT / "pyproject.toml").read_text())[0])
MINORS = ("1.7", "1.8", "1.9", "1.10", "1.11", "1.12", "1.13", "1.14", "1.15", "1.16")


class TestOracle:
    """Every release of the solver that pyproject.toml allows finds what brute force does, and
    prints nothing.
    """

    def test_the_installed_release(self) -> None:
        assert milp_oracle.brute_force(milp_oracle.KNOWN) == pytest.approx(28.2)
        assert milp_oracle.wrong(60) == []

    def test_releases_that_answer_wrongly_or_print_are_excluded(self) -> None:
        for version in ["1.8.1", "1.12.0", "1.14.0", "1.16.0"]:
            assert version not in ALLOWED
            assert importlib.metadata.version("highspy") in ALLOWED

    @pytest.mark.slow
    @pytest.mark.parametrize("minor", MINORS)
    def test_each_minor_release(self, minor: str, tmp_path: Path) -> None:
        """Skips what the package index does not have for this Python."""
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
        ]
        got = subprocess.run(
            [*pip, "--target", tmp_path, f"highspy=={minor}.*"], capture_output=True, text=True
        )
        if got.returncode:
            pytest.skip(f"highspy {minor} cannot be installed here: {got.stderr[-300:]}")
        script = [sys.executable, milp_oracle.__file__, "1000"]
        asked = subprocess.run(
            script, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
        right = asked.returncode == 0 and not asked.stdout
        assert right == (f"{minor}.0" in ALLOWED), (asked.stdout + asked.stderr)[-2000:]


def test_nothing_is_written_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS 1.16 prints a banner from C++ whatever its options say: before the JSON of `recommend
    -o json`.
    """
    assert recommend(paper(), 3).solver == ilp.SOLVER
    assert capfd.readouterr() == ("", "")
