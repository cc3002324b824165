"""Prices of public catalogs in a market: when they are asked for, what beats them, and what they
are completed with.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support.catalog_signals import NOW, REGION, after, signal
from support.public_catalogs import PublicServer, gcp_info, public_server, skypilot_file
from support.spot_advisor import say

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets
from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public.public_market import cache_of, public_catalogs, wanted_source
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog
from deepvm.errors import CloudError, MissingDataError, RequestError

AWS, GCP = "/v8/aws/vms.csv", "/v8/gcp/vms.csv"
AUTO = MarketRequest(source="auto")


@pytest.fixture(autouse=True)
def around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PublicServer]:
    with public_server() as found:
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", found.url)
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", found.url)
        yield found


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An error alone would be taken for one of the source."""
    opened = []

    def refuse(*words: object, **_: object) -> None:
        opened.append(words)
        raise OSError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not opened


def market(
    cloud: str = "aws", region: str = "", request: MarketRequest = AUTO, hours: float = 0
) -> Catalog:
    regions = [region] if region else []
    return open_markets(regions, request, cloud=REGISTRY[cloud], now=NOW + timedelta(hours=hours))[
        0
    ]


def sources(catalog: Catalog) -> dict[str, tuple[str, str]]:
    return {o.signal: (o.kind, o.source) for o in catalog.provenance.origins}


def price(catalog: Catalog, name: str = "g5.xlarge") -> str:
    return str(catalog[name].on_demand_usd_per_hour)


