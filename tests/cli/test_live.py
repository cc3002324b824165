"""Plans on live prices, from the first fetch to the export, as a user runs them: processes, HTTP, a
cache folder.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command import Run
from support.fake_aws import FakeAws, serving
from support.schemas import check

KEY, SECRET, TOKEN = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMIplantedSECRETbPxRfiCYEX",
    "FwoGZXIvYXdzEplantedTOKEN//////////",
)
SPOT, VT_ON_DEMAND, STANDARD = "L-3819A6DF", "L-DB2E81BA", "L-1216C47A"


@pytest.fixture(scope="module")
def aws() -> Iterator[FakeAws]:
    pytest.importorskip("moto.server")
    prices = {
        "g4dn.xlarge": "0.526",
        "g5.xlarge": "1.006",
        "c5n.xlarge": "0.216",
        "t3.xlarge": "0.1664",
        "m5.large": "0",
    }
    spot = {
        "g4dn.xlarge": {
            "us-east-1a": [(900, "0.30"), (2, "0.2100")],
            "us-east-1b": [(900, "0.2200")],
            # A price that cannot be true, which must change nothing below
            "us-east-1c": [(900, "0.00000001")],
        },
        "g5.xlarge": {"us-east-1b": [(900, "0.5000"), (600, "0.6000"), (1, "0.4000")]},
    }
    west = {"g4dn.xlarge": {"us-west-2a": [(900, "0.1800")]}}
    fake = FakeAws(
        on_demand={"us-east-1": prices, "us-west-2": {**prices, "c5n.xlarge": "0.22"}},
        spot={"us-east-1": spot, "us-west-2": west},
        quotas={SPOT: 64.0, VT_ON_DEMAND: 8.0, STANDARD: 32.0},
        scores={"use1-az6": 7, "use1-az1": 9},
    )
    with serving(fake):
        yield fake


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture
def environment(aws: FakeAws, folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(folder),
        "DEEPVM_CACHE_DIR": str(folder / "cache"),
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "DEEPVM_ADVISOR_URL": "http://127.0.0.1:9/none.json",
    }


_RUN: list[Run] = []


@pytest.fixture(autouse=True)
def _in_this_process(run: Run) -> None:
    _RUN[:] = [run]


def deepvm(
    environment: dict[str, str], *words: str, code: int = 0, process: bool = False
) -> subprocess.CompletedProcess[str]:
    """``process``: in one of its own."""
    if process:
        command = [sys.executable, "-m", "deepvm.cli.main", *words]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=240, env=environment
        )
    else:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            ended = subprocess.CompletedProcess(words, *_RUN[0](*words))
    assert ended.returncode == code, ended.stderr
    for secret in (KEY, SECRET, TOKEN):
        assert secret not in ended.stdout + ended.stderr
    return ended


def plan(environment: dict[str, str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        deepvm(environment, "recommend", "--pw", "3", "-o", "json", *words).stdout
    )
    check(found, "recommend")
    return found


def test_from_an_empty_cache_to_a_warm_one(aws: FakeAws, environment: dict[str, str]) -> None:
    first = deepvm(environment, "recommend", "--pw", "3", "-o", "json", process=True)
    found = json.loads(first.stdout)
    assert "fetching" in first.stderr
    best = found["configurations"][0]
    assert (
        best["gpu"]["instance_type"],
        best["gpu"]["count"],
        best["memory"]["instance_type"],
    ) == ("g4dn.xlarge", 13, "c5n.xlarge")
    assert best["usd_per_hour"] == 13 * 0.21 + 0.216
    assert best["zone"] == "use1-az6"
    assert [z["zone_name"] for z in best["gpu"]["zones"]] == ["us-east-1a", "us-east-1b"]
    assert best["gpu"]["spot_price"]["kind"] == "live"
    assert (
        "g4dn.xlarge on the spot market in use1-az2 at $0.000001/h is below 2 % of its on-demand"
        in first.stderr
    )
    (spot,) = [s for s in found["source"]["signals"] if s["signal"] == "spot"]
    assert spot["refused"] == {"implausible price": 1}
    assert best["quotas"][0] == {
        "family": "G and VT",
        "market": "spot",
        "vcpus": 52,
        "limit": 64,
        "in_use": 0,
        "code": SPOT,
    }
    kinds = {s["signal"]: s["kind"] for s in found["source"]["signals"]}
    assert kinds["specs"] == kinds["spot"] == kinds["on-demand"] == kinds["quotas"] == "live"
    assert kinds["advisor"] == "embedded"  # nobody answers there: one signal lost, not the run
    refused = {s["signal"]: s["refused"] for s in found["source"]["signals"]}
    assert sum(refused["on-demand"].values()) == 1  # m5.large at 0.00
    before = len(aws.asked)
    warm = plan({**environment, "DEEPVM_ADVISOR_URL": "http://127.0.0.1:9/none.json"})
    assert aws.asked[before:] == []
    assert warm["configurations"] == [
        c | {"gpu": _from_cache(c["gpu"]), "memory": _from_cache(c["memory"])}
        for c in found["configurations"]
    ]


def _from_cache(group: dict[str, Any] | None) -> dict[str, Any] | None:
    return group and group | {
        k: v | {"kind": "cache"} for k, v in group.items() if k.endswith("_price")
    }


def test_a_plan_that_hits_a_quota_names_it(environment: dict[str, str]) -> None:
    ended = deepvm(
        environment,
        "recommend",
        "--pw",
        "30",
        "--top",
        "1",
        "--architecture",
        "tiering",
        "--gpu",
        "T4",
    )
    assert "17 x g4dn.xlarge would need 68 spot vCPUs of G and VT; the quota is 64" in ended.stdout
    assert "ask for at least 68 of All G and VT Spot Instance Requests (L-3819A6DF)" in ended.stdout
    assert re.search(
        r"Quotas: yours in us-east-1, \d+ s old; .*G and VT: 64 spot vCPUs", ended.stdout
    )


@pytest.mark.parametrize("zone", ["use1-az1", "us-east-1b"])
def test_one_zone(zone: str, environment: dict[str, str]) -> None:
    best = plan(environment, "--zone", zone, "--gpu", "T4")["configurations"][0]
    assert best["zone"] == "use1-az1"
    assert best["gpu"]["spot_usd_per_hour"] == 0.22


def test_a_zone_that_is_not_there(environment: dict[str, str]) -> None:
    ended = deepvm(environment, "recommend", "--pw", "3", "--zone", "use1-az9", code=2)
    assert "use1-az6 (us-east-1a)" in ended.stderr


@pytest.mark.slow
def test_the_price_of_bad_days(environment: dict[str, str]) -> None:
    found = plan(environment, "--price-basis", "p95", "--days", "30", "--gpu", "T4")
    best = found["configurations"][0]
    # Az6 cost 0.30 until two hours ago
    assert (best["zone"], best["gpu"]["spot_usd_per_hour"]) == ("use1-az1", 0.22)
    assert found["source"]["price_basis"] == "p95 of 30 days"
    median = plan(
        environment, "--price-basis", "p50", "--gpu", "A10G", "--instance-type", "g5.xlarge"
    )
    assert median["configurations"][0]["gpu"]["spot_usd_per_hour"] == 0.6
    highest = plan(
        environment, "--price-basis", "max", "--days", "40", "--instance-type", "g5.xlarge"
    )
    assert highest["configurations"][0]["gpu"]["spot_usd_per_hour"] == 0.6


@pytest.mark.slow
def test_placement_scores(aws: FakeAws, environment: dict[str, str]) -> None:
    found = plan(environment, "--placement-scores")
    assert found["placement"]["scores"] == [
        {"zone": "use1-az1", "score": 9},
        {"zone": "use1-az6", "score": 7},
    ]
    assert found["placement"]["vm_count"] == 13
    before = len(aws.asked)
    ended = deepvm(environment, "recommend", "--pw", "3", "--placement-scores")
    assert "Placement: AWS scores 13 spot VMs of g4dn.xlarge" in ended.stdout
    assert "GetSpotPlacementScores" not in aws.asked[before:]
    refused = deepvm(environment, "recommend", "--pw", "3", "--placement-scores", "--offline")
    assert "no placement scores: " in refused.stderr
    trained = deepvm(
        environment,
        "recommend",
        "3",
        "--model",
        "resnet50",
        "--placement-scores",
        "--prices",
        "live",
    )
    assert "Placement: AWS scores " in trained.stdout


@pytest.mark.slow
def test_survive_asks_for_scores_where_it_may(aws: FakeAws, environment: dict[str, str]) -> None:
    words = [
        "survive",
        "--instance-type",
        "g4dn.xlarge",
        "--count",
        "8",
        "--for",
        "4h",
        "-o",
        "json",
    ]

    def ask(*more: str) -> dict[str, Any]:
        ended = deepvm(environment, *words, *more)
        assert ended.returncode == 0, ended.stderr
        return dict(json.loads(ended.stdout))

    best, other = ask(), ask("--zone", "us-east-1a")
    assert (best["evidence"]["placement_score"], best["zone"]) == (9, None)
    assert (other["evidence"]["placement_score"], other["zone"]) == (7, "us-east-1a")
    assert other["had"]["value"] < best["had"]["value"]
    before = len(aws.asked)
    silent = [ask("--offline"), ask("--prices", "snapshot", "-r", "us-east-1")]
    assert [one["evidence"]["placement_score"] for one in silent] == [None, None]
    assert len(aws.asked) == before
    assert silent[0]["had"]["value"] < best["had"]["value"]
    assert silent[0]["lasts"] == best["lasts"]


@pytest.mark.slow
def test_two_regions_in_one_table(environment: dict[str, str]) -> None:
    ended = deepvm(environment, "recommend", "--pw", "3", "-r", "us-east-1", "-r", "us-west-2")
    rows = [line.split()[:3] for line in ended.stdout.splitlines() if line[:1].isdigit()]
    assert rows[0] == ["1", "us-west-2", "tiering"]
    assert "Region us-east-1: 13 x g4dn.xlarge" in ended.stdout
    both = deepvm(
        environment, "recommend", "--pw", "3", "-r", "us-east-1", "-r", "us-west-2", "--top", "30"
    )
    assert {line.split()[1] for line in both.stdout.splitlines() if line[:2].strip().isdigit()} == {
        "us-west-2",
        "us-east-1",
    }
    found = plan(environment, "-r", "us-east-1", "-r", "us-west-2")
    assert [r["region"] for r in found["regions"]] == ["us-west-2", "us-east-1"]
    assert found["configurations"][0]["region"] == "us-west-2"


def test_exports_know_zones_and_no_secrets(environment: dict[str, str], folder: Path) -> None:
    file = folder / "plan.json"
    file.write_text(deepvm(environment, "recommend", "--pw", "3", "-o", "json").stdout)
    for engine in ("skypilot", "ec2-fleet", "terraform", "torchrun"):
        deepvm(
            environment, "export", str(file), "--to", engine, "--output-dir", str(folder / engine)
        )
    fleet = "".join(p.read_text() for p in (folder / "ec2-fleet").iterdir())
    assert "use1-az6" in fleet
    assert "use1-az1" not in fleet  # 13 x 0.22 + 0.216 would be more than $3/h
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 12  # the cache, the plan, the exports
    for path in files:
        content = path.read_bytes()
        assert not [s for s in (KEY, SECRET, TOKEN) if s.encode() in content], path


def test_offline_opens_nothing(aws: FakeAws, environment: dict[str, str]) -> None:
    plan(environment)  # may be the first here
    before = len(aws.asked)
    offline = {**environment, "AWS_ENDPOINT_URL": aws.url}
    assert plan(offline, "--offline")["source"]["kind"] == "cache"
    assert plan(offline, "--prices", "snapshot")["source"]["kind"] == "embedded"
    assert aws.asked[before:] == []


def test_live_asks_for_prices_again(aws: FakeAws, environment: dict[str, str]) -> None:
    plan(environment)  # may be the first here
    before = len(aws.asked)
    found = plan(environment, "--prices", "live")
    assert found["source"]["kind"] == "live"
    again = set(aws.asked[before:])
    assert {"GetProducts", "DescribeSpotPriceHistory"} <= again
    assert "DescribeInstanceTypes" not in again


@pytest.mark.slow
def test_a_missing_permission_costs_one_signal(
    aws: FakeAws, environment: dict[str, str], tmp_path: Path
) -> None:
    aws.denied = {"GetProducts"}
    try:
        ended = deepvm(
            {**environment, "DEEPVM_CACHE_DIR": str(tmp_path)},
            "recommend",
            "--pw",
            "3",
            "-o",
            "json",
        )
    finally:
        aws.denied = set()
    assert "pricing:GetProducts" in ended.stderr
    kinds = {s["signal"]: s["kind"] for s in json.loads(ended.stdout)["source"]["signals"]}
    assert (kinds["spot"], kinds["on-demand"]) == ("live", "embedded")


def test_types_that_are_not_offered_are_explained(environment: dict[str, str]) -> None:
    ended = deepvm(environment, "explain", "p2.xlarge", "--pw", "3", code=2)
    assert "AWS no longer lists P2 types" in ended.stderr
    ended = deepvm(environment, "explain", "g6.xlarge", "--pw", "3", code=2)
    assert "g6.xlarge has no price in us-east-1" in ended.stderr
    ended = deepvm(environment, "explain", "g4dn.metal", "--pw", "3", "--zone", "use1-az3", code=2)
    assert "a zone in which something is offered: " in ended.stderr
