"""Signals joined into a catalog."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from deepvm.catalog.market.build_catalog import MarketRequest, RegionMarket
from deepvm.catalog.signals.signal import Signal
from deepvm.core.cluster.instances import Catalog, Market
from deepvm.core.cluster.prices import PriceBasis
from deepvm.errors import MissingDataError, RequestError

NOW = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)
SPEC = {
    "vcpus": 4,
    "memory_gib": 16.0,
    "baseline_gbps": 5.0,
    "peak_gbps": 25.0,
    "arch": "x86_64",
    "current": True,
}
T4 = {"gpu": {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0}}
FACTS: dict[str, Any] = {
    "specs": {
        "g4dn.xlarge": SPEC | T4,
        "c5.xlarge": SPEC,
        "x.none": SPEC,
        "trn1.2xlarge": SPEC | {"unusable": "why"},
    },
    "on-demand": {"g4dn.xlarge": "0.526", "c5.xlarge": "0.17", "trn1.2xlarge": "1.34"},
    "spot": {
        "g4dn.xlarge": {"use1-az1": ["0.21", "2026-11-21T09:00:00Z"], "use1-az2": ["0.19", ""]}
    },
    "zones": {"use1-az1": "us-east-1c", "use1-az2": "us-east-1a"},
    "offerings": {
        "g4dn.xlarge": ["use1-az1", "use1-az2"],
        "c5.xlarge": ["use1-az1"],
        "trn1.2xlarge": ["use1-az1"],
    },
    "advisor": {"g4dn.xlarge": 3},
    "quotas": [
        {"family": "G and VT", "market": "spot", "code": "L-3819A6DF", "vcpus": 64, "in_use": 8}
    ],
}


def signals(origin: str = "live", minutes: int = 3, **changes: Any) -> dict[str, Signal]:
    data = {k: v for k, v in (FACTS | changes).items() if v is not None}
    observed = NOW - timedelta(minutes=minutes)
    return {
        k: Signal(k, "us-east-1", observed, f"said {k}", v, origin=origin) for k, v in data.items()
    }


def joined(found: dict[str, Signal] | None = None, **choice: Any) -> Catalog:
    return RegionMarket("us-east-1", found or signals(), MarketRequest(**choice), NOW).catalog()


def test_each_figure_comes_from_its_signal() -> None:
    catalog = joined()
    gpu = catalog["g4dn.xlarge"]
    assert (gpu.on_demand_usd_per_hour, gpu.spot_usd_per_hour) == (
        Decimal("0.526"),
        Decimal("0.19"),
    )
    assert [str(z) for z in gpu.spot_zones] == ["use1-az2 (us-east-1a)", "use1-az1 (us-east-1c)"]
    assert (gpu.network_gbps, gpu.network_baseline_gbps, gpu.interruption_band) == (25, 5, 3)
    assert gpu.quota_family == "G and VT"
    assert catalog["c5.xlarge"].spot_usd_per_hour is None
    assert catalog["trn1.2xlarge"].unusable == "why"
    quota = catalog.quotas[0]
    assert (quota.family, quota.market, quota.left) == ("G and VT", Market.SPOT, 56)
    assert quota.label == "All G and VT Spot Instance Requests (L-3819A6DF)"


def test_types_without_a_price_are_absent_with_the_reason() -> None:
    catalog = joined()
    assert "x.none" not in catalog.by_name
    assert catalog.absent["x.none"] == "x.none has no price in us-east-1"
    assert "P2" in catalog.absent["p2.*"]


@pytest.mark.parametrize("zone", ["use1-az1", "us-east-1c"])
def test_a_zone_by_id_or_by_name(zone: str) -> None:
    catalog = joined(zone=zone)
    assert catalog["g4dn.xlarge"].spot_usd_per_hour == Decimal("0.21")
    assert len(catalog["g4dn.xlarge"].spot_zones) == 1


def test_a_type_that_a_zone_does_not_offer_is_absent() -> None:
    catalog = joined(zone="use1-az2")
    assert "c5.xlarge" not in catalog.by_name
    assert catalog.absent["c5.xlarge"] == "c5.xlarge is not offered in zone use1-az2"


def test_an_unknown_zone_is_refused_with_the_known_ones() -> None:
    with pytest.raises(RequestError, match=r"use1-az1 \(us-east-1c\), use1-az2 \(us-east-1a\)"):
        joined(zone="use1-az9")


class TestPriceBasis:
    start = int((NOW - timedelta(days=10)).timestamp())
    week = 7 * 86_400
    history = {
        "g4dn.xlarge": {
            "use1-az1": [[start - 5, "0.10"], [start + week, "0.90"]],
            "use1-az2": [[0, "0.5"]],
        }
    }

    def catalog(self, basis: PriceBasis) -> Catalog:
        found = signals() | {
            "history:10": Signal("history:10", "us-east-1", NOW, "said history", self.history)
        }
        return joined(found, price_basis=basis, days=10)

    def test_the_best_zone_is_the_best_by_that_basis(self) -> None:
        for basis, price, zone in [
            (PriceBasis.P50, "0.10", "use1-az1"),
            (PriceBasis.P95, "0.5", "use1-az2"),
            (PriceBasis.MAX, "0.5", "use1-az2"),
        ]:
            gpu = self.catalog(basis)["g4dn.xlarge"]
            assert (gpu.spot_usd_per_hour, gpu.spot_zones[0].zone) == (Decimal(price), zone)

    def test_it_is_said(self) -> None:
        about = self.catalog(PriceBasis.P95).provenance
        assert about.basis == "p95 of 10 days"
        assert "history:10" in [o.signal for o in about.origins]
        assert "spot" not in [o.signal for o in about.origins]

    def test_without_a_history_it_is_refused(self) -> None:
        with pytest.raises(MissingDataError, match="the last 10 days in us-east-1"):
            joined(price_basis=PriceBasis.MAX, days=10)


def test_provenance_names_the_oldest_price_and_mixed_sources() -> None:
    old = signals(origin="snapshot", minutes=60 * 24 * 90)
    about = joined(signals() | {"on-demand": old["on-demand"]}).provenance
    assert about.kind == "mixed"
    assert about.prices_as_of == (NOW - timedelta(days=90)).date()
    assert joined().provenance.kind == "live"
    assert joined(old).provenance.kind == "embedded"


def test_one_missing_signal_never_fails_the_run() -> None:
    for missing in ["zones", "offerings", "advisor", "quotas", "spot", "on-demand"]:
        catalog = joined(signals(**{missing: None}))
        assert len(catalog) >= 1


@pytest.mark.parametrize(
    ("missing", "what"),
    [({"specs": None}, "specifications"), ({"spot": None, "on-demand": None}, "prices")],
)
def test_without_the_essentials_the_next_step_is_named(missing: dict[str, None], what: str) -> None:
    with pytest.raises(
        MissingDataError, match=f"no {what} of region us-east-1.*deepvm catalog refresh"
    ):
        joined(signals(**missing))


def test_markets_in_which_a_type_is_not_sold_have_no_price() -> None:
    specs = {"g4dn.xlarge": SPEC | T4 | {"spot": False}, "c5.xlarge": SPEC | {"on_demand": False}}
    catalog = joined(signals(specs=specs))
    assert catalog["g4dn.xlarge"].spot_usd_per_hour is None
    assert "c5.xlarge" not in catalog.by_name
