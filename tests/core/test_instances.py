"""Instance types, quotas, catalogues, saturation and clusters refuse what cannot be true and keep what is exact."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from builders import catalog, cpu_type, gpu_type, paper
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.cluster import Cluster, NodeGroup
from deepvm.core.instances import Gpu, InstanceType, Market, Quota, quota_limit
from deepvm.core.performance import flopp
from deepvm.core.saturation import PAPER_TABLE, SaturationTable
from deepvm.core.speedup import HybridSpeedup, RingSpeedup
from deepvm.errors import MissingDataError, RequestError


def test_flopp_is_equation_1() -> None:
    assert flopp(377, 0.1578) == pytest.approx(8.6007e6, rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"name": ""}, "name"),
        ({"name": " x"}, "name"),
        ({"vcpus": 0}, "vcpus"),
        ({"vcpus": 2.5}, "vcpus"),
        ({"memory_gib": 0}, "memory_gib"),
        ({"memory_gib": float("inf")}, "memory_gib"),
        ({"network_gbps": -1}, "network_gbps"),
        ({"eflops": float("nan")}, "eflops"),
        ({"spot_usd_per_hour": 0}, "spot_usd_per_hour"),
        ({"spot_usd_per_hour": -0.1}, "spot_usd_per_hour"),
        ({"on_demand_usd_per_hour": "free"}, "on_demand_usd_per_hour"),
        ({"on_demand_usd_per_hour": "0.1234567"}, "price"),
    ],
)
def test_a_type_that_cannot_be(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(RequestError) as caught:
        InstanceType(**({"name": "x", "vcpus": 4} | changes))
    assert caught.value.option == option


def test_prices_are_exact_however_they_are_written() -> None:
    for price in (0.1578, "0.1578", Decimal("0.1578"), "0.15780000000000"):
        found = InstanceType("x", 4, spot_usd_per_hour=price)  # type: ignore[arg-type]
        assert found.micro_usd_per_hour(Market.SPOT) == 157_800
    assert found.usd_per_hour(Market.ON_DEMAND) is None
    assert found.micro_usd_per_hour(Market.ON_DEMAND) is None
    assert found.memory_bytes is None
    assert InstanceType("x", 4, memory_gib=7.5).memory_bytes == 7.5 * 2**30


def test_general_curves_are_found_by_kind() -> None:
    general, special = HybridSpeedup(1, 2, 3), HybridSpeedup(3, 2, 1, workload="resnet18")
    found = InstanceType("x", 4, speedups=(special, general))
    assert found.curve("hybrid") is general
    assert found.curve("ring") is None
    assert RingSpeedup(0, 0).kind == "ring"


@pytest.mark.parametrize("count", [0, -1, 0.5])
def test_only_whole_gpus(count: Any) -> None:
    with pytest.raises(RequestError, match="whole number"):
        Gpu("T4", count)


def test_quotas_read_their_market_and_refuse_nonsense() -> None:
    assert Quota("G and VT", "spot", 8) == Quota("G and VT", Market.SPOT, 8)  # type: ignore[arg-type]
    for market, vcpus in (("sport", 8), ("spot", -1), ("spot", 2.5)):
        with pytest.raises(RequestError):
            Quota("G and VT", market, vcpus)  # type: ignore[arg-type]
    quotas = (Quota("a", Market.SPOT, 1), Quota("b", Market.ON_DEMAND, 2))
    assert quota_limit(quotas, "b", Market.ON_DEMAND) == 2
    assert quota_limit(quotas, "b", Market.SPOT) is None


def test_catalogues_hold_every_name_once() -> None:
    with pytest.raises(RequestError, match="at least one"):
        catalog(instances=())
    with pytest.raises(RequestError, match=r"instances: 'gpu\.xlarge'"):
        catalog(gpu_type(), gpu_type())
    with pytest.raises(RequestError, match="quotas"):
        catalog(quotas=(Quota("a", Market.SPOT, 1), Quota("a", Market.SPOT, 2)))
    found = paper()
    assert len(found) == len(list(found)) == 11
    assert found["g5.xlarge"].vcpus == 4
    with pytest.raises(MissingDataError, match=r"g6\.xlarge"):
        found["g6.xlarge"]


def test_n_sat_is_table_v_with_the_rule_for_what_lies_between() -> None:
    rows = {0.3: 3, 1.7: 12, 5: 16, 10: 20, 12.5: 24, 15: 24, 25: 28, 30: 32}
    assert dict(zip(PAPER_TABLE.network_gbps, PAPER_TABLE.n_sat, strict=True)) == rows
    found = PAPER_TABLE.lookup(np.array([0.1, 0.3, 1.69, 1.7, 4.999, 5, 29.9, 30, 3200]))
    assert found.tolist() == [3, 3, 3, 12, 12, 16, 28, 32, 32]


@given(st.floats(0.01, 1e4), st.floats(0.01, 1e4))
def test_n_sat_of_a_pair_is_the_smaller_of_the_two(one: float, other: float) -> None:
    pair = PAPER_TABLE.lookup(min(one, other))
    assert pair == min(PAPER_TABLE.lookup(one), PAPER_TABLE.lookup(other))


@pytest.mark.parametrize(
    ("gbps", "n_sat"),
    [
        ((), ()),
        ((1.0,), ()),
        ((0.0,), (1,)),
        ((2.0, 1.0), (1, 2)),
        ((1.0, 1.0), (1, 2)),
        ((1.0, 2.0), (3, 2)),
        ((1.0,), (0,)),
        ((1.0,), (1.5,)),
    ],
)
def test_a_table_that_the_algebra_does_not_hold_for(gbps: Any, n_sat: Any) -> None:
    with pytest.raises(RequestError):
        SaturationTable(gbps, n_sat)


def test_rows_may_come_in_any_order() -> None:
    assert SaturationTable.from_rows([(10, 20), (1, 3)]) == SaturationTable((1.0, 10.0), (3, 20))


def test_a_cluster_adds_up() -> None:
    memory = NodeGroup(cpu_type(on_demand_usd_per_hour="0.17"), Market.ON_DEMAND, 2)
    cluster = Cluster("tiering", gpu_type(spot_usd_per_hour="0.1578"), 32, 0, memory)
    assert cluster.usd_per_hour == Decimal("5.3896")
    assert cluster.gpu_count == 32
    assert str(cluster) == "32 x gpu.xlarge (spot) + 2 x cpu.xlarge (on-demand)"
    anchored = Cluster("single-anchor", gpu_type(), 2, 1)
    assert str(anchored) == "2 x gpu.xlarge (spot) + 1 x gpu.xlarge (on-demand)"
    assert anchored.usd_per_hour == Decimal("1.6")
    with pytest.raises(ValueError, match="no spot price"):
        _ = NodeGroup(gpu_type(spot_usd_per_hour=None), Market.SPOT, 1).micro_usd_per_hour
