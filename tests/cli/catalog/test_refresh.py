"""``catalog refresh`` and ``catalog status`` in processes of their own, against an AWS that answers
over HTTP.
"""

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.catalog_signals import together
from support.command import COUNTED
from support.http_server import QuietServer
from support.moto_server import moto_server
from support.pace import soon
from support.places import ROOT
from support.schemas import check

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.providers import AdvisorProvider, aws_providers
from deepvm.catalog.signals.cache import Cache, default_folder
from deepvm.errors import CloudError

KEY, SECRET, TOKEN = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "FwoGZXIvYXdzEBYaDEXAMPLETOKEN",
)
ADVISOR = {
    "spot_advisor": {
        region: {"Linux": {"g4dn.xlarge": {"s": 70, "r": 2}, "c5.large": {"s": 50, "r": 0}}}
        for region in ("us-east-1", "eu-west-1")
    }
}


@pytest.fixture(scope="module")
def aws():
    with moto_server() as url:
        yield url


@pytest.fixture(scope="module")
def advisor():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(ADVISOR).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/data.json"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def closed():
    """An address where nobody answers."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def environment(tmp_path):
    """A machine without AWS: nothing of the real one's settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "DEEPVM_CACHE_DIR": str(tmp_path / "cache"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "PYTHONDONTWRITEBYTECODE": "1",
        **COUNTED,
    }


@pytest.fixture
def with_aws(environment, aws, advisor):
    return environment | {
        "AWS_ENDPOINT_URL": aws,
        "DEEPVM_ADVISOR_URL": advisor,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
    }


def start(environment, *words):
    return subprocess.Popen(
        [sys.executable, "-m", "deepvm.cli.main", "catalog", *words],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def deepvm(environment, *words, code=0):
    process = start(environment, *words)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    for text in (KEY, SECRET, TOKEN):
        assert text not in out + err
    return out, err


def table(text):
    header, *rows = [re.split(r" {2,}", line.strip()) for line in text.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


def statuses(environment, *words):
    out, _ = deepvm(environment, "status", "-o", "json", *words)
    document = json.loads(out)
    check(document, "catalog-status")
    return document


def cached(environment, *words):
    return {
        (s["region"], s["signal"]): s
        for s in statuses(environment, *words)["signals"]
        if s["state"] != "snapshot"
    }


def files(environment):
    return sorted(p for p in Path(environment["DEEPVM_CACHE_DIR"]).rglob("*.json") if p.is_file())


# Without AWS


def test_nothing_kept_yet(environment):
    out, err = deepvm(environment, "status")
    assert {row["state"] for row in table(out)} == {"snapshot"}
    assert (
        "is empty" in err
        and environment["DEEPVM_CACHE_DIR"] in err
        and "deepvm catalog refresh" in err
    )
    assert not Path(environment["DEEPVM_CACHE_DIR"]).exists()


def test_no_home_at_all(environment):
    bare = {k: v for k, v in environment.items() if k != "DEEPVM_CACHE_DIR"} | {
        "XDG_CACHE_HOME": "relative"
    }
    _, err = deepvm(bare, "status")
    assert "no home folder" in err
    assert statuses(bare)["cache"]["folder"] is None


def test_without_credentials_refresh_says_what_to_do(environment, advisor):
    out, err = deepvm(environment | {"DEEPVM_ADVISOR_URL": advisor}, "refresh", code=5)
    results = {row["signal"]: row["result"] for row in table(out)}
    assert results.pop("advisor") == "fetched"  # public
    assert set(results.values()) == {"failed: AWS credentials do not work"} and len(results) == 6
    assert err.count("no AWS credentials were found") == 1 and "aws configure" in err
    assert err.splitlines()[0].startswith("region us-east-1 (the default")
    assert err.splitlines()[-1].startswith("Error: nothing came from AWS for us-east-1: ")


def test_what_is_public_may_be_asked_for_alone(environment, advisor):
    mirror = environment | {"DEEPVM_ADVISOR_URL": advisor}
    out, _ = deepvm(mirror, "refresh", "--only", "advisor", "-r", "us-east-1", "-r", "eu-west-1")
    assert [(r["region"], r["result"], r["rows"]) for r in table(out)] == [
        ("us-east-1", "fetched", "2"),
        ("eu-west-1", "fetched", "2"),
    ]
    assert cached(mirror)["eu-west-1", "advisor"]["state"] == "fresh"


def test_no_list_of_regions_without_credentials(environment):
    _, err = deepvm(environment, "refresh", "-r", "all", code=5)
    assert "the list of regions" in err and "aws configure" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--offline"], "--offline"),
        (["--only", "weather"], "weather"),
        (["--only", "history"], "--days"),
        (["--days", "91"], "--days"),
        (["-r", "us-east-1a"], "us-east-1"),
    ],
    ids=str,
)
def test_wrong_usage_of_refresh(words, said, environment):
    out, err = deepvm(environment, "refresh", *words, code=2)
    assert out == "" and said in err.splitlines()[-1]


