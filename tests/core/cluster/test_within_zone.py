"""A catalog in one zone: what is sold there, at what it costs there."""

from __future__ import annotations

from decimal import Decimal

import pytest
from support.builders import catalog, cpu_type, gpu_type

from deepvm.core.cluster.instances import Catalog, ZonePrice
from deepvm.errors import RequestError


def shop() -> Catalog:
    zones = (ZonePrice("z1", Decimal("0.3"), "here-a"), ZonePrice("z2", Decimal("0.31"), "here-b"))
    return catalog(
        gpu_type("g", spot_zones=zones),
        gpu_type("offered", zones=("z1",)),
        gpu_type("anywhere"),
        cpu_type("m1", zones=("z1",)),
        cpu_type("m2", zones=("z2",)),
    )


@pytest.mark.parametrize("zone", ["z2", "here-b"])
def test_types_and_prices_are_those_of_the_zone(zone: str) -> None:
    found = shop().within_zone(zone)
    assert [i.name for i in found] == ["g", "anywhere", "m2"]
    assert found["g"].spot_usd_per_hour == Decimal("0.31")
    assert [z.zone for z in found["g"].spot_zones] == ["z2"]
    assert found.absent["m1"] == "m1 is not offered in zone z2"


def test_a_type_without_capacity_there_has_no_spot_price() -> None:
    only = catalog(
        gpu_type("g", spot_zones=(ZonePrice("z1", Decimal("0.3")),)),
        cpu_type("m", zones=("z1", "z2")),
    )
    assert only.within_zone("z2")["g"].spot_usd_per_hour is None


def test_an_unknown_zone_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(RequestError, match=r"zone: 'z9' .*z1 \(here-a\), z2 \(here-b\)"):
        shop().within_zone("z9")


def test_a_catalog_that_tells_of_no_zones_stays_as_it_is() -> None:
    plain = catalog()
    assert plain.within_zone("z1") is plain
