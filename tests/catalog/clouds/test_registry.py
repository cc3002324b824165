"""A new cloud is one class and one line: it then has catalogs, a cache of its own, and a place in
every list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest
from support.catalog_signals import Fake
from support.environment import in_environment

from deepvm.catalog.clouds import DEFAULT_CLOUD, REGISTRY, cloud_of, region_in
from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets, placement
from deepvm.catalog.signals.cloud import Cloud, QuotaName, Region
from deepvm.catalog.signals.signal import (
    OFFERINGS,
    ON_DEMAND,
    PLACEMENT,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Provider,
)
from deepvm.catalog.store import catalog_names, load_catalog
from deepvm.core.cluster.instances import Market
from deepvm.errors import CloudError, MissingDataError, RequestError

T4 = {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0}
CANNED = {
    SPECS: {
        "n1-t4": {
            "vcpus": 4,
            "memory_gib": 15.0,
            "baseline_gbps": 5.0,
            "peak_gbps": 10.0,
            "gpu": T4,
        },
        "n1-standard-4": {"vcpus": 4, "memory_gib": 15.0, "baseline_gbps": 5.0},
    },
    OFFERINGS: {"n1-t4": ["mars-1-a"], "n1-standard-4": ["mars-1-a"]},
    ZONES: {"mars-1-a": "a"},
    ON_DEMAND: {"n1-t4": "0.54", "n1-standard-4": "0.19"},
    SPOT: {"n1-t4": {"mars-1-a": ["0.16", "2026-11-21T09:00:00Z"]}},
    QUOTAS: [{"family": "T4", "market": "spot", "code": "Q1", "vcpus": 16, "in_use": 0}],
}


class Mars(Cloud):
    """A cloud that answers from a dictionary."""

    def __init__(self) -> None:
        super().__init__(
            name="mars",
            title="Mars Cloud",
            rules=DEFAULT_CLOUD.rules,
            region_form="mars-[0-9]",
            default_region="mars-1",
            has_api=True,
            quota_family=lambda name: "T4" if name.endswith("t4") else "general",
            quota_names={("T4", Market.SPOT): QuotaName("Q1", "preemptible T4 vCPUs")},
        )

    def check_region(self, name: str, option: str = "region") -> str:
        if not name.startswith("mars-"):
            raise RequestError(option, name, "a region of Mars, such as mars-1")
        return name

    def own_region(self, profile: str) -> Region:
        return Region(os.environ.get("MARS_REGION", "mars-1"), "the default")

    def known_regions(self) -> Sequence[str]:
        return ("mars-1", "mars-2")

    def account_regions(self, profile: str) -> tuple[str, ...]:
        return ("mars-1",)

    def credentials_may_exist(self, profile: str) -> bool:
        return bool(os.environ.get("MARS_KEY"))

    def account_tag(self, profile: str) -> str:
        return "rover"

    def providers(self, kinds: Sequence[str], profile: str) -> Mapping[str, Provider]:
        return {kind: Fake(kind, data=data) for kind, data in CANNED.items()}

    def placement_provider(self, profile: str, types: Sequence[str], count: int) -> Provider:
        return Fake(PLACEMENT, data=[{"zone": "mars-1-a", "score": 7}])


@pytest.fixture(autouse=True)
def mars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setitem(REGISTRY, "mars", Mars())
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("MARS_KEY", "dust")
    for name in ("AWS_ENDPOINT_URL", "DEEPVM_ADVISOR_URL"):
        monkeypatch.delenv(name, raising=False)
    return REGISTRY["mars"]


def test_its_market_is_a_catalog(tmp_path: Path) -> None:
    catalog = load_catalog("mars-mars-1", prices="live")
    assert (catalog.name, catalog.region, len(catalog)) == ("mars-mars-1", "mars-1", 2)
    assert catalog.description == "Mars Cloud's types and prices in mars-1"
    vm = catalog["n1-t4"]
    assert (vm.quota_family, vm.micro_usd_per_hour(Market.SPOT)) == ("T4", 160_000)
    assert vm.eflops == load_catalog("paper")["g4dn.xlarge"].eflops, (
        "the same GPU, measured elsewhere"
    )
    (quota,) = catalog.quotas
    assert (quota.vcpus, quota.code, quota.title) == (16, "Q1", "preemptible T4 vCPUs")
    assert load_catalog("mars", offline=True).instances == catalog.instances, (
        "its cache answers, in its own region"
    )
    assert (tmp_path / "cloud_mars" / "mars-1" / "account-rover" / "quotas.json").exists()


def test_all_its_regions_and_placement_scores() -> None:
    (catalog,) = open_markets(["all"], MarketRequest(), cloud=cloud_of("mars"))
    found = placement(catalog, catalog["n1-t4"], 3, MarketRequest())
    assert found.scores == {"mars-1-a": 7}


def test_names_lead_to_the_cloud(mars: Cloud) -> None:
    assert [cloud_of(n) for n in ("mars", "mars-mars-2", "aws-us-east-1", "paper")] == [
        *(mars, mars),
        *(DEFAULT_CLOUD, DEFAULT_CLOUD),
    ]
    assert [region_in(n) for n in ("mars", "mars-", "mars-mars-2", "paper")] == [
        "",
        None,
        "mars-2",
        None,
    ]
    assert (region_in("mars-mine.json"), region_in("venus")) == (None, None)
    with pytest.raises(RequestError, match="a region of Mars"):
        load_catalog("mars-us-east-1")


def test_without_credentials_and_snapshot_the_reason_is_said(
    mars: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MARS_KEY")
    with pytest.raises(CloudError) as caught:
        catalog = load_catalog("aws-us-east-1")
        placement(catalog, next(iter(catalog)), 1, MarketRequest(offline=True))
    assert "offline" in str(caught.value)
    assert mars.snapshot_regions() == ()
    assert not [name for name in catalog_names() if name.startswith("mars")]


def test_its_snapshots_are_found_whatever_its_regions_are_called(
    mars: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = DEFAULT_CLOUD.data / "regions" / "us-east-1.json"
    (tmp_path / "regions").mkdir()
    (tmp_path / "regions" / "mars-olympus.json").write_bytes(embedded.read_bytes())
    (tmp_path / "performance.json").write_text("{}")
    monkeypatch.setattr(Mars, "data", tmp_path)
    assert mars.snapshot_regions() == ("mars-olympus",)
    assert {s.region for s in mars.snapshot("mars-olympus").values()} == {"mars-olympus"}
    assert "mars-mars-olympus" in catalog_names()


def test_nothing_at_hand_of_any_region() -> None:
    with pytest.raises(MissingDataError, match="no prices of any region of Mars Cloud are known"):
        open_markets(["all"], MarketRequest(offline=True), cloud=cloud_of("mars"))


@pytest.mark.parametrize("cloud", REGISTRY.values(), ids=lambda c: c.name)
def test_every_cloud_keeps_its_word(cloud: Cloud) -> None:
    assert REGISTRY[cloud.name] is cloud
    own = in_environment({}, cloud.own_region, "")
    assert cloud.check_region(own.name) == own.name
    assert own.name in cloud.known_regions()
    assert set(cloud.snapshot_regions()) <= set(cloud.known_regions())
    assert all(
        s.origin == "snapshot" for r in cloud.snapshot_regions() for s in cloud.snapshot(r).values()
    )
    assert all(name.code and name.title for name in cloud.quota_names.values())
    assert set(cloud.public_providers()) <= set(cloud.providers([], ""))
    assert bool(cloud.providers([], "")) == cloud.has_api
    assert "/" not in cloud.account_tag("")
    assert {SPECS, ON_DEMAND} <= set(cloud.kinds)


@pytest.mark.parametrize("cloud", REGISTRY.values(), ids=lambda c: c.name)
def test_every_cloud_says_how_it_sells_machines_and_from_where_that_is_known(cloud: Cloud) -> None:
    rules = cloud.rules
    figures = {f.name for f in fields(rules)} - {"sources"}
    assert set(rules.sources) == figures - (set() if rules.regions_alike else {"regions_alike"})
    assert {text[:4] for text in rules.sources.values()} <= {"http", "skyp"}
    assert all(re.search("20[0-9]{2}", text) for text in rules.sources.values()), (
        "each with its date"
    )
    warned = {"aws": 120, "gcp": 30, "azure": 30, "nebius": 60, "runpod": 0, "lambda": 0}
    assert rules.grace_s == warned[cloud.name] and (rules.grace_s > 0) == cloud.has_spot


@pytest.mark.parametrize(
    "cloud", [c for c in REGISTRY.values() if not c.has_api], ids=lambda c: c.name
)
def test_a_listed_cloud_has_no_client(cloud: Cloud) -> None:
    keys = {"GOOGLE_APPLICATION_CREDENTIALS": "x", "AWS_ACCESS_KEY_ID": "y"}
    assert not in_environment(keys, cloud.credentials_may_exist, "mine")
    for ask in (lambda: cloud.account_regions(""), lambda: cloud.placement_provider("", ["a"], 1)):
        with pytest.raises(CloudError, match="has no API client"):
            ask()
    own = in_environment({}, cloud.own_region, "").name
    for name in ("", "US", "somewhere else", "../x", "us east"):
        with pytest.raises(RequestError, match=f"such as {own}"):
            cloud.check_region(name)
    assert all(cloud.check_region(region) == region for region in cloud.known_regions())


def test_the_region_of_a_cloud_may_stand_in_the_environment() -> None:
    west = {"CLOUDSDK_COMPUTE_REGION": "europe-west4"}
    own = in_environment(west, REGISTRY["gcp"].own_region, "")
    assert own == ("europe-west4", "environment variable CLOUDSDK_COMPUTE_REGION")
    with pytest.raises(RequestError, match="AZURE_DEFAULTS_LOCATION"):
        in_environment({"AZURE_DEFAULTS_LOCATION": "East US"}, REGISTRY["azure"].own_region, "")


@pytest.mark.parametrize("cloud", REGISTRY.values(), ids=lambda c: c.name)
def test_the_page_says_what_the_rules_say(cloud: Cloud) -> None:
    rules = cloud.rules
    page = (
        Path(__file__).parents[3] / "docs" / "internals" / "reference" / "public-catalogs.md"
    ).read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {cloud.name} |")]
    _, spot, warning, nodes, *_ = (cell.strip() for cell in row.strip("|").split("|"))
    assert (
        warning == (f"{rules.grace_s:g} s" if cloud.has_spot else "-")
        and spot.startswith("none") != cloud.has_spot
    )
    assert nodes == ("yes" if rules.has_cpu_vms else "no")


@pytest.mark.parametrize("cloud", REGISTRY.values(), ids=lambda cloud: cloud.name)
def test_signals_are_named_in_the_same_order_for_all_clouds(cloud: Cloud) -> None:
    assert cloud.kinds == tuple(k for k in DEFAULT_CLOUD.kinds if k in cloud.kinds)