class TestWithoutCredentials:
    def test_the_first_public_catalog_is_asked(self, server: PublicServer) -> None:
        catalog = market()
        assert server.asked == [AWS]
        assert sources(catalog)[SPOT] == ("live", "skypilot-catalog")
        assert price(catalog) == "1.006" and str(catalog["g4dn.xlarge"].spot_zones[0]) == "use1-az4"
        assert catalog.provenance.prices_as_of == NOW.date()
        note = catalog.provenance.usual[1]
        assert "no AWS credentials were found; the skypilot-catalog of 0 s ago" in note

    def test_what_it_lacks_of_a_type_comes_from_the_snapshot_or_the_name(
        self, server: PublicServer
    ) -> None:
        catalog = market()
        assert (
            catalog["g4dn.xlarge"].network_gbps,
            catalog["g4dn.xlarge"].network_baseline_gbps,
        ) == (25, 5)
        assert catalog["c5.2xlarge"].network_baseline_gbps == 2.5
        assert catalog["t3.large"].burstable and not catalog["c5.2xlarge"].burstable

    def test_networks_are_those_of_vendors_as_no_public_catalog_has_them(
        self, server: PublicServer
    ) -> None:
        catalog = market("gcp")
        node, host = catalog["n2-standard-8"], catalog["a3-highgpu-8g"]
        assert (node.network_gbps, node.network_baseline_gbps) == (16, 16)
        assert host.network_gbps == 200, (
            "what is left for memory nodes, beside the cards of the GPUs"
        )
        assert market("lambda")["gpu_8x_h100_sxm5"].network_baseline_gbps == 3.7
        assert market("nebius")["gpu-l40s-a_1gpu-8vcpu-32gb"].network_gbps is None

    def test_small_a3_types_of_google_cloud_are_not_sold_on_demand(
        self, server: PublicServer
    ) -> None:
        more = (
            "a3-highgpu-1g,26.0,234.0,,,,us-east4,us-east4-a,1.18251,0.26996",
            f",,,H100,1,{gcp_info(81920)},us-east4,us-east4-a,9.79655,2.2356",
        )
        server.answers[GCP] = say(skypilot_file("gcp", *more))
        catalog = market("gcp", "us-east4")
        assert catalog["a3-highgpu-1g"].on_demand_usd_per_hour is None
        assert str(catalog["a3-highgpu-1g"].spot_usd_per_hour) == "2.50556"
        assert str(catalog["a3-highgpu-8g"].on_demand_usd_per_hour) == "87.83245"

    def test_it_knows_regions_of_which_no_snapshot_came_along(self, server: PublicServer) -> None:
        assert price(market(region="us-west-2")) == "1.006"
        assert len(server.asked) == 1
        with pytest.raises(MissingDataError, match="no specifications of region eu-west-9"):
            market(region="eu-west-9")

    def test_a_stalled_one_is_waited_for_two_seconds_and_then_the_snapshot_is_used(
        self, server: PublicServer
    ) -> None:
        server.answers[AWS] = lambda _: time.sleep(6)
        start = time.monotonic()
        catalog = market()
        assert 1.5 < time.monotonic() - start < 3.5
        assert {kind for kind, _ in sources(catalog).values()} == {"embedded"}
        assert any(
            "skypilot-catalog: no answer within 2 s" in note for note in catalog.provenance.notes
        )
        assert catalog.provenance.not_asked.endswith("and skypilot-catalog gave no answer")

    def test_then_the_cache_comes_before_the_snapshot(self, server: PublicServer) -> None:
        market()
        server.answers[AWS] = say(b"", 500)
        catalog = market(hours=10)
        assert sources(catalog)[SPOT] == ("expired", "skypilot-catalog")
        assert any(
            "the skypilot-catalog of 10 h ago is used" in note for note in catalog.provenance.notes
        )

    @pytest.mark.usefixtures("no_sockets")
    @pytest.mark.parametrize(
        "changes", [{"offline": True}, {"prices": "snapshot"}, {"source": "none"}]
    )
    def test_where_no_socket_may_be_opened_none_is(
        self, changes: dict[str, object], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("DEEPVM_SKYPILOT_URL", "DEEPVM_GPUHUNT_URL"):
            monkeypatch.setenv(name, "https://example.com")
        request = MarketRequest(**({"source": "auto"} | changes))  # type: ignore[arg-type]
        for cloud in ("aws", "gcp"):
            found = sources(market(cloud, request=request)).values()
            assert {kind for kind, _ in found} == {"embedded"}

    def test_offline_uses_what_was_fetched_before(self, server: PublicServer) -> None:
        market("gcp")
        server.asked.clear()
        catalog = market("gcp", request=MarketRequest(source="auto", offline=True), hours=20)
        assert sources(catalog)[ON_DEMAND] == ("expired", "skypilot-catalog") and not server.asked


class TestWhatBeatsWhat:
    def kept(self, monkeypatch: pytest.MonkeyPatch, usd: str, **age: float) -> None:
        """Prices of AWS's own API in the cache."""
        cache = Cache(default_folder(), "anybody")
        when = after(**age)
        for kind, data in ((ON_DEMAND, {"g5.xlarge": usd}), (SPECS, {"g5.xlarge": {"vcpus": 4}})):
            cache.write(signal(kind, observed_at=when, data=data, source="AWS price list"), when)

    def test_aws_itself_beats_them_while_it_is_fresh(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.kept(monkeypatch, "1.5", hours=-20)
        catalog = market("aws", REGION)
        assert price(catalog) == "1.5" and sources(catalog)[ON_DEMAND] == (
            "cache",
            "AWS price list",
        )

    def test_nobody_is_asked_for_what_is_fresh(self, server: PublicServer) -> None:
        """Quotas, zones and interruption rates are missing, and no public catalog has them."""
        cache = Cache(default_folder(), "anybody")
        for kind in (SPECS, OFFERINGS, ON_DEMAND, SPOT):
            cache.write(signal(kind, observed_at=NOW), NOW)
        assert market("aws", REGION)["g4dn.xlarge"] and not server.asked

    def test_what_is_past_its_time_counts_by_its_age(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.kept(monkeypatch, "1.5", hours=-30)
        assert price(market("aws", REGION)) == "1.006"

    def test_an_older_file_does_not_beat_it(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old = f"{after(hours=-40):%a, %d %b %Y %H:%M:%S} GMT"
        server.answers[AWS] = say(skypilot_file("aws"), **{"Last-Modified": old})
        self.kept(monkeypatch, "1.5", hours=-30)
        assert price(market("aws", REGION)) == "1.5"

    def test_of_two_public_catalogs_the_newer_one(self, server: PublicServer) -> None:
        first, second = public_catalogs(REGISTRY["aws"], "auto", NOW + timedelta(minutes=5))
        market()
        assert second.refresh() and first.latest([REGION])
        catalog = market(hours=0.1)
        assert sources(catalog)[SPOT] == ("cache", "gpuhunt") and "g6e.xlarge" in catalog.by_name
        kept = market(request=MarketRequest(source="skypilot"), hours=0.1)
        assert sources(kept)[SPOT] == ("cache", "skypilot-catalog"), "the other one is still there"

    def test_credentials_that_do_not_work_do_not_hide_them(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{taken.getsockname()[1]}")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI")
            monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
            catalog = market("aws", REGION)
        assert sources(catalog)[SPOT][1] == "skypilot-catalog"
        assert "AKIA" not in "".join(server.headers)


class TestNamed:
    def test_nothing_else_counts(self, server: PublicServer) -> None:
        catalog = market(request=MarketRequest(source="gpuhunt"))
        assert {s for _, s in sources(catalog).values()} >= {"gpuhunt"} and price(
            catalog
        ) == "1.006"
        assert set(catalog.by_name) == {
            "g4dn.xlarge",
            "g5.xlarge",
            "g6e.xlarge",
            "p4d.24xlarge",
            "c7g.xlarge",
        }
        assert server.asked == ["/aws/version", "/aws/20261127-12/catalog.zip"]

    def test_without_its_answer_there_is_none(self, server: PublicServer) -> None:
        server.answers[AWS] = say(b"<html>", 404)
        with pytest.raises(
            CloudError, match="no specifications of region us-east-1: skypilot-catalog at .*404"
        ):
            market(request=MarketRequest(source="skypilot"))

    def test_live_means_that_it_must_answer(self, server: PublicServer) -> None:
        live = MarketRequest(source="skypilot", prices="live")
        assert price(market(request=live)) == "1.006"
        server.answers[GCP] = say(b"", 500)
        with pytest.raises(
            CloudError,
            match="live prices of us-central1.*--prices auto continues with older prices",
        ):
            market("gcp", request=MarketRequest(prices="live", source="auto"))

    def test_what_nobody_renews_is_asked_last(self, server: PublicServer) -> None:
        """skypilot-catalog's file of Azure ended in 2025."""
        names = [m.source.name for m in public_catalogs(REGISTRY["azure"], "auto", NOW)]
        assert names == ["gpuhunt", "skypilot"]
        assert sources(market("azure"))[ON_DEMAND] == ("live", "gpuhunt")

    def test_others_are_refused(self) -> None:
        with pytest.raises(RequestError, match="^invalid value for source: 'azure-retail'"):
            MarketRequest(source="azure-retail")
        assert (wanted_source(""), wanted_source("gpuhunt")) == ("auto", "gpuhunt")

    def test_a_catalog_can_be_switched_off(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", "none")
        assert sources(market())[SPOT][1] == "gpuhunt"
        with pytest.raises(RequestError, match="DEEPVM_SKYPILOT_URL does not switch off"):
            market(request=MarketRequest(source="skypilot"))
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", "none")
        assert sources(market())[SPOT][0] == "embedded"


class TestOtherClouds:
    @pytest.mark.parametrize("cloud", [name for name in REGISTRY if name not in ("aws", "runpod")])
    def test_each_has_a_market_in_its_usual_region(self, server: PublicServer, cloud: str) -> None:
        catalog = market(cloud)
        own = REGISTRY[cloud].own_region("").name
        assert (catalog.name, catalog.region) == (f"{cloud}-{own}", own)
        assert any(i.gpu for i in catalog) and catalog.description.startswith(REGISTRY[cloud].title)
        assert not catalog.quotas

    def test_a_catalogs_name_leads_to_it(self, server: PublicServer) -> None:
        assert load_catalog("gcp-us-east4", source="auto").region == "us-east4"
        with pytest.raises(RequestError, match="such as us-central1"):
            load_catalog("gcp-US", source="auto")

    def test_all_regions_are_those_of_the_file(self, server: PublicServer) -> None:
        found = open_markets(["all"], AUTO, cloud=REGISTRY["gcp"], now=NOW)
        assert [c.region for c in found] == ["us-central1", "us-east4", "us-east5"]

    def test_where_every_type_is_in_every_region_one_region_stands_for_all(
        self, server: PublicServer
    ) -> None:
        (only,) = open_markets(["all"], AUTO, cloud=REGISTRY["lambda"], now=NOW)
        assert (
            only.region == "us-east-1"
            and "whether or not there are any" in only.provenance.notes[0]
        )

    def test_a_usual_region_that_the_file_lacks_gives_way(
        self, server: PublicServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", "us-west4")
        catalog = market("gcp")
        assert catalog.region == "us-central1"
        assert catalog.provenance.notes[0].startswith("Google Cloud: nothing is known of us-west4")

    def test_a_history_of_prices_nobody_has(self, server: PublicServer) -> None:
        with pytest.raises(MissingDataError, match="and no public catalog has them"):
            market("gcp", request=MarketRequest(price_basis="p95", source="auto"))

    def test_each_source_has_its_own_cache(self) -> None:
        folders = {
            str(cache_of(c, SOURCES[s]).folder)
            for c in ("aws", "gcp")
            for s in ("skypilot", "gpuhunt")
        }
        assert len(folders) == 4
