"""The prices that come with deepvm: real figures of a named source and day, for six clouds."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from decimal import Decimal

import pytest

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets
from deepvm.catalog.public.offers import Offer, Rows, check
from deepvm.catalog.published.hardware import find_accelerator
from deepvm.catalog.signals.signal import ON_DEMAND, SPECS, SPOT
from deepvm.catalog.store import load_catalog

OFFLINE = MarketRequest(source="auto", offline=True)
OTHERS = [name for name in REGISTRY if name != "aws"]
PLACES = [(name, r) for name, cloud in REGISTRY.items() for r in cloud.snapshot_regions()]


@pytest.mark.parametrize("cloud", OTHERS)
def test_two_regions_and_the_usual_one_among_them(cloud: str) -> None:
    known = REGISTRY[cloud].snapshot_regions()
    assert len(known) >= 2 and REGISTRY[cloud].default_region in known
    assert set(known) <= set(REGISTRY[cloud].known_regions())


@pytest.mark.parametrize(("cloud", "region"), PLACES)
def test_each_figure_has_a_source_and_a_day(cloud: str, region: str) -> None:
    signals = REGISTRY[cloud].snapshot(region)
    assert {SPECS, ON_DEMAND} <= set(signals)
    for signal in signals.values():
        assert signal.observed_at < datetime.now(timezone.utc)
        assert cloud == "aws" or re.search(r"[a-z]\.(com|co|ai|io)\b", signal.source), signal.source
        assert set(signal.data) <= set(signals[SPECS].data)


@pytest.mark.parametrize("cloud", OTHERS)
def test_the_rules_for_public_catalogs_find_nothing_wrong(cloud: str) -> None:
    table = Rows()
    for region in REGISTRY[cloud].snapshot_regions():
        signals = REGISTRY[cloud].snapshot(region)
        spot = signals[SPOT].data if SPOT in signals else {}
        for name, spec in signals[SPECS].data.items():
            gpu = spec["gpu"]
            prices = {"on_demand": signals[ON_DEMAND].data.get(name)}
            prices["spot"] = spot[name][""][0] if name in spot else None
            table.offers.append(
                Offer(
                    instance_type=name,
                    region=region,
                    vcpus=spec["vcpus"],
                    gpu=gpu["name"],
                    gpu_count=gpu["count"],
                    gpu_memory_gib=gpu["memory_gib"],
                    **{market: usd for market, usd in prices.items() if usd},
                )
            )
    assert check(table).refused == {}


def test_every_type_with_a_price_can_be_planned_with() -> None:
    for cloud, region in PLACES:
        (catalog,) = open_markets([region], OFFLINE, cloud=REGISTRY[cloud])
        assert {o.kind for o in catalog.provenance.origins} == {"embedded"}
        assert not any("cannot be true" in note for note in catalog.provenance.notes)
        if cloud != "aws":
            assert all(i.gpu and find_accelerator(i.gpu.name) for i in catalog)


def test_the_figures_are_those_of_their_sources() -> None:
    """Azure's price API in August 2026; Google's, Lambda's, Nebius's and RunPod's lists."""
    for name, kind, on_demand, spot in (
        ("azure-eastus", "Standard_NC24ads_A100_v4", "3.673", "0.6788"),
        ("azure-westus2", "Standard_NC40ads_H100_v5", "6.98", "4.0205"),
        ("gcp-us-central1", "a2-highgpu-1g", "3.673385", None),
        ("gcp-us-central1", "g2-standard-12", "1.000416", None),
        ("gcp-us-central1", "a3-highgpu-1g", None, "6.571"),
        ("lambda-us-east-1", "gpu_8x_h100_sxm5", "31.92", None),
        ("nebius-eu-north1", "gpu-h100-sxm_8gpu-128vcpu-1600gb", "30.8", "17.2"),
        ("runpod-us-tx-3", "2x_L40S_SECURE", "2.18", None),
    ):
        instance = load_catalog(name, prices="snapshot")[kind]
        prices = (instance.on_demand_usd_per_hour, instance.spot_usd_per_hour)
        assert prices == tuple(None if usd is None else Decimal(usd) for usd in (on_demand, spot))


def test_what_google_does_not_sell_on_demand_has_no_such_price() -> None:
    catalog = load_catalog("gcp-us-central1", prices="snapshot")
    assert catalog["a3-highgpu-8g"].on_demand_usd_per_hour is not None
    for name in ("a3-highgpu-1g", "a3-highgpu-4g", "a3-ultragpu-8g"):
        assert catalog[name].on_demand_usd_per_hour is None
