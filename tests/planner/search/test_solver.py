"""How a solve can end, what takes over, and that no solver is believed without an exact check."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pulp
import pytest
from support import oracle
from support.builders import catalog, cpu_type, gpu_type, paper
from support.planner.agreement import assert_agree, blocks_for, by_frontier, by_ilp, summary

from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.saturation import SaturationTable
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.errors import SolverError
from deepvm.planner.architectures.formulation import Constraint, Formulation, Pick, SolveStatus, Variable
from deepvm.planner.recommend import Recommendations, recommend
from deepvm.planner.request import PlanRequest
from deepvm.planner.search import ilp, solver
from deepvm.planner.search.solver import IntegerProgram, Solution, available_backends

REAL = solver._backend
NEVER = float("inf")
each_backend = pytest.mark.parametrize("backend", solver.BACKENDS)


def program(
    *constraints: Constraint, upper: Sequence[int] = (5, 5), deadline: float = NEVER, backends: Sequence[str] = ()
) -> IntegerProgram:
    """A few variables between 0 and ``upper``; sizes and prices play no part here."""
    block = blocks_for(paper(), PlanRequest(budget=Decimal(3), max_nodes=2))[0]
    variables = tuple(Variable(f"v_{i}", u) for i, u in enumerate(upper))
    formulation = Formulation(variables, constraints, (0,) * len(upper), block.sizes)
    return IntegerProgram(formulation, deadline=deadline, backends=backends)


def row(terms: dict[int, int], sense: str, bound: int) -> Constraint:
    return Constraint("choose", "test", tuple(terms.items()), sense, bound)  # type: ignore[arg-type]


class TestProgram:
    @each_backend
    def test_optimal(self, backend: str) -> None:
        found = program(row({0: 2, 1: 3}, "<=", 12), backends=[backend]).minimise({0: -2.0, 1: -3.1})
        assert found == Solution(SolveStatus.OPTIMAL, (0, 4), backend)

    @each_backend
    def test_infeasible(self, backend: str) -> None:
        contradiction = (row({0: 1, 1: 1}, "<=", 3), row({0: -1, 1: -1}, "<=", -4))
        found = program(*contradiction, backends=[backend]).minimise({0: 1.0})
        assert found == Solution(SolveStatus.INFEASIBLE, (), backend)

    @each_backend
    def test_no_time_at_all(self, backend: str) -> None:
        late = program(row({0: 1}, "<=", 3), deadline=time.monotonic() - 1, backends=[backend])
        assert late.minimise({0: 1.0}) == Solution(SolveStatus.TIME_LIMIT, (), backend)

    def test_time_runs_out_while_solving(self) -> None:
        # Market split (Cornuejols and Dawande 1998): 60 yes-or-no variables in 6 such rows take hours, not tenths.
        rng = random.Random(1998)
        weights = [[rng.randint(0, 99) for _ in range(60)] for _ in range(6)]
        rows = [row(dict(enumerate(w)), "==", sum(w) // 2) for w in weights]
        hard = program(*rows, upper=[1] * 60, deadline=time.monotonic() + 0.3, backends=["highs"])
        started = time.monotonic()
        found = hard.minimise({0: 1.0})
        assert found.status is SolveStatus.TIME_LIMIT
        assert time.monotonic() - started < 30

    def test_rows_are_divided_by_their_divisor_without_losing_whole_solutions(self) -> None:
        found = program(row({0: 300_000, 1: 200_000}, "<=", 799_999)).minimise({0: -3.0, 1: -2.0})
        assert found.values in ((1, 2), (2, 0))  # 700 000; the bound becomes 7
        assert program(row({0: 4}, "==", 12)).minimise({}).values[0] == 3
        assert program(row({0: 4}, "==", 10)).minimise({}).status is SolveStatus.INFEASIBLE

    def test_rows_and_closed_variables_come_and_go_with_their_scope(self) -> None:
        p = program(row({0: 1, 1: 1}, "<=", 7))
        best = {0: -2.0, 1: -1.0}
        with p.scope():
            p.add(row({0: 1}, "<=", 1))
            assert p.minimise(best).values == (1, 5)
            p.add_real([(1, 1.0)], 2.5)
            assert p.minimise(best).values == (1, 2)
            p.close([0])
            assert not p.is_open(0)
            assert p.minimise(best).values == (0, 2)
        assert p.is_open(0)
        assert p.minimise(best).values == (5, 2)

    def test_what_is_kept_outlives_its_scope(self) -> None:
        p = program(row({0: 1, 1: 1}, "<=", 7))
        with p.scope():
            p.add(row({0: 1}, "<=", 3), keep=True)
            p.close([1], keep=True)
        assert p.minimise({0: -2.0, 1: -1.0}).values == (3, 0)

    def test_a_scope_ends_also_with_an_error(self) -> None:
        p = program(row({0: 1, 1: 1}, "<=", 7))
        with pytest.raises(ZeroDivisionError), p.scope():
            p.close([0, 1])
            raise ZeroDivisionError
        assert p.is_open(0)

    def test_nothing_open(self) -> None:
        p = program(row({0: 1}, "<=", 3))
        p.close([0, 1])
        assert p.minimise({0: 1.0}).status in (SolveStatus.NUMERICAL, SolveStatus.INFEASIBLE)


class TestBackends:
    def test_both_are_here(self) -> None:
        assert available_backends() == ("highs", "cbc")

    def test_none_is_here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        missing = lambda name, seconds: pulp.COIN_CMD(path="/nowhere/cbc")  # noqa: E731
        monkeypatch.setattr(solver, "_backend", missing)
        with pytest.raises(SolverError, match="pip install highspy"):
            available_backends()

    def test_cbc_takes_over_where_highs_cannot_be_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(name: str, seconds: float) -> Any:
            return pulp.COIN_CMD(path="/nowhere/cbc", msg=False) if name == "highs" else REAL(name, seconds)

        monkeypatch.setattr(solver, "_backend", broken)
        assert available_backends() == ("cbc",)
        # Also when it is tried all the same: COIN_CMD raises PulpSolverError.
        found = program(row({0: 1}, "<=", 3), backends=["highs", "cbc"]).minimise({0: -1.0})
        assert (found.status, found.values[0], found.solver) == (SolveStatus.OPTIMAL, 3, "cbc")
        answer = recommend(paper(), 3)
        assert (answer.status, answer.solver) == (SolveStatus.OPTIMAL, "cbc")
        assert str(answer[0].cluster) == "17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand)"

    def test_cbc_takes_over_where_highs_refuses_a_row(self) -> None:
        # HiGHS takes no coefficient of 1e15 or more; PuLP then looks for the value of a row that is not there.
        too_large = row({0: 10**16, 1: 1}, "<=", 3 * 10**16)
        found = program(too_large, upper=(5, 1), backends=["highs", "cbc"]).minimise({0: -1.0})
        assert (found.status, found.solver) == (SolveStatus.OPTIMAL, "cbc")
        alone = program(too_large, upper=(5, 1), backends=["highs"]).minimise({0: -1.0})
        assert alone == Solution(SolveStatus.NUMERICAL, (), "highs")

    def test_the_order_is_the_caller_s(self) -> None:
        assert program(row({0: 1}, "<=", 3), backends=["cbc", "highs"]).minimise({0: -1.0}).solver == "cbc"

    def test_cbc_alone_reproduces_table_vii(self) -> None:
        request = PlanRequest(budget=Decimal(3))
        blocks = blocks_for(paper(), request)
        assert_agree(by_ilp(blocks, request, ["cbc"]), oracle.answer(paper(), request), request)


class TestExactCheck:
    """HiGHS's tolerances are real: it takes plans that cost a micro-dollar too much at 100 000 $/h a VM."""

    def dear(self) -> tuple[Catalog, PlanRequest]:
        shop = catalog(
            gpu_type(on_demand_usd_per_hour=None, spot_usd_per_hour="99999.999999", speedups=(RingSpeedup(0.0, 0.0),)),
            cpu_type("c1", on_demand_usd_per_hour="49999.999999", network_gbps=5),
            cpu_type("c2", on_demand_usd_per_hour="99999.999998", network_gbps=25),
            cpu_type("c3", on_demand_usd_per_hour="50000.000001", network_gbps=1),
            cpu_type("c4", on_demand_usd_per_hour="50000.000001", network_gbps=25),
            default_speedup="ring",
            n_sat=SaturationTable((1.0,), (1,)),
        )
        # 7 + 8 nodes cost 1 099 999.999985 $/h with c1: 3 micro-dollars more than this.
        request = PlanRequest(budget=Decimal("1099999.999982"), max_nodes=12, top=2, architectures=("tiering",))
        return shop, request

    def test_a_plan_that_costs_a_micro_dollar_too_much_is_cut_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shop, request = self.dear()
        cut: list[tuple[Pick, Sequence[str]]] = []
        original = ilp._Search._cut_off

        def spy(self: Any, pick: Pick, broken: Sequence[str]) -> None:
            cut.append((pick, broken))
            original(self, pick, broken)

        monkeypatch.setattr(ilp._Search, "_cut_off", spy)
        found = by_ilp(blocks_for(shop, request), request)
        assert_agree(found, oracle.answer(shop, request), request)
        assert all(c.price <= request.budget_micro_usd for c in found)
        if not cut:
            pytest.skip("this HiGHS rejects the plan by itself")
        assert {tuple(broken) for _, broken in cut} == {("budget",)}

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
        assert [r.cluster.memory.instance.name for r in best if r.cluster.memory] == ["b-cheaper", "a-dearer"]