def test_wrong_usage_of_status(environment):
    _, err = deepvm(environment, "status", "-r", "../x", code=2)
    assert "../x" in err
    deepvm(environment, "status", "-o", "toml", code=2)


def test_a_profile_that_does_not_exist(environment):
    _, err = deepvm(environment, "refresh", "--profile", "nobody", "--only", "zones", code=5)
    assert "nobody" in err.splitlines()[-1]


def test_nobody_answers(environment, closed):
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_MAX_ATTEMPTS": "1"}
    out, err = deepvm(
        environment | keys | {"AWS_ENDPOINT_URL": closed}, "refresh", "--only", "zones", code=5
    )
    assert table(out)[0]["result"] == "failed: the source cannot be reached"
    assert err.count("cannot be reached") == 1


# With AWS


def test_from_an_empty_cache_to_an_expired_one(with_aws):
    """All signals.

    Prices on demand and quotas are what this AWS lacks, and they cost nothing but themselves.
    """
    out, err = deepvm(with_aws, "refresh", "-r", "us-east-1")
    results = {row["signal"]: row for row in table(out)}
    failed = {k for k, row in results.items() if row["result"] != "fetched"}
    assert failed <= {"on-demand", "quotas"} and "on-demand" in failed
    assert int(results["specs"]["rows"]) > 1000 and int(results["spot"]["rows"]) > 1000
    assert results["zones"]["rows"] == "6" and results["advisor"]["rows"] == "2"
    assert "us-east-1: fetching specifications, " in err and "us-east-1: zones fetched (" in err
    assert (
        "Note: on-demand prices of us-east-1: the answer cannot be used (pricing GetProducts" in err
    )

    before = {p: p.read_bytes() for p in files(with_aws)}
    found = cached(with_aws)
    assert {k for (_, k), s in found.items() if s["state"] == "fresh"} == set(results) - failed
    absent = found["us-east-1", "on-demand"]
    assert (absent["state"], absent["row_count"]) == ("absent", None)
    assert absent["next_step"] == "deepvm catalog refresh --region us-east-1 --only on-demand"
    assert found["us-east-1", "specs"]["row_count"] == int(results["specs"]["rows"])
    assert found["us-east-1", "specs"]["next_step"] is None
    assert {p: p.read_bytes() for p in files(with_aws)} == before

    spot = next(p for p in before if p.name == "spot.json")
    spot.write_bytes(spot.read_bytes().replace(b"0.", b"1.", 1))
    rows = {
        row["signal"]: row
        for row in table(deepvm(with_aws, "status", "-r", "us-east-1")[0])
        if row["rows"] == "-"
    }
    assert rows["spot"]["state"] == "damaged" and rows["spot"]["next step"].endswith("--only spot")
    deepvm(with_aws, "refresh", "-r", "us-east-1", "--only", "spot", "--only", "spot")
    assert cached(with_aws)["us-east-1", "spot"]["state"] == "fresh"

    secrets = [s.encode() for s in (KEY, SECRET, TOKEN)]
    for path in Path(with_aws["DEEPVM_CACHE_DIR"]).rglob("*"):
        assert not any(s.decode() in str(path) for s in secrets)
        assert not path.is_file() or not any(s in path.read_bytes() for s in secrets)


