"""Regions by place: each there is has one."""

from __future__ import annotations

import pytest

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.errors import RequestError
from deepvm.io.user_dirs import read_data

PLACES = read_data("aws/places.json")


def test_places_are_those_of_regions() -> None:
    assert set(PLACES) <= set(DEFAULT_CLOUD.known_regions())
    assert len(set(PLACES.values())) == len(PLACES)
    assert all(DEFAULT_CLOUD.check_region(region) == region for region in PLACES)


@pytest.mark.parametrize(
    ("typed", "region"), [("eu_central_1", "eu-central-1"), ("us-east-1b", "us-east-1")]
)
def test_what_is_no_region_leads_to_one(typed: str, region: str) -> None:
    with pytest.raises(RequestError, match=rf"did you mean {region}\?\)$"):
        DEFAULT_CLOUD.check_region(typed)


@pytest.mark.parametrize(
    ("region", "zones"),
    [
        ("us-east-1", ["us-east-1a", "use1-az6", "us-east-1-bos-1a"]),
        ("ap-northeast-2", ["ap-northeast-2c", "apne2-az1"]),
        ("us-gov-west-1", ["us-gov-west-1b", "usgw1-az2"]),
        ("eu-central-2", ["eu-central-2a"]),
    ],
)
def test_zones_by_name_and_id(region: str, zones: list[str]) -> None:
    assert all(DEFAULT_CLOUD.may_be_zone(zone, region) for zone in zones)
    assert not DEFAULT_CLOUD.may_be_zone(zones[0], "us-east-2")
    assert not DEFAULT_CLOUD.may_be_zone(region, region) and not DEFAULT_CLOUD.may_be_zone(
        "", region
    )
