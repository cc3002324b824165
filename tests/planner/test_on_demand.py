"""What a job takes on VMs that nobody takes away, beside the clusters that are recommended."""

from __future__ import annotations

import math
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.builders import catalog, cpu_type, gpu_type
from support.effort import examples
from support.planning import recommend

from deepvm.core.cluster.instances import Catalog, Market, Quota
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.core.preemption.job import Job, Span

JOB = Job(
    20_000,
    Span(2.0, 2.2),
    save_s=Span.of(5.0),
    allocation_s=Span(60, 200),
    preparation_s=Span(40, 60),
)


def ring(n: int) -> float:
    return n / (1 + 0.5 * (n - 1) / n + 0.02 * (n - 1))


def shop(fast: str, slow: str, vcpus: int = 1000) -> Catalog:
    curve = (RingSpeedup(0.5, 0.02),)
    return catalog(
        gpu_type(
            "fast",
            eflops=400.0,
            on_demand_usd_per_hour=fast,
            spot_usd_per_hour="1.2",
            speedups=curve,
        ),
        gpu_type(
            "slow",
            eflops=100.0,
            on_demand_usd_per_hour=slow,
            spot_usd_per_hour="0.25",
            speedups=curve,
        ),
        cpu_type("node"),
        default_speedup="ring",
        quotas=(Quota("G and VT", Market.ON_DEMAND, vcpus),),
    )


PRICES = st.integers(10, 500).map(lambda cents: f"{cents / 100:.2f}")


@given(
    fast=PRICES,
    slow=PRICES,
    budget=st.integers(100, 3000),
    vcpus=st.sampled_from([4, 40, 1000]),
    objective=st.sampled_from(["makespan", "total-cost", "throughput"]),
    deadline_h=st.sampled_from([None, 3, 12]),
)
@settings(max_examples=examples(200), deadline=None)
def test_it_is_the_best_of_all_clusters_on_demand(
    fast: str, slow: str, budget: int, vcpus: int, objective: str, deadline_h: int | None
) -> None:
    found = recommend(
        shop(fast, slow, vcpus),
        Decimal(budget) / 100,
        job=JOB,
        measured_on="slow",
        mttp="2h",
        save_policy="static:7",  # who is not taken away need not save
        deadline=None if deadline_h is None else f"{deadline_h}h",
        objective=objective,
        max_nodes=30,
    ).on_demand
    values = {}
    for (name, price, eflops), n in product(
        (("fast", fast, 400.0), ("slow", slow, 100.0)), range(1, 31)
    ):
        hourly, throughput = n * Decimal(price), eflops * ring(n)
        total = 130 + 50 + 20_000 * 2.1 * 100.0 / throughput
        if (
            hourly > Decimal(budget) / 100
            or 4 * n > vcpus
            or (deadline_h is not None and total > deadline_h * 3600)
        ):
            continue
        cost = float(hourly) * total / 3600
        values[name, n] = (
            {"makespan": total, "total-cost": cost, "throughput": -throughput}[objective],
            total,
            cost,
        )
    if not values:
        assert found is None
        return
    assert found is not None and found.outlook is not None and found.cluster.memory is None
    assert found.cluster.spot_count == 0 and found.outlook.preemptions == pytest.approx(0, abs=1e-6)
    value, total, cost = values[found.cluster.gpu.name, found.cluster.gpu_count]
    assert value == pytest.approx(min(v for v, _, _ in values.values()), rel=1e-9)
    assert found.outlook.total_s == pytest.approx(total, rel=1e-9)
    assert found.outlook.cost_usd == pytest.approx(cost, rel=1e-9)


def test_without_a_job_there_is_nothing_to_compare() -> None:
    assert recommend(shop("2", "1"), 3).on_demand is None


def test_nearly_as_soon_for_less() -> None:
    """By hand: two VMs of `fast` are hardly sooner than one, of twice the price."""
    curve = (RingSpeedup(1.9, 0.0),)
    flat = catalog(
        gpu_type("fast", eflops=400.0, speedups=curve), cpu_type("node"), default_speedup="ring"
    )
    found = recommend(flat, "0.8", job=JOB, mttp="30d", architecture="tiering")
    assert (
        found.nearly is not None
        and found[0].outlook is not None
        and found.nearly.outlook is not None
    )
    assert (found[0].cluster.gpu_count, found.nearly.cluster.gpu_count) == (2, 1)
    assert found.nearly.outlook.total_s <= found[0].outlook.total_s / 0.95
    assert math.isclose(found.nearly.usd_per_hour, 0.5) and found[0].usd_per_hour == Decimal("0.8")
    assert recommend(flat, "0.8", job=JOB, mttp="30d", objective="total-cost").nearly is None
