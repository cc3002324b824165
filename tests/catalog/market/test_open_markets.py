"""Today's market of regions: cache, AWS over HTTP or the snapshot, and what is said when some of it
cannot be had.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.builders import catalog, cpu_type, gpu_type
from support.catalog_signals import NOW, REGION, after, signal
from support.fake_aws import FakeAws, serving

from deepvm.catalog.clouds import DEFAULT_CLOUD, region_in
from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets, placement
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.catalog.store import load_catalog, save_catalog
from deepvm.core.cluster.instances import Catalog, Gpu
from deepvm.core.cluster.prices import PriceBasis
from deepvm.errors import (
    CatalogNotFoundError,
    CloudError,
    DeepVMError,
    MissingDataError,
    RequestError,
)

SECRET = "wJalrXUtnFEMIplantedSECRETbPxRfiCYEX"
AUTO, OFFLINE, LIVE, SNAPSHOT = (
    MarketRequest(),
    MarketRequest(offline=True),
    MarketRequest(prices="live"),
    MarketRequest(prices="snapshot"),
)


def open_market(region: str = "", request: MarketRequest = AUTO, now: datetime = NOW) -> Catalog:
    return open_markets([region] if region else [], request, now=now)[0]


@pytest.fixture(scope="module")
def nobody() -> Iterator[str]:
    """An address that refuses connections.

    It is taken, so that nobody else starts to listen there.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(autouse=True)
def around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nobody: str) -> None:
    """An empty cache, no credentials; the Spot Advisor is out of reach."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DEEPVM_ADVISOR_URL", nobody)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch, nobody: str) -> None:
    """Credentials, and an AWS that cannot be reached."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", nobody)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAws]:
    pytest.importorskip("moto.server")
    fake = FakeAws(
        on_demand={REGION: {"g4dn.xlarge": "0.6"}},
        spot={
            REGION: {"g4dn.xlarge": {"us-east-1a": [(900, "0.35")], "us-east-1b": [(900, "0.25")]}}
        },
        scores={"use1-az6": 7, "use1-az4": 9, "use1-az2": 9, "use1-az1": 3},
    )
    with serving(fake):
        yield fake


@pytest.fixture
def aws(server: FakeAws, keys: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAws]:
    """Credentials, and an AWS that answers."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    server.asked.clear()
    yield server
    server.denied = set()


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a socket fails.

    The class stays, because modules that are loaded meanwhile may derive from it.
    """

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_sockets")
def test_a_socket_would_be_noticed(nobody: str) -> None:
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.create_connection(("127.0.0.1", 9))
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.socket()


