"""Regions by place: each there is has one, and other clouds' names lead to one."""

from __future__ import annotations

import pytest

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.clouds.aws import places
from deepvm.catalog.clouds.aws.places import PLACES, region_at
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


@pytest.mark.parametrize(("typed", "region"), [("Frankfurt", "eu-central-1"), ("us-east-1b", "us-east-1")])
def test_what_is_no_region_leads_to_one(typed: str, region: str) -> None:
    with pytest.raises(RequestError, match=rf"did you mean {region}\?$"):
        DEFAULT_CLOUD.check_region(typed)
