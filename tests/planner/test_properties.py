"""What must hold of every answer, checked from the clusters alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import oracle
from support.builders import paper, simulated
from support.effort import examples
from support.planner.agreement import blocks_for, enumerated
from support.planner.strategies import Case, cases, repriced, usd

from deepvm.core.cluster.cluster import Cluster, Recommendation
from deepvm.core.cluster.instances import Catalog, Market
from deepvm.planner.recommend import Recommendations, solve
from deepvm.planner.request import Objective, PlanOptions, PlanRequest, PolicyName, SolverName
from deepvm.planner.search.enumeration import Enumeration, SolveStatus
from deepvm.planner.sweep import parse_budgets
from deepvm.services.recommend import sweep


def by_enumeration(case: Case, **changes: object) -> Recommendations:
    return solve(case.catalog, replace(case.request, solver=SolverName.FRONTIER, **changes))  # type: ignore[arg-type]


def clusters(case: Case, **changes: object) -> list[Cluster]:
    """The ranked clusters alone, without everything that is said about them."""
    request = replace(case.request, **changes)  # type: ignore[arg-type]
    return [c.cluster for c in enumerated(blocks_for(case.catalog, request), request)]


def assert_feasible(cluster: Cluster, catalog: Catalog, request: PlanRequest) -> None:
    """Every constraint of DeepVM III-B3, in exact arithmetic."""
    gpu, memory = cluster.gpu, cluster.memory
    price = Fraction(0)
    used: Counter[tuple[str, Market]] = Counter()
    groups = [
        (gpu, Market.SPOT, cluster.spot_count, gpu.spot_usd_per_hour),
        (gpu, Market.ON_DEMAND, cluster.on_demand_count, gpu.on_demand_usd_per_hour),
    ]
    if memory:
        groups.append(
            (memory.instance, memory.market, memory.count, memory.instance.on_demand_usd_per_hour)
        )
    for instance, market, count, usd_per_hour in groups:
        if count:
            assert usd_per_hour is not None
            price += count * Fraction(usd_per_hour)
            used[instance.quota_family, market] += count * instance.vcpus
    assert price == Fraction(cluster.usd_per_hour)
    assert price <= Fraction(request.budget)
    for quota in catalog.quotas if request.quotas is None else request.quotas:
        assert used[quota.family, quota.market] <= quota.vcpus
    assert gpu.gpu is not None
    assert gpu.eflops is not None
    assert cluster.gpu_count <= request.max_nodes
    assert cluster.architecture in (request.architectures or ("single-anchor", "tiering"))
    if cluster.architecture == "spot-storage":
        assert memory is None and cluster.on_demand_count == 0
        return
    if cluster.architecture == "on-demand":
        assert memory is None and cluster.spot_count == 0
        return
    if cluster.architecture == "single-anchor":
        assert memory is None
        assert cluster.on_demand_count == 1
        assert cluster.spot_count >= 1
        return
    assert memory is not None
    assert memory.market is Market.ON_DEMAND
    assert memory.instance.gpu is None
    assert cluster.on_demand_count == 0
    assert cluster.spot_count >= 1
    assert memory.instance.memory_gib is not None
    rule, held = catalog.memory_nodes, (request.checkpoint_bytes, request.buffers)
    assert oracle.holds(memory.instance, memory.count, rule, *held)
    assert memory.count <= 64 or not rule.shared
    assert gpu.network_gbps is not None
    gbps = (
        rule.sustained and memory.instance.network_baseline_gbps
    ) or memory.instance.network_gbps
    assert gbps is not None
    senders = min(oracle.n_sat(catalog.n_sat, gpu.network_gbps), oracle.node_n_sat(catalog, gbps))
    assert cluster.gpu_count < senders * memory.count
    if memory.count > 1 and oracle.holds(memory.instance, memory.count - 1, rule, *held):
        assert cluster.gpu_count >= senders * (memory.count - 1), "one memory node less is enough"


def assert_true(r: Recommendation, catalog: Catalog, request: PlanRequest) -> None:
    """Every amount of a recommendation, computed a second time."""
    kind = request.speedup.value if request.speedup else catalog.default_speedup
    cluster, n = r.cluster, r.cluster.gpu_count
    curve = next(c for c in cluster.gpu.speedups if c.kind == kind and c.workload is None)
    k = oracle.scaling_factor(curve, n)
    eflops = Fraction(cluster.gpu.eflops or 0)
    z = sum(
        count * eflops / Fraction(price)
        for count, price in (
            (cluster.spot_count, cluster.gpu.spot_usd_per_hour),
            (cluster.on_demand_count, cluster.gpu.on_demand_usd_per_hour),
        )
        if count and price
    )
    assert r.speedup_kind == kind
    assert 0 <= r.scaling_factor <= 1
    spot = cluster.gpu.spot_usd_per_hour
    assert (r.flopp_spot is None) == (not spot)
    for claimed, exact in (
        (r.scaling_factor, k),
        (r.speedup, k * n),
        (r.throughput, eflops * n * k),
        (r.z, z * k),
        (r.flopp_spot or 0.0, eflops * 3600 / Fraction(spot) if spot else 0.0),
    ):
        assert math.isclose(claimed, float(exact), rel_tol=1e-9, abs_tol=1e-12)
    if k:
        assert r.usd_per_work is not None
        assert math.isclose(
            r.usd_per_work, float(Fraction(r.usd_per_hour) / (eflops * n * k)), rel_tol=1e-9
        )
    else:
        assert r.usd_per_work is None
    raw = oracle.speedup(curve, n) / n
    assert any("gives a speed-up of" in w for w in r.warnings) == (
        not 0 <= raw <= 1
    ) or math.isclose(raw, 1)
    beyond = kind == "measured" and n > curve.points[-1][0]  # type: ignore[attr-defined]
    assert any("lies beyond its measurements" in w for w in r.warnings) == beyond


@settings(max_examples=examples(200))
@given(case=cases())
def test_every_cluster_is_feasible_and_every_amount_true(case: Case) -> None:
    answer = by_enumeration(case)
    for place, r in enumerate(answer, start=1):
        assert r.rank == place
        assert_feasible(r.cluster, case.catalog, case.request)
        assert_true(r, case.catalog, case.request)
    keys = [
        (r.cluster.architecture, r.cluster.gpu, r.cluster.gpu_count, r.cluster.memory)
        for r in answer
    ]
    assert len(set(keys)) == len(keys)
    assert len(answer) <= case.request.top
    assert bool(answer) == (answer.status is SolveStatus.OPTIMAL)


@settings(max_examples=examples(60))
@given(case=cases())
def test_every_cluster_of_the_integer_program_is_feasible(case: Case) -> None:
    answer = solve(case.catalog, case.request)
    assert answer.doubt == ""
    for r in answer:
        assert_feasible(r.cluster, case.catalog, case.request)


@settings(max_examples=examples(100))
@given(case=cases())
def test_more_money_never_buys_less(case: Case) -> None:
    plans = oracle.plans(case.catalog, case.request)
    prices = sorted({p.micro_usd for p in plans})
    budgets = sorted(
        {usd(max(0, p + d)) for p in prices[:: max(1, len(prices) // 12)] for d in (-1, 0)}
    )
    policy = case.request.policy
    enumeration = Enumeration.build(blocks_for(case.catalog, case.request))
    found = [enumeration.best(int(b * 10**6)) for b in budgets]
    values = [-math.inf if c is None else c.value for c in found]
    assert all(b >= a - abs(a) * 1e-9 for a, b in zip(values, values[1:], strict=False))
    if policy is PolicyName.DEEPVM and case.request.objective is Objective.THROUGHPUT:
        options = {"architecture": case.request.architectures, "max_nodes": case.request.max_nodes}
        rows = sweep(
            case.catalog, budgets, [policy.value], speedup=_speedup(case.request), **options
        )  # type: ignore[arg-type]
        work = [r.recommendation.throughput if r.recommendation else 0.0 for r in rows]
        assert all(b >= a * (1 - 1e-9) for a, b in zip(work, work[1:], strict=False))


def _speedup(request: PlanRequest) -> str | None:
    return request.speedup.value if request.speedup else None


def test_more_money_never_buys_less_in_the_sweeps_of_the_paper() -> None:
    for catalog in (paper(), simulated()):
        rows = sweep(catalog, parse_budgets("0:10:0.05"), ["deepvm"])
        work = [r.recommendation.throughput if r.recommendation else 0.0 for r in rows]
        assert all(b >= a * (1 - 1e-9) for a, b in zip(work, work[1:], strict=False))
        assert work[-1] > 0


@settings(max_examples=examples(100))
@given(case=cases(), data=st.data())
def test_a_dominated_gpu_type_never_wins(case: Case, data: st.DataObject) -> None:
    priced = [
        i
        for i in case.catalog
        if i.gpu and i.eflops and i.spot_usd_per_hour and i.on_demand_usd_per_hour
    ]
    assume(priced)
    good = data.draw(st.sampled_from(priced))
    assert good.eflops
    assert good.spot_usd_per_hour
    assert good.on_demand_usd_per_hour
    more = usd(data.draw(st.sampled_from([1, 1000])))
    # Where VMs are bought on demand alone, their spot price does not make a type worse.
    dearer = [1, 1000] if "on-demand" in case.request.architectures else [0, 1, 1000]
    worse = replace(
        repriced(good, lambda price: price + more),
        name="0-worse",  # first in every tie
        eflops=good.eflops * data.draw(st.sampled_from([1.0, 0.99, 0.5])),
        on_demand_usd_per_hour=good.on_demand_usd_per_hour
        + usd(data.draw(st.sampled_from(dearer))),
        vcpus=good.vcpus + data.draw(st.sampled_from([0, 4])),
        network_gbps=good.network_gbps
        and good.network_gbps * data.draw(st.sampled_from([1.0, 0.1])),
    )
    shop = replace(case.catalog, instances=(worse, *case.catalog))
    assert clusters(Case(shop, case.request), top=1) == clusters(case, top=1)


@settings(max_examples=examples(100))
@given(case=cases(), data=st.data())
def test_a_dominated_memory_node_never_wins(case: Case, data: st.DataObject) -> None:
    priced = [i for i in case.catalog if i.gpu is None and i.on_demand_usd_per_hour]
    assume(priced)
    good = data.draw(st.sampled_from(priced))
    assert good.on_demand_usd_per_hour
    # More vCPUs only cost quota, unless they are what makes it a memory node.
    more_vcpus = [0, 4] if good.vcpus >= case.catalog.memory_nodes.least_vcpus else [0]
    worse = replace(
        good,
        name="0-worse",
        on_demand_usd_per_hour=good.on_demand_usd_per_hour + usd(1),
        vcpus=good.vcpus + data.draw(st.sampled_from(more_vcpus)),
        memory_gib=good.memory_gib and good.memory_gib * data.draw(st.sampled_from([1.0, 0.5])),
    )
    shop = replace(case.catalog, instances=(worse, *case.catalog))
    assert clusters(Case(shop, case.request), top=1) == clusters(case, top=1)


@settings(max_examples=examples(100))
@given(case=cases(), seed=st.integers(0, 1000))
def test_the_order_of_the_catalog_means_nothing(case: Case, seed: int) -> None:
    shuffled = list(case.catalog)
    random.Random(seed).shuffle(shuffled)
    other = Case(replace(case.catalog, instances=tuple(shuffled)), case.request)
    assert clusters(case) == clusters(other)


@settings(max_examples=examples(100))
@given(case=cases())
def test_the_currency_means_nothing(case: Case) -> None:
    def dearer(price: Decimal | None) -> Decimal | None:
        return None if price is None else price * 7

    instances = tuple(
        replace(
            repriced(i, lambda price: price * 7),
            on_demand_usd_per_hour=dearer(i.on_demand_usd_per_hour),
        )
        for i in case.catalog
    )
    other = Case(
        replace(case.catalog, instances=instances),
        replace(case.request, budget=usd(case.request.budget_micro_usd) * 7),
    )

    def shape(case: Case) -> list[tuple[str, int, int]]:
        return [(c.gpu.name, c.spot_count, c.on_demand_count) for c in clusters(case)]

    assert shape(case) == shape(other)


@settings(max_examples=examples(100))
@given(case=cases())
def test_twins_with_later_names_change_nothing(case: Case) -> None:
    twins = tuple(replace(i, name=i.name + "~") for i in case.catalog)
    # "~" sorts after every other character of the names, so a twin stands directly behind its type.
    other = Case(replace(case.catalog, instances=(*twins, *case.catalog)), case.request)
    assert clusters(case, top=1) == clusters(other, top=1)


@settings(max_examples=examples(100))
@given(case=cases())
def test_sweep_and_recommend_give_the_same_best(case: Case) -> None:
    (row,) = sweep(
        case.catalog,
        [case.request.budget],
        [case.request.policy.value],
        checkpoint_size=case.request.checkpoint_bytes,
        buffers=case.request.buffers,
        objective=case.request.objective.value,
        architecture=case.request.architectures,
        speedup=_speedup(case.request),
        max_nodes=case.request.max_nodes,
        quotas=case.request.quotas,
        **_filters(case.request),
    )
    assert row.policy is case.request.policy
    assert row.budget == case.request.budget
    found = [row.recommendation.cluster] if row.recommendation else []
    assert found == clusters(case, top=1)


def _filters(request: PlanRequest) -> PlanOptions:
    """The filters as they are written."""
    return {
        "gpus_min": request.gpus_per_vm.least,
        "gpus_max": request.gpus_per_vm.most,
        "gpu_memory_min": request.gpu_memory_bytes.least,
        "gpu_memory_max": request.gpu_memory_bytes.most,
        "gpu_total_memory_min": request.gpu_total_memory_bytes.least,
        "gpu_total_memory_max": request.gpu_total_memory_bytes.most,
        "cpu_architecture": request.cpu_architecture and request.cpu_architecture.value,
        "generation": request.generation.value,
        "estimates": request.estimates,
        "burstable": request.burstable,
    }
