from __future__ import annotations

from decimal import Decimal

import pytest
from support.builders import cpu_type, gpu_type, paper, simulated

from deepvm.core.cluster.cluster import Cluster, NodeGroup, Recommendation, Rejection
from deepvm.core.cluster.instances import Market


def test_the_first_row_of_table_vii() -> None:
    shop = paper()
    found = Cluster(
        "tiering", shop["g4dn.xlarge"], 17, 0, NodeGroup(shop["c5.xlarge"], Market.ON_DEMAND, 1)
    )
    assert str(found) == "17 x g4dn.xlarge (spot) + 1 x c5.xlarge (on-demand)"
    assert found.usd_per_hour == Decimal("2.8526")
    assert found.micro_usd_per_hour == 2_852_600
    assert found.gpu_count == 17
    assert [g.count for g in found.groups] == [17, 1]


def test_an_anchor() -> None:
    found = Cluster("single-anchor", paper()["g4dn.xlarge"], 15, 1)
    assert str(found) == "15 x g4dn.xlarge (spot) + 1 x g4dn.xlarge (on-demand)"
    assert found.usd_per_hour == Decimal("2.893")
    assert found.gpu_count == 16


def test_131_j_cost_exactly_8_80() -> None:
    assert Cluster("single-anchor", simulated()["J"], 130, 1).usd_per_hour == Decimal("8.8")


def test_empty_groups_are_left_out() -> None:
    assert (
        Cluster("none", gpu_type(), 0, 0, NodeGroup(cpu_type(), Market.ON_DEMAND, 0)).groups == ()
    )


def test_a_market_without_a_price() -> None:
    with pytest.raises(ValueError, match="gpu.xlarge has no spot price"):
        _ = NodeGroup(gpu_type(spot_usd_per_hour=None), Market.SPOT, 1).micro_usd_per_hour


def test_a_recommendation_costs_what_its_cluster_costs() -> None:
    cluster = Cluster("single-anchor", gpu_type(), 1, 1)
    found = Recommendation(1, cluster, 1.0, 0.5, 100.0, 1.0, 1.0, 0.01, "hybrid")
    assert found.usd_per_hour == Decimal("1.3")
    assert (found.binding, found.warnings) == ((), ())


def test_a_rejection() -> None:
    assert Rejection("p2.xlarge", "unprofiled").detail == ""
