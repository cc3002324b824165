from __future__ import annotations

from dataclasses import FrozenInstanceError
from decimal import Decimal

import numpy as np
import pytest
from support.builders import catalog, cpu_type, gpu_type, hybrid

from deepvm.core.cluster.instances import Gpu, Market, Quota, ZonePrice, flopp, quota_limit
from deepvm.core.cluster.memory_nodes import SaturationTable
from deepvm.core.cluster.speedup import HybridSpeedup, RingSpeedup
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


def test_figures_that_cannot_be_true() -> None:
    for changes, option in [
        ({"name": ""}, "name"),
        ({"name": " g5"}, "name"),
        ({"vcpus": 0}, "vcpus"),
        ({"vcpus": 2.5}, "vcpus"),
        ({"vcpus": float("nan")}, "vcpus"),
        ({"vcpus": float("inf")}, "vcpus"),
        ({"vcpus": "4"}, "vcpus"),
        ({"vcpus": True}, "vcpus"),
        ({"vcpus": None}, "vcpus"),
        ({"interruption_band": 5}, "interruption_band"),
        ({"interruption_band": -1}, "interruption_band"),
        ({"interruption_band": Decimal("1.5")}, "interruption_band"),
        ({"interruption_band": True}, "interruption_band"),
        ({"interruption_band": "4"}, "interruption_band"),
        ({"memory_gib": "16"}, "memory_gib"),
        ({"memory_gib": True}, "memory_gib"),
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
    ]:
        with pytest.raises(RequestError) as caught:
            gpu_type(**({"name": "g"} | changes))
        assert caught.value.option == option


def test_a_fraction_of_a_gpu() -> None:
    for count in [0, -1, 1.5, float("nan"), float("inf"), Decimal("1.5"), "2", True]:
        with pytest.raises(RequestError, match="gpu.count"):
            Gpu("T4", count)


def test_whole_numbers_are_kept_as_int_and_others_as_float() -> None:
    """JSON and CSV give Decimals, tables give numpy's.

    What indexes a table or goes into JSON must be Python's own.
    """
    for read in [int, float, Decimal, np.int64, np.float64]:
        gpu = Gpu("T4", read(2), memory_gib=read(16))
        found = gpu_type(
            vcpus=read(4),
            interruption_band=read(3),
            memory_gib=read(8),
            network_gbps=read(10),
            eflops=read(9),
        )
        quota = Quota("G", Market.SPOT, read(8), read(2))
        n_sat = SaturationTable((read(1), read(5)), (read(3), read(12)))
        whole = [
            gpu.count,
            found.vcpus,
            found.interruption_band,
            quota.vcpus,
            quota.in_use,
            *n_sat.n_sat,
        ]
        assert whole == [2, 4, 3, 8, 2, 3, 12] and {type(w) for w in whole} == {int}
        real = [
            gpu.memory_gib,
            found.memory_gib,
            found.network_gbps,
            found.eflops,
            *n_sat.network_gbps,
        ]
        assert real == [16, 8, 10, 9, 1, 5] and {type(r) for r in real} == {float}


def zones(**usd: str) -> tuple[ZonePrice, ...]:
    return tuple(ZonePrice(name, Decimal(price)) for name, price in usd.items())


def test_a_type_costs_what_its_first_zone_does_and_the_others_stand_cheapest_first() -> None:
    found = gpu_type(spot_usd_per_hour="0.3", spot_zones=zones(a="0.3", b="0.5", c="0.4", d="0.2"))
    assert [z.zone for z in found.spot_zones] == ["a", "d", "c", "b"]
    moved = found.in_zone(found.spot_zones[2])
    assert moved.spot_usd_per_hour == Decimal("0.4") and [z.zone for z in moved.spot_zones] == [
        "c",
        "d",
        "a",
        "b",
    ]


def test_zones_that_contradict_the_price_or_stand_twice() -> None:
    for price, rows, value in [
        ("0.3", zones(a="0.2"), Decimal("0.2")),
        ("0.3", zones(a="0.2", b="0.3"), Decimal("0.2")),
        (None, zones(a="0.2"), Decimal("0.2")),
        ("0.3", (*zones(a="0.3"), *zones(a="0.4")), "a"),
        ("0.3", (*zones(a="0.3"), *zones(a="0.3")), "a"),
    ]:
        with pytest.raises(RequestError, match="spot_zones") as caught:
            gpu_type(spot_usd_per_hour=price, spot_zones=rows)
        assert caught.value.value == value


def test_prices_of_zones_are_exact() -> None:
    assert ZonePrice("a", 0.3).usd_per_hour == Decimal("0.3")  # type: ignore[arg-type]
    for price in (0, "cheap", "0.1234567", True):
        with pytest.raises(RequestError):
            ZonePrice("a", price)  # type: ignore[arg-type]


def test_a_catalog_sells_its_types_in_their_cheapest_zone() -> None:
    somewhere = gpu_type("g", spot_usd_per_hour="0.3", spot_zones=zones(a="0.3", b="0.2", c="0.25"))
    found = catalog(somewhere, cpu_type())["g"]
    assert found.spot_usd_per_hour == Decimal("0.2") and [z.zone for z in found.spot_zones] == [
        "b",
        "c",
        "a",
    ]


def test_the_first_burstable_types_are_burstable_too() -> None:
    assert cpu_type("t1.micro").burstable and not cpu_type("t11.micro").burstable


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
    with pytest.raises(RequestError, match=r"market: 'reserved' \(expected spot or on-demand"):
        Quota("G", "reserved", 1)  # type: ignore[arg-type]


def test_a_catalog_holds_its_types() -> None:
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