class Liar:
    """A solver that gives answers of its own; ``answer`` gets the variables by name and returns values by name."""

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


def deceived(monkeypatch: pytest.MonkeyPatch, answer: Callable[[dict[str, Any]], dict[str, float] | None]) -> None:
    monkeypatch.setattr(solver, "_backend", lambda name, seconds: Liar(answer))


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
    def test_a_wrong_first_answer_is_cut_off_and_solved_again(
        self, monkeypatch: pytest.MonkeyPatch, wrong: str
    ) -> None:
        """What the cut removes is infeasible, so the true answer survives it."""
        lies = []

        class Once(pulp.HiGHS):  # type: ignore[misc]
            def actualSolve(self, lp: Any) -> Any:  # noqa: N802  PuLP's name
                status = super().actualSolve(lp)
                values = {v.name: v for v in lp.variables()}
                nodes = [v for n, v in values.items() if n.startswith("m_") and v.varValue and v.varValue > 0.5]
                if not lies and nodes:
                    lies.append(wrong)
                    nodes[0].varValue = 0.0 if "few" in wrong else nodes[0].upBound
                return status

        options = {"msg": False, "gapRel": 0.0, "gapAbs": 0.0, "threads": 1}
        monkeypatch.setattr(solver, "_backend", lambda name, seconds: Once(timeLimit=60, **options))
        request = PlanRequest(budget=Decimal(6), architectures=("tiering",))
        blocks = blocks_for(paper(), request)
        assert_agree(by_ilp(blocks, request), oracle.answer(paper(), request), request)
        assert lies

    def test_a_solver_that_contradicts_itself_is_not_believed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A best plan, and then no plan of that value at all."""
        calls = []

        class Forgetful(pulp.HiGHS):  # type: ignore[misc]
            def actualSolve(self, lp: Any) -> Any:  # noqa: N802  PuLP's name
                calls.append(lp)
                if len(calls) == 1:
                    return super().actualSolve(lp)
                lp.assignStatus(pulp.LpStatusInfeasible, pulp.LpSolutionInfeasible)
                return pulp.LpStatusInfeasible

        monkeypatch.setattr(solver, "_backend", lambda name, seconds: Forgetful(msg=False))
        block = blocks_for(paper(), PlanRequest(budget=Decimal(3), architectures=("tiering",)))[0]
        found = ilp.solve(block, 3_000_000, 1, time_limit_s=60, backends=["highs"])
        assert found.status is SolveStatus.NUMERICAL


class TestRepairs:
    """What breaks a constraint is cut off; a solver that keeps offering it is no longer believed."""

    def test_what_was_cut_off_is_not_offered_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = PlanRequest(budget=Decimal("0.6"), architectures=("single-anchor",), max_nodes=3)
        (block,) = blocks_for(paper(), request)
        formulation = block.architecture.formulate(block.sizes, block.tier, request.budget_micro_usd)
        dearest = int(block.sizes.price.argmax())
        assert formulation.violated([int(i == dearest) for i in range(len(block.sizes))]) == ("budget",)
        offered: list[set[str]] = []

        def answer(variables: dict[str, Any]) -> dict[str, float]:
            offered.append(set(variables))
            return {f"x_{dearest}": 1.0}

        deceived(monkeypatch, answer)
        program = IntegerProgram(formulation, deadline=NEVER, backends=["highs"])
        search = ilp._Search(formulation, block.scoring, program, block.architecture.decode)
        assert search._find({0: 1.0}) == (SolveStatus.NUMERICAL, None)
        assert [f"x_{dearest}" in names for names in offered] == [True, False]

    def test_fifty_repairs_are_enough(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (block,) = blocks_for(paper(), PlanRequest(budget=Decimal("0.3"), architectures=("tiering",)))
        formulation = block.architecture.formulate(block.sizes, block.tier, 300_000)
        asked = []

        def answer(variables: dict[str, Any]) -> dict[str, float]:
            asked.append(variables)
            return {"x_0": 1.0, "y_0": 1.0, "m_0": 1.0}  # 0.225 + 0.21 $/h

        deceived(monkeypatch, answer)
        program = IntegerProgram(formulation, deadline=NEVER, backends=["highs"])
        search = ilp._Search(formulation, block.scoring, program, block.architecture.decode)
        assert search._find({0: 1.0}) == (SolveStatus.NUMERICAL, None)
        assert len(asked) == 50


class TestResults:
    def test_the_time_limit_is_a_result(self) -> None:
        answer = recommend(paper(), 3, time_limit_s=1e-6)
        assert answer.status is SolveStatus.TIME_LIMIT
        assert "time limit" in answer.doubt
        assert [r.cluster for r in answer] == [r.cluster for r in recommend(paper(), 3, solver="frontier")]

    def test_the_enumeration_needs_no_time_limit(self) -> None:
        assert recommend(paper(), 3, time_limit_s=1e-6, solver="frontier").status is SolveStatus.OPTIMAL

    def test_the_time_limit_of_one_block(self) -> None:
        block = blocks_for(paper(), PlanRequest(budget=Decimal(3)))[0]
        found = ilp.solve(block, 3_000_000, 3, time_limit_s=-1.0)
        assert found == ilp.IlpResult(SolveStatus.TIME_LIMIT, (), found.solver)

    def test_time_runs_out_between_ranks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What is proven stays; an unproven plan does not stand behind it."""
        request = PlanRequest(budget=Decimal("6.5"), architectures=("single-anchor",))
        (block,) = blocks_for(paper(), request)
        original = IntegerProgram.minimise
        solves = []

        def late(self: IntegerProgram, objective: Any) -> Solution:
            solves.append(objective)
            found = original(self, objective)
            return found if len(solves) < 2 else Solution(SolveStatus.TIME_LIMIT, found.values, found.solver)

        monkeypatch.setattr(IntegerProgram, "minimise", late)
        found = ilp.solve(block, request.budget_micro_usd, 3, time_limit_s=60)
        assert found.status is SolveStatus.TIME_LIMIT
        assert [summary(c) for c in found.choices] == [summary(by_frontier([block], request)[0])]

    def test_an_unproven_plan_is_better_than_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        request = PlanRequest(budget=Decimal("6.5"), architectures=("tiering",))
        (block,) = blocks_for(paper(), request)
        original = IntegerProgram.minimise

        def late(self: IntegerProgram, objective: Any) -> Solution:
            found = original(self, objective)
            return Solution(SolveStatus.TIME_LIMIT, found.values, found.solver)

        monkeypatch.setattr(IntegerProgram, "minimise", late)
        found = ilp.solve(block, request.budget_micro_usd, 3, time_limit_s=60)
        assert found.status is SolveStatus.TIME_LIMIT
        assert len(found.choices) == 1

    def test_fewer_plans_than_were_asked_for_are_no_failure(self) -> None:
        answer = recommend(paper(), "0.3242", top=5)
        assert answer.status is SolveStatus.OPTIMAL
        assert len(answer) == 1

    def test_infeasible_by_both_solvers(self) -> None:
        for name in ("ilp", "frontier"):
            assert recommend(paper(), 0, solver=name).status is SolveStatus.INFEASIBLE