def facts(region: str) -> dict[str, Any]:
    """What there is to know of a region: a GPU type in two zones, a CPU type in one, whose baseline
    nobody knows.
    """
    one, two = zone_ids(region)
    gpu = {"name": "T4", "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0}
    return {
        "specs": {
            "g4dn.xlarge": {"vcpus": 4, "baseline_gbps": 5.0, "peak_gbps": 25.0, "gpu": gpu},
            "c5.xlarge": {"vcpus": 4, "peak_gbps": 10.0},
        },
        "offerings": {"g4dn.xlarge": [one, two], "c5.xlarge": [one]},
        "zones": {one: f"{region}a", two: f"{region}b"},
        "on-demand": {"g4dn.xlarge": "0.526", "c5.xlarge": "0.17"},
        "spot": {"g4dn.xlarge": {one: ["0.2", ""], two: ["0.3", ""]}},
        "advisor": {"g4dn.xlarge": 2},
        "quotas": [
            {"family": "G and VT", "market": "spot", "code": "L-3819A6DF", "vcpus": 64, "in_use": 8}
        ],
    }


def zone_ids(region: str) -> tuple[str, str]:
    """``use1-az4`` and ``use1-az6`` of us-east-1."""
    area, side, number = region.split("-")
    return f"{area}{side[0]}{number}-az4", f"{area}{side[0]}{number}-az6"


def keep(
    region: str = REGION, changes: Mapping[str, Any] | None = None, *, expired: Collection[str] = ()
) -> None:
    """Fill the cache of whoever asks; what is None in the changes is not in it."""
    cache = Cache(default_folder(), DEFAULT_CLOUD.account_tag(""))
    for kind, data in (facts(region) | dict(changes or {})).items():
        if data is not None:
            assert cache.write(
                signal(kind, region, data=data), after(days=-30) if kind in expired else NOW
            )


def regions_of(found: Collection[Catalog]) -> list[str]:
    return [c.region for c in found]


# Names


def test_names_of_the_market() -> None:
    for name, region in [
        ("aws", ""),
        ("aws-us-west-2", "us-west-2"),
        ("aws-us-gov-west-1", "us-gov-west-1"),
        ("aws-eusc-de-east-1", "eusc-de-east-1"),
        ("aws-", None),
        ("AWS", None),
        ("awsome", None),
        ("my-aws", None),
        ("paper", None),
        ("", None),
    ]:
        assert region_in(name) == region


_REGIONS = st.builds(
    "aws-{}-{}-{}".format,
    st.sampled_from(["us", "eu", "us-gov"]),
    st.text("abz"),
    st.integers(-1, 120),
)


@given(st.text() | st.from_regex(r"aws(-[a-z0-9.-]*)?", fullmatch=True) | _REGIONS)
@example("aws-us-east-1a")
def test_a_name_is_a_region_or_none_or_an_error_that_quotes_it(name: str) -> None:
    try:
        region = region_in(name)
    except RequestError as error:
        assert (error.option, f"aws-{error.value}") == ("catalog", name)
        return
    assert (region == "") is (name == "aws")
    if region is not None:
        assert name == (f"aws-{region}" if region else "aws")


@pytest.mark.parametrize("name", ["aws-mine.json", "aws-MINE.JSON", "aws-us-east-1.csv"])
def test_a_file_may_be_called_like_the_market(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_catalog(catalog(gpu_type("mine.xlarge"), cpu_type()), name)
    assert region_in(name) is None
    assert "mine.xlarge" in load_catalog(name).by_name


def test_names_that_mean_nothing() -> None:
    for name, error, said in [
        ("aws-moon-base", RequestError, "catalog: 'moon-base'"),
        ("aws-us-east-1a", RequestError, "did you mean us-east-1"),
        ("aws-", CatalogNotFoundError, "'aws-': no embedded catalog"),
        ("AWS", CatalogNotFoundError, "did you mean aws"),
    ]:
        with pytest.raises(error, match=said):
            load_catalog(name)


# AWS does not answer


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("regions", [["eu-north-1"], ["eu-north-1", "eu-west-3"]], ids=len)
def test_a_region_of_which_nothing_can_be_had_is_an_error_with_the_cause(
    regions: list[str], nobody: str
) -> None:
    if len(regions) > 1:
        for region in regions:
            keep(region, {"specs": None})  # everything else does not help
    with pytest.raises(CloudError, match="^no specifications of region eu-north-1: ") as caught:
        open_markets(regions, AUTO, now=NOW)
    error = caught.value
    assert (error.exit_code, error.why) == (5, "network")
    assert nobody in error.detail
    assert "check the network" in error.advice
    assert SECRET not in str(error)


@pytest.mark.usefixtures("keys")
def test_a_region_with_a_snapshot_goes_on_with_a_note(nobody: str) -> None:
    lines: list[str] = []
    (found,) = open_markets([REGION], AUTO, now=NOW, progress=lines.append)
    assert found.provenance.kind == "embedded"
    (note,) = found.provenance.notes
    assert "the source cannot be reached" in note
    assert nobody in note
    assert "the snapshot of 2026-07-20" in note
    assert SECRET not in note + str(lines)
    assert f"{REGION}: specifications failed" in "\n".join(lines)


def test_live_asks_anew_and_its_answer_is_kept(aws: FakeAws) -> None:
    keep()

    def prices(request: MarketRequest) -> tuple[str, str, str]:
        found = open_market(REGION, request, now=NOW)
        one = found["g4dn.xlarge"]
        return found.provenance.kind, str(one.spot_usd_per_hour), str(one.on_demand_usd_per_hour)

    assert prices(AUTO) == ("cache", "0.2", "0.526")
    assert aws.asked == []
    assert prices(LIVE) == ("live", "0.25", "0.6")
    assert set(aws.asked) == {
        "GetProducts",
        "DescribeSpotPriceHistory",
        "DescribeAvailabilityZones",
    }
    aws.asked.clear()
    assert prices(AUTO) == ("cache", "0.25", "0.6")
    assert aws.asked == []
    aws.denied = {"GetProducts"}
    with pytest.raises(
        CloudError, match=f"^live prices of {REGION}: AWS does not permit it"
    ) as caught:
        prices(LIVE)
    assert (caught.value.exit_code, caught.value.why) == (5, "permission")


# Several regions


def test_of_several_regions_one_without_data_becomes_a_note_of_the_first_that_has_some() -> None:
    keep("us-west-2")
    found = open_markets(["eu-north-1", "us-west-2", REGION, "us-west-2"], OFFLINE, now=NOW)
    assert regions_of(found) == ["us-west-2", REGION]
    assert [
        n
        for n in found[0].provenance.notes
        if n.startswith("no specifications of region eu-north-1: ")
    ]
    assert "eu-north-1" not in str(found[1].provenance.notes)


def test_of_several_regions_one_that_aws_refuses_becomes_a_note_with_the_cause(
    aws: FakeAws,
) -> None:
    keep()
    keep("us-west-2", {"specs": None})
    aws.denied = {"DescribeInstanceTypes"}
    (found,) = open_markets(["us-west-2", REGION], AUTO, now=NOW)
    assert (found.region, found.provenance.kind) == (REGION, "cache")
    # What was said on the way is kept, although it was said of a region that is left out.
    assert [n.partition(":")[0] for n in found.provenance.notes] == [
        "specifications of us-west-2",
        "no specifications of region us-west-2",
    ]
    assert all("allow ec2:DescribeInstanceTypes" in n for n in found.provenance.notes)
    assert set(aws.asked) == {"DescribeInstanceTypes"}


def test_without_any_region_the_first_error_counts() -> None:
    for regions, request_, error, said in [
        (
            ["eu-north-1", "eu-west-3"],
            OFFLINE,
            MissingDataError,
            "no specifications of region eu-north-1: ",
        ),
        (
            ["us-west-2", "eu-west-3"],
            replace(OFFLINE, zone="use1-az4"),
            RequestError,
            "zone: 'use1-az4'",
        ),
        ([REGION, "moon"], OFFLINE, RequestError, "region: 'moon'"),
        ([f"{REGION}a"], OFFLINE, RequestError, f"did you mean {REGION}"),
    ]:
        keep("us-west-2")
        with pytest.raises(error, match=said):
            open_markets(regions, request_, now=NOW)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize(
    ("request_", "has_keys", "expected", "why"),
    [
        (OFFLINE, True, [REGION, "us-west-2"], "offline"),
        (SNAPSHOT, True, [REGION], "only the snapshot is used"),
        (AUTO, False, [REGION, "us-west-2"], "no AWS credentials were found"),
    ],
    ids=["offline", "snapshot", "no credentials"],
)
def test_all_regions_without_aws_are_those_at_hand(
    request_: MarketRequest,
    has_keys: bool,
    expected: list[str],
    why: str,
    request: pytest.FixtureRequest,
) -> None:
    if has_keys:
        request.getfixturevalue("keys")
    keep("us-west-2")
    found = open_markets(["all"], request_, now=NOW)
    assert regions_of(found) == expected
    note = found[0].provenance.notes[0]
    assert note.startswith("all regions: only ")
    assert note.endswith(f" known: {why}")
    assert ("us-west-2" in str(found[0].provenance.notes)) is ("us-west-2" in expected)


def test_all_regions_when_aws_refuses_to_name_them(aws: FakeAws) -> None:
    for region in (REGION, "us-west-2"):
        keep(region)
    aws.denied = {"DescribeRegions"}
    found = open_markets(["us-west-2", "all", REGION], AUTO, now=NOW)
    assert regions_of(found) == ["us-west-2", REGION]  # in the order in which they were first named
    (note,) = found[0].provenance.notes
    assert note.startswith("all regions: only ")
    assert "known: ec2 DescribeRegions" in note
    assert "allow ec2:DescribeRegions" in note
    with pytest.raises(CloudError, match="^ec2 DescribeRegions") as caught:
        open_markets(["all"], LIVE, now=NOW)
    assert (caught.value.exit_code, caught.value.why) == (5, "permission")
    assert aws.asked == ["DescribeRegions"] * 2


# The user's own region


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")


@pytest.mark.usefixtures("at_home", "no_sockets")
@pytest.mark.parametrize("request_", [AUTO, OFFLINE, SNAPSHOT], ids=["auto", "offline", "snapshot"])
def test_where_nothing_is_known_of_home_the_snapshot_stands_in(request_: MarketRequest) -> None:
    found = open_market(request=request_, now=NOW)
    assert found.region == REGION
    assert (
        found.provenance.notes[0]
        == "AWS: nothing is known of eu-north-1 (environment variable AWS_REGION); these are"
        f" prices of {REGION}"
    )


@pytest.mark.usefixtures("at_home")
def test_a_home_that_is_known_is_said() -> None:
    keep("eu-north-1")
    found = open_market(request=OFFLINE, now=NOW)
    assert found.region == "eu-north-1"
    assert found.provenance.notes == ("region eu-north-1 (environment variable AWS_REGION)",)


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize(
    ("region", "request_", "error"),
    [
        ("eu-north-1", OFFLINE, MissingDataError),
        ("", replace(OFFLINE, zone="use1-az4"), MissingDataError),
        ("", replace(SNAPSHOT, price_basis=PriceBasis.P95), MissingDataError),
        ("", LIVE, CloudError),
    ],
    ids=["named", "zone", "basis", "live"],
)
def test_whoever_asks_for_something_special_gets_no_other_region(
    region: str, request_: MarketRequest, error: type[DeepVMError]
) -> None:
    with pytest.raises(error, match="of (region )?eu-north-1: "):
        open_market(region, request_, now=NOW)


def test_a_home_that_is_no_region_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "moon")
    with pytest.raises(RequestError, match="^invalid value for AWS_REGION: 'moon'"):
        load_catalog("aws", offline=True)


# Zones, prices over time, bandwidths


def test_one_zone_by_id_or_by_name() -> None:
    for zone, price, types in [
        ("", "0.2", {"g4dn.xlarge", "c5.xlarge"}),
        ("use1-az4", "0.2", {"g4dn.xlarge", "c5.xlarge"}),
        ("use1-az6", "0.3", {"g4dn.xlarge"}),
        ("us-east-1b", "0.3", {"g4dn.xlarge"}),
    ]:
        keep()
        found = open_market(REGION, replace(OFFLINE, zone=zone), now=NOW)
        assert set(found.by_name) == types
        assert str(found["g4dn.xlarge"].spot_usd_per_hour) == price


def test_a_zone_that_is_not_there_is_refused_with_those_that_are() -> None:
    keep()
    with pytest.raises(
        RequestError, match=r"use1-az4 \(us-east-1a\), use1-az6 \(us-east-1b\)"
    ) as caught:
        open_market(REGION, replace(OFFLINE, zone="use1-az9"), now=NOW)
    assert (caught.value.option, caught.value.value) == ("zone", "use1-az9")


def test_a_zone_of_one_region_leaves_the_others_out() -> None:
    for region in (REGION, "us-west-2"):
        keep(region)
    (found,) = open_markets(["us-west-2", REGION], replace(OFFLINE, zone="us-east-1b"), now=NOW)
    assert found.region == REGION
    assert "zone: 'us-east-1b' (expected a zone of us-west-2" in found.provenance.notes[0]


@pytest.mark.parametrize(
    ("expired", "zones", "cpu"),
    [((), ["use1-az4"], None), (("spot",), ["use1-az6", "use1-az4"], "0.05")],
    ids=["today's prices", "old ones"],
)
def test_past_prices_count_only_where_there_is_one_today(
    expired: tuple[str, ...], zones: list[str], cpu: str | None
) -> None:
    """A zone without a price today has no capacity.

    What old prices lack says nothing about today.
    """
    past = {
        "g4dn.xlarge": {"use1-az4": [[0, "0.4"]], "use1-az6": [[0, "0.1"]]},
        "c5.xlarge": {"use1-az4": [[0, "0.05"]]},
    }
    keep(
        changes={"spot": {"g4dn.xlarge": {"use1-az4": ["0.2", ""]}}, "history:30": past},
        expired=expired,
    )
    found = open_market(REGION, replace(OFFLINE, price_basis=PriceBasis.P95), now=NOW)
    assert [z.zone for z in found["g4dn.xlarge"].spot_zones] == zones
    assert found["c5.xlarge"].spot_usd_per_hour == (
        cpu and found["c5.xlarge"].spot_zones[0].usd_per_hour
    )
    assert str(found["c5.xlarge"].spot_usd_per_hour) == str(cpu)
    assert found.provenance.basis == "p95 of 30 days"


@pytest.mark.usefixtures("no_sockets", "keys")
@pytest.mark.parametrize(
    "given", [{}, {"network": "baseline"}, {"profile": "work"}, {"offline": True}], ids=str
)
def test_the_snapshot_opens_no_socket_and_reads_no_cache(given: dict[str, Any]) -> None:
    keep()
    found = load_catalog("aws-us-east-1", **{"prices": "snapshot"} | given)
    assert (found.region, found.provenance.kind, len(found)) == (REGION, "embedded", 149)


@pytest.mark.usefixtures("no_sockets", "keys")
def test_the_snapshot_has_no_history() -> None:
    with pytest.raises(
        MissingDataError, match="p95 needs the spot prices of the last 30 days in us-east-1"
    ) as caught:
        load_catalog("aws-us-east-1", prices="snapshot", price_basis="p95")
    assert caught.value.exit_code == 4
    assert "'deepvm catalog refresh --region us-east-1 --days 30'" in str(caught.value)


@pytest.mark.parametrize(("network", "gbps"), [("peak", (25, 10)), ("baseline", (5, None))])
def test_the_bandwidth_that_counts(
    network: str, gbps: tuple[float, float | None], tmp_path: Path
) -> None:
    """A type of which only the peak is known has no bandwidth to count with where the baseline
    counts.
    """
    keep()
    found = open_market(REGION, replace(OFFLINE, network=network), now=NOW)
    assert (found["g4dn.xlarge"].network_gbps, found["c5.xlarge"].network_gbps) == gbps
    for name in ("own.json", "own.csv"):
        save_catalog(catalog(gpu_type(network_baseline_gbps=5.0), cpu_type()), tmp_path / name)
        own = load_catalog(tmp_path / name, network=network)
        assert (own["gpu.xlarge"].network_gbps, own["cpu.xlarge"].network_gbps) == gbps


def test_no_baseline_at_all_is_an_error(tmp_path: Path) -> None:
    save_catalog(catalog(), tmp_path / "own.json")
    keep("us-west-2", {"specs": {"c5.xlarge": {"vcpus": 4, "peak_gbps": 10.0}}})
    for name in ("paper", str(tmp_path / "own.json"), "aws-us-west-2"):
        with pytest.raises(MissingDataError, match="does not say what networks sustain"):
            load_catalog(name, offline=True, network="baseline")


# Placement scores


SIX = tuple(gpu_type(f"g4dn.{n}", spot_usd_per_hour=f"0.{n}") for n in (6, 5, 4, 3, 2, 1))
OTHERS = (gpu_type("g5.1", gpu=Gpu("A10G")), gpu_type("g4dn.7", spot_usd_per_hour=None), cpu_type())
OFFER = catalog(*SIX, *OTHERS, region=REGION)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize(
    ("request_", "has_keys", "reason"),
    [
        (OFFLINE, True, "offline"),
        (SNAPSHOT, True, "only the snapshot is used"),
        (AUTO, False, "no AWS credentials"),
    ],
    ids=["offline", "snapshot", "no credentials"],
)
def test_scores_where_aws_may_not_be_asked(
    request_: MarketRequest, has_keys: bool, reason: str, request: pytest.FixtureRequest
) -> None:
    if has_keys:
        request.getfixturevalue("keys")
    with pytest.raises(CloudError, match=f"^spot placement scores in {REGION}: ") as caught:
        placement(OFFER, SIX[0], 3, request_, now=NOW)
    assert (caught.value.exit_code, caught.value.why) == (5, "credentials")
    assert reason in caught.value.detail and "deepvm doctor" in caught.value.advice


def test_scores_are_asked_for_once_and_sorted(aws: FakeAws) -> None:
    lines: list[str] = []
    found = placement(OFFER, SIX[0], 3, AUTO, now=NOW, progress=lines.append)
    assert list(found.scores.items()) == [
        ("use1-az2", 9),
        ("use1-az4", 9),
        ("use1-az6", 7),
        ("use1-az1", 3),
    ]
    # The wanted type, and the cheapest others with the same GPU that have a spot price; AWS wants
    # at least three.
    assert found.instance_types == ("g4dn.6", "g4dn.1", "g4dn.2", "g4dn.3", "g4dn.4")
    assert (found.region, found.count, found.observed_at) == (REGION, 3, NOW)
    assert lines == [f"asking AWS for spot placement scores in {REGION}"]
    again = placement(OFFER, SIX[0], 3, AUTO, now=after(minutes=9), progress=lines.append)
    assert (again, list(again.scores.items())) == (found, list(found.scores.items()))
    assert (aws.asked, len(lines)) == (["GetSpotPlacementScores"], 1)


def test_another_question_and_an_old_answer_are_asked_again(aws: FakeAws) -> None:
    for asked, (wanted, count, minutes) in enumerate(
        [(0, 3, 0), (0, 4, 0), (5, 3, 0), (0, 3, 10)], 1
    ):
        found = placement(OFFER, SIX[wanted], count, AUTO, now=after(minutes=minutes))
        assert (found.instance_types[0], found.count) == (SIX[wanted].name, count)
        assert aws.asked == ["GetSpotPlacementScores"] * asked


# What went wrong once


@pytest.mark.parametrize("broken", ["AWS_PROFILE", "AWS_CONFIG_FILE"])
def test_settings_of_aws_do_not_matter_offline(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[profile")
    monkeypatch.setenv(broken, "missing" if broken == "AWS_PROFILE" else str(tmp_path / "config"))
    with pytest.raises(MissingDataError, match=r"did you mean us-east-1\?$"):
        open_markets(["us-eat-1"], OFFLINE, now=NOW)


def test_a_refused_history_keeps_its_cause(aws: FakeAws) -> None:
    keep()
    aws.denied = {"DescribeSpotPriceHistory"}
    with pytest.raises(
        CloudError, match="^--price-basis p95 needs the spot prices of the last 30 days"
    ) as caught:
        open_market(REGION, MarketRequest(price_basis="p95"), now=NOW)
    assert caught.value.why == "permission"


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("given", [{"price_basis": "p95"}, {"zone": "use1-az4"}], ids=str)
def test_what_only_the_choice_lacks_is_said_of_the_choice(given: dict[str, str]) -> None:
    with pytest.raises(CloudError, match="^--(price-basis p95|zone use1-az4)"):
        open_market(REGION, MarketRequest(**given), now=NOW)  # type: ignore[arg-type]


def test_a_region_without_baselines_becomes_a_note() -> None:
    specs = {
        n: {k: v for k, v in s.items() if k != "baseline_gbps"}
        for n, s in facts("eu-north-1")["specs"].items()
    }
    keep("eu-north-1", {"specs": specs})
    (found,) = open_markets(
        [REGION, "eu-north-1"], MarketRequest(offline=True, network="baseline"), now=NOW
    )
    assert found.region == REGION
    assert any("eu-north-1" in n and "network_baseline_gbps" in n for n in found.provenance.notes)


def test_days_without_a_basis_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert open_market("", MarketRequest(days=7), now=NOW).region == REGION


def test_network_is_checked_for_every_catalog() -> None:
    with pytest.raises(RequestError, match="network: 'fast'"):
        load_catalog("paper", network="fast")


def test_all_regions_are_those_with_prices() -> None:
    keep("eu-west-3", {"specs": None})
    keep("eu-north-1")
    found = open_markets(["all"], OFFLINE, now=NOW)
    assert sorted(regions_of(found)) == ["eu-north-1", REGION]
    assert not any("eu-west-3" in note for note in found[0].provenance.notes)
