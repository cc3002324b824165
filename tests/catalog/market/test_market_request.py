"""What may be asked of a market."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.prices import PriceBasis
from deepvm.errors import RequestError

LIVE, SNAPSHOT = MarketRequest(prices="live"), MarketRequest(prices="snapshot")


def test_live_prices_are_not_read_offline() -> None:
    with pytest.raises(RequestError, match="^prices does not go with --offline"):
        MarketRequest(prices="live", offline=True)


def test_values_that_cannot_be_used_are_named() -> None:
    for option, given in [
        ("prices", {"prices": "today"}),
        ("prices", {"prices": ""}),
        ("price_basis", {"price_basis": "mean"}),
        ("price_basis", {"price_basis": "P95"}),
        *(
            ("days", {"days": days})
            for days in (0, 91, 1.5, True, False, -1, "", "seven", "1e1", "٣", 1000)
        ),
        ("network", {"network": "fast"}),
        ("network", {"network": ""}),
    ]:
        with pytest.raises(RequestError, match=f"for {option}: ") as caught:
            MarketRequest(**given)
        assert (caught.value.option, caught.value.value) == (option, given[option])
        with pytest.raises(RequestError, match=f"for {option}: "):
            load_catalog("aws-us-east-1", **{"offline": True, "prices": "snapshot"} | given)


def test_values_that_can_be_used() -> None:
    for given, meant in [
        ({}, MarketRequest()),
        ({"days": " 90 "}, MarketRequest(days=90)),
        ({"days": 1, "price_basis": "p95"}, MarketRequest(price_basis=PriceBasis.P95, days=1)),
        ({"prices": "snapshot", "offline": True}, replace(SNAPSHOT, offline=True)),
        ({"zone": "use1-az4", "profile": "work"}, MarketRequest(profile="work", zone="use1-az4")),
        ({"prices": "live", "network": "baseline"}, replace(LIVE, network="baseline")),
    ]:
        assert MarketRequest(**given) == meant
