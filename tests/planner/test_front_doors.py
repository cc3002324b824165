"""One request has one first plan, whichever command asks."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.training.speed import Training
from deepvm.planner.explain import why_not
from deepvm.planner.recommend import Recommendations, recommend
from deepvm.planner.regions import compare
from deepvm.planner.search.frontier import frontier_of
from deepvm.planner.sweep import sweep

ASKED = [
    ("resnet18", "300", {}),
    ("resnet50", "3", {}),
    ("resnet50", "100", {}),
    ("bert-large", "0.5", {}),
    ("llama-8b", "30", {}),
    ("llama-8b", "30", {"objective": "cost-per-work"}),
    ("llama-8b", "30", {"objective": "makespan"}),
    ("llama-70b", "300", {}),
    ("llama-405b", "312", {}),
]
asked = pytest.mark.parametrize(("model", "budget", "options"), ASKED)


def answer(model: str, budget: str, options: dict[str, str]) -> Recommendations:
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
        load_catalog("aws-us-east-1", prices="snapshot"), [budget], ["deepvm"], training=request.training, **options
    )
    assert row.recommendation is not None and str(row.recommendation.cluster) == str(first.cluster)
    step = frontier_of(found).at(Decimal(budget))
    assert step is not None and str(step.recommendation.cluster) == str(first.cluster)


@asked
def test_what_more_money_buys_is_what_it_is_answered(model: str, budget: str, options: dict[str, str]) -> None:
    found = answer(model, budget, options)
    change = found.next_change
    if change is None:
        return
    assert change.gain is not None and change.gain >= 0.05
    assert str(answer(model, str(change.budget), options)[0].cluster) == str(change.recommendation.cluster)


@asked
def test_a_twin_region_changes_nothing(model: str, budget: str, options: dict[str, str]) -> None:
    found = answer(model, budget, options)
    twin = replace(found, catalog=replace(found.catalog, region="us-east-9"))
    ranked = compare([found, twin]).ranked
    assert ranked[0].recommendation.cluster == found[0].cluster
    assert ranked[0].answer.catalog.region == "us-east-1"


@pytest.mark.parametrize(
    ("model", "budget", "said"),
    [
        ("llama-8b", "1", "raise the budget, or train less of it with --method lora (from 0.5089 $/h)"),
        ("llama-70b", "1", "raise the budget"),  # adapters on 70 billion parameters cost more, too
        ("resnet50", "0.1", "raise the budget"),
    ],
)
def test_what_to_change_is_true(model: str, budget: str, said: str) -> None:
    found = answer(model, budget, {})
    assert found.infeasible is not None and found.infeasible.advice == said
    if "lora" in said:
        catalog = load_catalog("aws-us-east-1", prices="snapshot")
        training = Training(read_workload(model=model, method="lora"), PublishedPerformance())
        first, *_ = recommend(catalog, budget, training=training, solver="frontier")
        cheapest = recommend(catalog, "0.5089", training=training, solver="frontier")
        assert first.usd_per_hour <= Decimal(budget) and cheapest
        assert not recommend(catalog, "0.5088", training=training, solver="frontier")


def test_doubt_puts_a_cheaper_plan_first_and_says_so() -> None:
    found = answer("llama-8b", "30", {"objective": "makespan"})
    first, second = found[0], found[1]
    odds = second.prediction.faster_than_first if second.prediction else None
    assert second.throughput > 1.01 * first.throughput and second.usd_per_hour > first.usd_per_hour
    assert odds is not None and 0.5 < odds < 2 / 3
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    why = why_not(catalog, found.request, second.cluster.gpu.name)
    assert "better, which is not sure enough" in why.verdict and str(first.cluster) in why.verdict