def test_two_regions_and_an_account(with_aws):
    words = [
        "-r",
        "us-east-1",
        "-r",
        "eu-west-1",
        "-r",
        "us-east-1",
        "--only",
        "zones",
        "--only",
        "advisor",
    ]
    out, _ = deepvm(with_aws, "refresh", *words)
    assert [(r["region"], r["signal"], r["result"]) for r in table(out)] == [
        (region, kind, "fetched")
        for region in ("us-east-1", "eu-west-1")
        for kind in ("zones", "advisor")
    ]
    found = cached(with_aws)
    assert {k: s["state"] for k, s in found.items() if s["state"] != "absent"} == {
        (region, kind): "fresh"
        for region in ("us-east-1", "eu-west-1")
        for kind in ("zones", "advisor")
    }
    assert len(found) == 14 and set(cached(with_aws, "-r", "eu-west-1")) == {
        k for k in found if k[0] == "eu-west-1"
    }
    # Another account has other zones, and sees the rest.
    other = with_aws | {"AWS_ACCESS_KEY_ID": "AKIAI44QH8DHBEXAMPLE"}
    assert cached(other)["us-east-1", "zones"]["state"] == "absent"
    assert cached(other)["us-east-1", "advisor"]["state"] == "fresh"
    assert statuses(other)["cache"]["account"] != statuses(with_aws)["cache"]["account"]


@pytest.mark.slow
def test_all_regions(with_aws):
    out, err = deepvm(with_aws, "refresh", "-r", "all", "--only", "zones")
    regions = [row["region"] for row in table(out)]
    assert len(regions) > 10 and regions == sorted(regions) and "us-east-1" in regions
    assert {row["result"] for row in table(out)} == {"fetched"} and "Note" not in err


def test_a_signal_that_fails_for_one_region(with_aws):
    _, err = deepvm(with_aws, "refresh", "-r", "us-west-2", "--only", "zones", "--only", "advisor")
    (note,) = [line for line in err.splitlines() if line.startswith("Note")]
    assert note.startswith("Note: interruption rates of us-west-2: ")
    _, err = deepvm(
        with_aws, "refresh", "-r", "us-west-2", "-r", "us-east-1", "--only", "advisor", code=5
    )
    assert err.splitlines()[-1].startswith("Error: nothing came from AWS for us-west-2: ")


def test_a_note_about_days_without_effect(with_aws):
    _, err = deepvm(with_aws, "refresh", "--only", "zones", "--days", "7")
    assert "--days 7 has no effect" in err


def test_an_interrupt_leaves_at_once(environment):
    """AWS takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.getsockname()[1]}"}
        process = start(
            environment | keys | address, "refresh", "--only", "zones", "-r", "us-east-1"
        )
        server.settimeout(60)
        with server.accept()[0], soon(5):
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err and out == "" and files(environment) == []


# Resolution with the real providers


@pytest.fixture
def market(with_aws, monkeypatch):
    for name in list(os.environ):
        if name.startswith(("AWS_", "DEEPVM_")):
            monkeypatch.delenv(name)
    for name, value in with_aws.items():
        monkeypatch.setenv(name, value)
    asked = []

    def providers():
        asked.append(1)
        return {**aws_providers(Aws()), "advisor": AdvisorProvider()}

    def get(
        now,
        mode="auto",
        regions=("us-east-1",),
        kinds=("zones", "advisor", "on-demand"),
        offline=False,
    ):
        asked.clear()
        cache = Cache(default_folder(), DEFAULT_CLOUD.account_tag(""))
        return together(
            regions,
            kinds,
            mode,
            cache=cache,
            providers=None if offline else providers,
            snapshot=lambda _: {},
            now=now,
            not_asked="offline" if offline else "",
        )

    get.asked = asked
    return get


def test_live_with_an_aws_that_lacks_prices_on_demand(market):
    """One price that is not live is a promise not kept, even if the other came."""
    now = datetime.now(timezone.utc)
    found = market(now, "live", kinds=("spot", "zones"))
    assert found.of_region("us-east-1")["spot"].origin == "live" and market.asked == [1]
    with pytest.raises(CloudError) as caught:
        market(now, "live", kinds=("on-demand", "spot")).check_live("us-east-1")
    failed = caught.value
    assert failed.why == "reply" and failed.exit_code == 5 and "--prices auto" in str(failed)
    for text in (KEY, SECRET, TOKEN):
        assert text not in repr((found, failed, str(failed)))


def test_what_cannot_be_kept_is_no_success(market, monkeypatch, tmp_path, run):
    """A timer looks at the exit code alone."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DEEPVM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    code, out, err = run("catalog", "refresh", "--region", "us-east-1", "--only", "zones")
    assert code == 4 and "fetched" in out
    assert "Error: the fetched data could not be cached" in err and "DEEPVM_CACHE_DIR" in err
