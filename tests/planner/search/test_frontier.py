"""The answer at every budget, compared with asking budget by budget."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import catalog, cpu_type, gpu_type, paper, simulated
from support.effort import examples
from support.planner.agreement import blocks_for, step_at
from support.planner.strategies import Case, cases, usd
from support.planning import recommend

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.training.speed import Training
from deepvm.core.units import MICRO_USD
from deepvm.planner.ranking import firsts, weighed
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import Rank, SolverName
from deepvm.planner.search.enumeration import Enumeration
from deepvm.planner.search.frontier import Frontier

A_MICRO = Decimal(1) / MICRO_USD


def asked(answer: Recommendations, budget: Decimal) -> str:
    """What the planner answers for another budget."""
    found = solve(
        answer.catalog, replace(answer.request, budget=budget, solver=SolverName.FRONTIER)
    )
    return str(found[0].cluster) if found else "nothing"


def told(found: Frontier, budget: Decimal) -> str:
    step = step_at(found, budget)
    return str(step.recommendation.cluster) if step else "nothing"


@settings(max_examples=examples(60))
@given(
    case=cases(),
    rank=st.sampled_from(list(Rank)),
    shares=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_it_is_what_the_planner_answers_at_every_budget(
    case: Case, rank: Rank, shares: list[float]
) -> None:
    answer = solve(case.catalog, replace(case.request, rank=rank, solver=SolverName.FRONTIER))
    found = answer.frontier
    most = int(found.most * MICRO_USD)
    for budget in {*(usd(int(most * share)) for share in shares), answer.request.budget}:
        if budget <= found.most:
            assert told(found, budget) == asked(answer, budget)


@settings(max_examples=examples(60))
@given(case=cases(), rank=st.sampled_from(list(Rank)))
def test_each_step_is_where_the_answer_changes(case: Case, rank: Rank) -> None:
    answer = solve(case.catalog, replace(case.request, rank=rank, solver=SolverName.FRONTIER))
    found = answer.frontier
    for step in found.steps[:6]:
        assert (
            told(found, step.budget)
            == asked(answer, step.budget)
            == str(step.recommendation.cluster)
        )
        if step.budget:
            assert asked(answer, step.budget - A_MICRO) == told(found, step.budget - A_MICRO)


@settings(max_examples=examples(60))
@given(case=cases())
def test_only_plans_near_the_best_are_looked_at_and_none_is_missed(case: Case) -> None:
    """Every price of the enumeration, not only those that :func:`firsts` looks at."""
    enumeration = Enumeration.build(blocks_for(case.catalog, case.request), case.request.top)
    if not len(enumeration):
        return
    most = int(enumeration.price[min(len(enumeration), 300) - 1])
    steps = list(firsts(enumeration, most))
    for price in np.unique(enumeration.price[enumeration.price <= most]).tolist():
        told = next(choice for budget, choice in reversed(steps) if budget <= price)
        best = weighed(enumeration, price, 1)[0]
        assert (told.cluster, told.price) == (best.cluster, best.price)


@pytest.fixture(scope="module")
def trained() -> Recommendations:
    training = Training(read_workload(model="llama-8b", method="fsdp"), PublishedPerformance())
    return recommend(
        load_catalog("aws-us-east-1", prices="snapshot"), 30, training=training, solver="frontier"
    )


def test_a_model_on_real_prices(trained: Recommendations) -> None:
    found = trained.frontier
    assert found.most == 60
    assert found.steps[0].budget == trained.cheapest.usd_per_hour  # type: ignore[union-attr]
    assert told(found, trained.request.budget) == str(trained[0].cluster)
    budgets = [s.budget for s in found.steps]
    assert budgets == sorted(set(budgets))
    for budget in [*budgets[::3], budgets[-1] - A_MICRO, Decimal("0.01"), Decimal(60)]:
        assert told(found, budget) == asked(trained, budget)
    assert trained.next_change is not None
    assert trained.next_change.budget in budgets


def test_the_fate_of_each_gpu_type(trained: Recommendations) -> None:
    found, rejections = trained.frontier, {r.instance_type: r for r in trained.rejections}
    names = [t.instance_type for t in found.types]
    assert names == sorted(i.name for i in trained.catalog if i.gpu is not None)
    for fate in found.types:
        assert (fate.best is None) == (fate.rejection is not None), fate.instance_type
        assert fate.rejection == rejections.get(fate.instance_type)
        if fate.best is not None:
            assert fate.best.cluster.gpu.name == fate.instance_type
            assert fate.best.usd_per_hour <= trained.request.budget
    winner = next(t for t in found.types if t.instance_type == trained[0].cluster.gpu.name)
    assert (
        winner.gap == 0
        and winner.best is not None
        and str(winner.best.cluster) == str(trained[0].cluster)
    )
    # What is faster for sure would have won
    assert min(t.gap for t in found.types if t.gap is not None) > -0.26


def test_all_machines_stand_beside_it(trained: Recommendations) -> None:
    found = trained.frontier.machines
    rows = list(zip(found.type_index, found.spot, found.on_demand, strict=True))
    assert len(set(rows)) == len(rows) == len(found.usd_per_hour) > 1000
    assert (np.diff(found.usd_per_hour) >= 0).all() and found.usd_per_hour[-1] <= 60
    best = trained[0]
    at = rows.index(
        (
            found.types.index(best.cluster.gpu.name),
            best.cluster.spot_count,
            best.cluster.on_demand_count,
        )
    )
    assert found.usd_per_hour[at] == float(best.usd_per_hour)
    assert best.prediction is not None
    assert found.effective[at] == pytest.approx(best.throughput * best.prediction.kept.value)


def test_without_a_model_it_is_the_running_maximum() -> None:
    answer = recommend(paper(), 3)
    found = answer.frontier
    speeds = [s.recommendation.throughput for s in found.steps]
    assert speeds == sorted(speeds) and len(speeds) > 10
    for tenths in range(0, 61, 3):
        assert told(found, Decimal(tenths) / 10) == asked(answer, Decimal(tenths) / 10)


def test_a_budget_that_buys_nothing_shows_what_more_would() -> None:
    answer = recommend(paper(), "0.1")
    found = answer.frontier
    assert answer.cheapest is not None
    assert step_at(found, answer.request.budget) is None
    assert found.most == 2 * answer.cheapest.usd_per_hour
    assert found.steps[0].budget == answer.cheapest.usd_per_hour
    assert {t.rejection.reason for t in found.types if t.rejection} == {"budget"}


def test_without_any_cluster_there_are_no_steps() -> None:
    found = recommend(catalog(gpu_type(eflops=None), cpu_type()), 3).frontier
    assert (
        found.steps == ()
        and not found.machines.usd_per_hour.size
        and step_at(found, Decimal(3)) is None
    )
    assert [t.rejection.reason for t in found.types if t.rejection] == ["unprofiled"]


def test_other_objectives_have_their_own_steps() -> None:
    answer = recommend(simulated(), 4, objective="cost-per-work")
    found = answer.frontier
    costs = [s.recommendation.usd_per_work for s in found.steps]
    assert costs == sorted(costs, key=lambda c: -(c or 0))
    assert told(found, Decimal(4)) == str(answer[0].cluster)
