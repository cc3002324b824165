"""The ranking, its ties, and the answer as a whole."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support import oracle
from support.builders import catalog, cpu_type, gpu_type, hybrid, paper, simulated
from support.planner.agreement import assert_agree, blocks_for, by_ilp
from support.planning import recommend

from deepvm.core.cluster.instances import Market, Quota
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup
from deepvm.planner.request import PlanRequest
from deepvm.planner.search.enumeration import Enumeration, SolveStatus


def test_it_is_a_sequence() -> None:
    answer = recommend(paper(), 3)
    assert len(answer) == 3
    assert answer[0] is answer.configurations[0]
    assert answer[-1].rank == 3
    assert [r.rank for r in answer] == [1, 2, 3]
    assert [r.rank for r in answer[1:]] == [2, 3]
    assert answer[0] in answer
    assert bool(recommend(paper(), 0)) is False


def test_what_stands_around_it() -> None:
    answer = recommend(paper(), 3)
    assert answer.status is SolveStatus.OPTIMAL
    assert answer.solver == "highs"
    assert (answer.doubt, answer.infeasible) == ("", None)
    assert answer.request == PlanRequest.parse(3)
    assert answer.catalog == paper()
    assert answer.cheapest is not None
    assert answer.cheapest.usd_per_hour == Decimal("0.3242")
    assert recommend(paper(), 3, solver="frontier").solver == "frontier"


def test_the_cheapest_is_named_also_when_nothing_is_feasible() -> None:
    answer = recommend(paper(), "0.3")
    assert answer.cheapest is not None
    assert str(answer.cheapest.cluster) == "1 x g4dn.xlarge (spot) + 1 x t3.xlarge (on-demand)"
    assert recommend(catalog(cpu_type()), 3).cheapest is None


def test_a_clamped_curve_is_a_warning() -> None:
    answer = recommend(simulated(), "0.6", instance_type="F", architecture="tiering")
    assert answer[0].warnings == (
        "the hybrid curve of F gives a speed-up of 1.5 at n = 1, held at 1",
    )
    assert answer[0].speedup == 1


def test_an_extrapolated_curve_is_a_warning() -> None:
    curve = MeasuredSpeedup(((2.0, 1.9), (4.0, 3.6)))
    shop = catalog(gpu_type(speedups=(curve,)), cpu_type(), default_speedup="measured")
    assert recommend(shop, 100, max_nodes=4)[0].warnings == ()
    found = recommend(shop, 100, max_nodes=5)[0]
    assert found.warnings == (
        "the measured speed-up of gpu.xlarge at n = 5 lies beyond its measurements",
    )
    fitted = catalog(gpu_type(speedups=(HybridSpeedup(0.13, 12.9, 6.2, fitted_to=3),)), cpu_type())
    assert "beyond its measurements" in recommend(fitted, 100, max_nodes=4)[0].warnings[0]


def test_baselines_take_clusters_that_train_nothing() -> None:
    """They do not look at the curve: where K = 0, throughput is 0 and work costs nothing that could
    be said.
    """
    shop = catalog(gpu_type(speedups=(HybridSpeedup(0.5, 30, 5),)), cpu_type())
    assert recommend(shop, 3, max_nodes=10).infeasible is not None
    for policy in ("noscale", "cost-first", "performance-first"):
        found = recommend(shop, 3, max_nodes=10, policy=policy)[0]
        assert (found.throughput, found.usd_per_work, found.z) == (0, None, 0)
        assert any("gives a speed-up of -" in w for w in found.warnings)


def test_quotas_of_the_request_replace_those_of_the_catalog() -> None:
    free = recommend(paper(), 100, quotas=[], top=1)[0].cluster
    assert free.gpu_count > 33
    tight = [Quota("G and VT", Market.SPOT, 16)]
    assert recommend(paper(), 100, quotas=tight, top=1)[0].cluster.spot_count == 4


def test_quotas_are_inclusive() -> None:
    for vcpus, count in [(7, 1), (8, 2), (9, 2), (11, 2), (12, 3)]:
        found = recommend(
            paper(),
            100,
            quotas=[Quota("G and VT", Market.SPOT, vcpus)],
            architecture="tiering",
            top=1,
        )
        assert found[0].cluster.spot_count == count


def test_saturation_is_strict() -> None:
    """n/m < 4: exactly four senders already need a second memory node."""
    for count, nodes in [(1, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3), (11, 3), (12, 4)]:
        shop = catalog(
            gpu_type(speedups=hybrid(0.05, 0.3, 40.0), network_gbps=1),
            cpu_type(),
            n_sat=paper().n_sat.from_rows([(1, 4)]),
        )
        found = recommend(shop, 100, architecture="tiering", max_nodes=count, top=1)[0].cluster
        assert found.memory is not None
        assert (found.gpu_count, found.memory.count) == (count, nodes)


def test_the_slower_network_of_the_pair_counts() -> None:
    for gpu_gbps, cpu_gbps in ((0.3, 30), (30, 0.3)):
        shop = catalog(gpu_type(network_gbps=gpu_gbps), cpu_type(network_gbps=cpu_gbps))
        found = recommend(shop, 100, architecture="tiering", max_nodes=3, top=1)[0].cluster
        assert found.memory is not None
        assert (found.gpu_count, found.memory.count) == (3, 2)


def test_memory_is_inclusive() -> None:
    shop = catalog(gpu_type(), cpu_type(memory_gib=8))
    assert recommend(shop, 3, architecture="tiering", checkpoint_size="4GiB")
    assert not recommend(shop, 3, architecture="tiering", checkpoint_size=4 * 2**30 + 1)
    assert not recommend(shop, 3, architecture="tiering", checkpoint_size="4GiB", buffers=3)


class TestTies:
    def test_names_decide_last(self) -> None:
        shop = catalog(gpu_type("b"), gpu_type("a"), cpu_type("d"), cpu_type("c"))
        for solver in ("ilp", "frontier"):
            found = recommend(shop, "0.5", architecture="tiering", top=4, solver=solver)
            names = [
                (r.cluster.gpu.name, r.cluster.memory.instance.name)
                for r in found
                if r.cluster.memory
            ]
            assert names == [("a", "c"), ("a", "d"), ("b", "c"), ("b", "d")]

    def test_fewer_memory_nodes_come_before_names(self) -> None:
        shop = catalog(
            gpu_type(network_gbps=25),
            cpu_type("a-two", on_demand_usd_per_hour="0.1", network_gbps=0.3),
            cpu_type("b-one", on_demand_usd_per_hour="0.2", network_gbps=25),
        )
        for solver in ("ilp", "frontier"):
            found = recommend(shop, 100, architecture="tiering", max_nodes=3, top=2, solver=solver)
            assert [r.cluster.memory.instance.name for r in found if r.cluster.memory] == [
                "b-one",
                "a-two",
            ]
            assert found[0].usd_per_hour == found[1].usd_per_hour

    def test_the_price_comes_before_fewer_memory_nodes(self) -> None:
        shop = catalog(
            gpu_type(network_gbps=25),
            cpu_type("two", on_demand_usd_per_hour="0.099999", network_gbps=0.3),
            cpu_type("one", on_demand_usd_per_hour="0.2", network_gbps=25),
        )
        found = recommend(shop, 100, architecture="tiering", max_nodes=3, top=1)[0]
        assert found.cluster.memory is not None
        assert found.cluster.memory.instance.name == "two"

    def test_single_anchor_comes_before_tiering(self) -> None:
        shop = catalog(gpu_type(on_demand_usd_per_hour="0.5"), cpu_type())
        found = recommend(shop, "0.8", max_nodes=2, top=2)
        assert [r.cluster.architecture for r in found] == ["single-anchor", "tiering"]
        assert found[0].usd_per_hour == found[1].usd_per_hour

    @pytest.mark.parametrize(("factor", "tied"), [(1 + 1e-12, True), (1 + 1e-7, False)])
    def test_values_within_a_billionth_are_equal(self, factor: float, tied: bool) -> None:
        shop = catalog(
            gpu_type("faster", eflops=100.0 * factor, spot_usd_per_hour="0.300001"),
            gpu_type("cheaper"),
            cpu_type(),
        )
        for solver in ("ilp", "frontier"):
            found = recommend(shop, 3, architecture="tiering", max_nodes=4, top=1, solver=solver)[0]
            assert found.cluster.gpu.name == ("cheaper" if tied else "faster")

    def test_names_decide_also_between_values_that_differ_by_rounding(self) -> None:
        shop = catalog(gpu_type("a"), gpu_type("b", eflops=100.0 * (1 + 1e-13)), cpu_type())
        for solver in ("ilp", "frontier"):
            for architecture in ("single-anchor", "tiering"):
                found = recommend(
                    shop, 3, architecture=architecture, max_nodes=4, top=2, solver=solver
                )
                assert [r.cluster.gpu.name for r in found] == ["a", "b"]
                assert found.doubt == ""


def test_a_cheap_memory_node_with_a_small_quota_does_not_hide_a_dearer_one() -> None:
    shop = catalog(
        gpu_type(speedups=hybrid(0.05, 0.3, 40.0)),
        cpu_type("cheap", on_demand_usd_per_hour="0.1", network_gbps=25, quota_family="small"),
        cpu_type("dear", on_demand_usd_per_hour="0.2", network_gbps=25, quota_family="large"),
        n_sat=paper().n_sat.from_rows([(1, 4)]),
        quotas=(Quota("small", Market.ON_DEMAND, 7),),  # one node of 4 vCPUs, not two
    )
    for solver in ("ilp", "frontier"):
        found = recommend(shop, 100, architecture="tiering", max_nodes=4, top=1, solver=solver)[
            0
        ].cluster
        assert found.memory is not None
        assert (found.gpu_count, found.memory.instance.name, found.memory.count) == (4, "dear", 2)


def test_the_ranking_has_no_gaps() -> None:
    for top in [1, 2, 5, 100]:
        request = PlanRequest(budget=Decimal("1.2"), top=top)
        expected = oracle.answer(paper(), request)
        blocks = blocks_for(paper(), request)
        assert_agree(Enumeration.build(blocks, top).top(1_200_000, top), expected, request)
        if top <= 5:
            assert_agree(by_ilp(blocks, request), expected[:1], request)
