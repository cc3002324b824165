from __future__ import annotations

from dataclasses import FrozenInstanceError
from decimal import Decimal
from typing import Any

import pytest
from builders import catalog, cpu_type, gpu_type, hybrid

from deepvm.core.instances import Gpu, Market, Quota, quota_limit
from deepvm.core.performance import flopp
from deepvm.core.speedup import HybridSpeedup, RingSpeedup
from deepvm.errors import MissingDataError, RequestError


def test_prices_are_kept_exactly() -> None:
    found = gpu_type(spot_usd_per_hour=0.1578, on_demand_usd_per_hour="0.526")
    assert found.spot_usd_per_hour == Decimal("0.1578")
    assert found.usd_per_hour(Market.ON_DEMAND) == Decimal("0.526")
    assert found.usd_per_hour(Market.SPOT) == Decimal("0.1578")
    assert found.micro_usd_per_hour(Market.SPOT) == 157_800
    assert gpu_type(spot_usd_per_hour=None).micro_usd_per_hour(Market.SPOT) is None


def test_memory_in_bytes() -> None:
    assert gpu_type(memory_gib=7.5).memory_bytes == 15 * 2**29
    assert gpu_type(memory_gib=None).memory_bytes is None


def test_the_general_curve_is_the_one_without_a_workload() -> None:
    special = HybridSpeedup(0.1, 10, 5, workload="resnet")
    found = gpu_type(speedups=(special, *hybrid(), RingSpeedup(1, 0)))
    assert found.curve("hybrid") == hybrid()[0]
    assert found.curve("ring") == RingSpeedup(1, 0)
    assert found.curve("measured") is None
    assert gpu_type(speedups=(special,)).curve("hybrid") is None


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"name": ""}, "name"),
        ({"name": " g5"}, "name"),
        ({"vcpus": 0}, "vcpus"),
        ({"vcpus": 2.5}, "vcpus"),
        ({"vcpus": float("nan")}, "vcpus"),
        ({"vcpus": float("inf")}, "vcpus"),
        ({"memory_gib": 0}, "memory_gib"),
        ({"memory_gib": float("inf")}, "memory_gib"),
        ({"network_gbps": -1}, "network_gbps"),
        ({"network_gbps": float("nan")}, "network_gbps"),
        ({"eflops": 0}, "eflops"),
        ({"spot_usd_per_hour": 0}, "spot_usd_per_hour"),
        ({"spot_usd_per_hour": "-1"}, "spot_usd_per_hour"),
        ({"on_demand_usd_per_hour": "much"}, "on_demand_usd_per_hour"),
        ({"on_demand_usd_per_hour": 1e10}, "on_demand_usd_per_hour"),
        ({"on_demand_usd_per_hour": "0.1234567"}, "price"),
    ],
)
def test_figures_that_cannot_be_true(changes: dict[str, Any], option: str) -> None:
    with pytest.raises(RequestError) as caught:
        gpu_type(**({"name": "g"} | changes))
    assert caught.value.option == option


@pytest.mark.parametrize("count", [0, -1, 1.5, float("nan"), float("inf")])
def test_a_fraction_of_a_gpu(count: Any) -> None:
    with pytest.raises(RequestError, match="gpu.count"):
        Gpu("T4", count)


def test_a_type_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        gpu_type().vcpus = 8  # type: ignore[misc]


def test_quotas() -> None:
    quotas = (Quota("G", Market.SPOT, 128), Quota("G", "on-demand", 0))  # type: ignore[arg-type]
    assert quota_limit(quotas, "G", Market.SPOT) == 128
    assert quota_limit(quotas, "G", Market.ON_DEMAND) == 0
    assert quota_limit(quotas, "P", Market.SPOT) is None
    for vcpus in (-1, 1.5, float("nan"), float("inf")):
        with pytest.raises(RequestError, match="vcpus"):
            Quota("G", Market.SPOT, vcpus)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="market: 'reserved' cannot be used; allowed: spot or on-demand"):
        Quota("G", "reserved", 1)  # type: ignore[arg-type]


def test_a_catalogue_holds_its_types() -> None:
    found = catalog(gpu_type("a"), cpu_type("b"))
    assert [i.name for i in found] == ["a", "b"]
    assert len(found) == 2
    assert found["b"].gpu is None
    with pytest.raises(MissingDataError, match="has no instance type 'c'"):
        found["c"]


def test_names_and_quotas_stand_once() -> None:
    with pytest.raises(RequestError, match="instances: 'a'"):
        catalog(gpu_type("a"), cpu_type("a"))
    with pytest.raises(RequestError, match="quotas: 'G spot'"):
        catalog(gpu_type(), quotas=(Quota("G", Market.SPOT, 1), Quota("G", Market.SPOT, 2)))
    with pytest.raises(RequestError, match="at least one instance type"):
        catalog(instances=())


def test_flopp_is_equation_1() -> None:
    assert flopp(377, 0.1578) == pytest.approx(8_600_760.456)
    assert flopp(100, 2.0) == 180_000
