"""Regions by place: each there is has one, and other clouds' names lead to one."""

from __future__ import annotations

import pytest

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.clouds.aws import places
from deepvm.catalog.clouds.aws.places import PLACES, is_zone_of, region_at
from deepvm.errors import RequestError


@pytest.mark.parametrize(
    ("typed", "region"),
    [
        ("virginia", "us-east-1"),
        ("N. Virginia", "us-east-1"),
        ("Oregon", "us-west-2"),
        ("sao-paulo", "sa-east-1"),
        ("tel aviv", "il-central-1"),
        ("EU", "eu-west-1"),
        ("germany", "eu-central-1"),
        ("westus2", "us-west-2"),
        ("us-west", "us-west-2"),
        ("atlantis", ""),
        ("", ""),
    ],
)
def test_places(typed: str, region: str) -> None:
    assert region_at(typed) == region


def test_places_are_those_of_regions() -> None:
    assert set(PLACES) <= set(DEFAULT_CLOUD.known_regions())
    assert set(places._OTHER_NAMES.values()) <= set(PLACES)
    assert len(set(PLACES.values())) == len(PLACES)
    for region, place in PLACES.items():
        assert region_at(place) == DEFAULT_CLOUD.check_region(region) == region


@pytest.mark.parametrize(
    ("typed", "region"), [("Frankfurt", "eu-central-1"), ("us-east-1b", "us-east-1")]
)
def test_what_is_no_region_leads_to_one(typed: str, region: str) -> None:
    with pytest.raises(RequestError, match=rf"did you mean {region}\?$"):
        DEFAULT_CLOUD.check_region(typed)


@pytest.mark.parametrize(
    ("region", "zones"),
    [
        ("us-east-1", ["us-east-1a", "use1-az6", "us-east-1-bos-1a", "use1-bos1-az1"]),
        ("ap-northeast-2", ["ap-northeast-2c", "apne2-az1"]),
        ("us-gov-west-1", ["us-gov-west-1b", "usgw1-az2"]),
        ("eu-central-2", ["euc2-az3"]),
    ],
)
def test_zones_by_name_and_id(region: str, zones: list[str]) -> None:
    assert all(is_zone_of(zone, region) for zone in zones)
    assert not any(is_zone_of(zone, "us-east-2") for zone in zones)
    assert not is_zone_of(region, region) and not is_zone_of("", region)
