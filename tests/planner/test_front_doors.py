"""One request has one first plan, whichever command asks."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from functools import cache

import pytest
from support.planner.agreement import step_at
from support.planning import recommend

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.training.speed import Training
from deepvm.core.units import as_budget
from deepvm.planner.explain import why_not
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare
from deepvm.services.recommend import sweep

ASKED = [
    pytest.param("resnet18", "300", {}, marks=pytest.mark.slow),
    ("resnet50", "3", {}),
    ("resnet50", "100", {}),
    ("bert-large", "0.5", {}),
    ("llama-8b", "30", {}),
    ("llama-8b", "30", {"objective": "cost-per-work"}),
    ("llama-8b", "30", {"objective": "makespan"}),
    pytest.param("llama-70b", "300", {}, marks=pytest.mark.slow),
    ("llama-405b", "312", {}),
]
asked = pytest.mark.parametrize(("model", "budget", "options"), ASKED)


def answer(model: str, budget: str, options: dict[str, str]) -> Recommendations:
    return _solved(model, budget, tuple(options.items()))


@cache  # several tests look at one answer
def _solved(model: str, budget: str, items: tuple[tuple[str, str], ...]) -> Recommendations:
    options = dict(items)
    tokens = "2B" if options.get("objective") == "makespan" else None
    training = Training(read_workload(model=model, tokens=tokens), PublishedPerformance())
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    return recommend(catalog, budget, training=training, solver="frontier", **options)  # type: ignore[arg-type]


@asked
def test_one_first_plan(model: str, budget: str, options: dict[str, str]) -> None:
    found = answer(model, budget, options)
    first, request = found[0], found.request
    assert compare([found]).ranked[0].recommendation == first
    why = why_not(load_catalog("aws-us-east-1", prices="snapshot"), request, first.cluster.gpu.name)
    assert why.best is not None and str(why.best.cluster) == str(first.cluster)
    assert why.verdict == f"{first.cluster.gpu.name} is in the best cluster"
    (row,) = sweep(
        load_catalog("aws-us-east-1", prices="snapshot"),
        [budget],
        ["deepvm"],
        training=request.training,
        **options,
    )
    assert row.recommendation is not None and str(row.recommendation.cluster) == str(first.cluster)
    step = step_at(found.frontier, Decimal(budget))
    assert step is not None and str(step.recommendation.cluster) == str(first.cluster)


@asked
def test_what_more_money_buys_is_what_it_is_answered(
    model: str, budget: str, options: dict[str, str]
) -> None:
    found = answer(model, budget, options)
    change = found.next_change
    if change is None:
        return
    assert change.gain is not None and change.gain >= 0.05
    assert str(answer(model, str(change.budget), options)[0].cluster) == str(
        change.recommendation.cluster
    )


@asked
def test_a_twin_region_changes_nothing(model: str, budget: str, options: dict[str, str]) -> None:
    found = answer(model, budget, options)
    twin = replace(found, catalog=replace(found.catalog, region="us-east-9"))
    ranked = compare([found, twin]).ranked
    assert ranked[0].recommendation.cluster == found[0].cluster
    assert ranked[0].answer.catalog.region == "us-east-1"


def test_what_to_change_is_true() -> None:
    for model, budget, said in [
        (
            "llama-8b",
            "1",
            "raise the budget, or train less of it with --method lora (from $0.5089/h)",
        ),
        ("llama-70b", "1", "raise the budget"),  # adapters on 70 billion parameters cost more, too
        ("resnet50", "0.1", "raise the budget"),
    ]:
        found = answer(model, budget, {})
        assert found.infeasible is not None and found.infeasible.advice == said
        if "lora" in said:
            catalog = load_catalog("aws-us-east-1", prices="snapshot")
            training = Training(read_workload(model=model, method="lora"), PublishedPerformance())
            first, *_ = recommend(catalog, budget, training=training, solver="frontier")
            cheapest = recommend(catalog, "0.5089", training=training, solver="frontier")
            assert first.usd_per_hour <= Decimal(budget) and cheapest
            assert not recommend(catalog, "0.5088", training=training, solver="frontier")


def test_no_cheaper_method_is_named_that_would_be_late() -> None:
    for deadline, said in (("1h", "raise the budget"), ("400d", "--method lora (from $0.5089/h)")):
        training = Training(read_workload(model="llama-8b", tokens="2B"), PublishedPerformance())
        catalog = load_catalog("aws-us-east-1", prices="snapshot")
        found = recommend(catalog, "1", training=training, deadline=deadline, solver="frontier")
        assert found.infeasible is not None and found.infeasible.advice.endswith(said)


def test_adapters_are_saved_at_their_own_size() -> None:
    """A hint that took the whole model's checkpoint along would name memory nodes for 96 GB."""
    found = answer("llama-8b", "1", {"architecture": "tiering"})
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    training = Training(read_workload(model="llama-8b", method="lora"), PublishedPerformance())
    price = found.infeasible.advice.partition("(from $")[2].partition("/h")[0]  # type: ignore[union-attr]
    cheapest = recommend(
        catalog, price, training=training, architecture="tiering", solver="frontier"
    )
    assert as_budget(cheapest[0].usd_per_hour) == price


def test_a_plan_that_is_surely_slower_never_comes_first() -> None:
    """Each of two steps was in doubt, and both together were not."""
    found = answer("efficientnet-v2-m", "240.83", {})
    assert str(found[0].cluster) == "5 x p6-b200.48xlarge (spot)"
    assert all(
        r.prediction.faster_than_first < 2 / 3
        for r in found[1:]
        if r.usd_per_hour > found[0].usd_per_hour
    )  # type: ignore[union-attr, operator]


def test_a_plan_that_may_miss_the_deadline_comes_later() -> None:
    training = Training(read_workload(params="7B", tokens="20B"), PublishedPerformance())
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    alone = recommend(catalog, "20", training=training, solver="frontier")
    due = recommend(catalog, "20", training=training, deadline="7d", solver="frontier", top=5)
    assert (
        str(alone[0].cluster) == "2 x g7e.48xlarge (spot)"
        and str(due[0].cluster) == "1 x p5.48xlarge (spot)"
    )
    late = [r.outlook.late_probability for r in due if r.outlook]
    assert late[0] is not None and late[0] <= 0.1
    why = why_not(catalog, due.request, "g7e.48xlarge")
    assert re.search(
        r"14\.6% less throughput and misses the deadline in 2\d% of cases; it would", why.verdict
    )


def test_doubt_puts_a_cheaper_plan_first_and_says_so() -> None:
    found = answer("llama-8b", "30", {"objective": "makespan"})
    first, second = found[0], found[1]
    odds = second.prediction.faster_than_first if second.prediction else None
    assert second.throughput > 1.01 * first.throughput and second.usd_per_hour > first.usd_per_hour
    assert odds is not None and 0.5 < odds < 2 / 3
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    why = why_not(catalog, found.request, second.cluster.gpu.name)
    assert "better, but too uncertain" in why.verdict and str(first.cluster) in why.verdict


def test_what_is_compared_with_is_the_best_of_on_demand_vms_alone() -> None:
    for architecture in [(), ("tiering",), ("on-demand", "spot-storage")]:
        for budget in ["1", "30"]:
            training = Training(read_workload(model="bert-large"), PublishedPerformance())
            catalog = load_catalog("aws-us-east-1", prices="snapshot")
            found = recommend(
                catalog, budget, training=training, architecture=architecture
            ).on_demand
            alone = recommend(catalog, budget, training=training, architecture="on-demand")
            assert found is not None and str(found.cluster) == str(alone[0].cluster)
