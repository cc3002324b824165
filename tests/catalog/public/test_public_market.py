"""A source's cache and its file over local HTTP: patience, faults, refreshes that are killed, no
credentials.
"""

from __future__ import annotations

import gzip
import os
import signal as signals
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from support.pace import soon
from support.public_catalogs import (
    AWS_HEAD,
    AWS_ROWS,
    HUNT_HEAD,
    HUNT_ROWS,
    PublicServer,
    csv_file,
    gpuhunt_csv,
    public_server,
    skypilot_file,
    zipped,
)
from support.spot_advisor import say, serving

from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public import offers as integrity
from deepvm.catalog.public.public_market import QUICK_S, PublicCatalog, Signals
from deepvm.catalog.signals.cache import Cache
from deepvm.catalog.signals.fetching import SignalRequest
from deepvm.catalog.signals.signal import ON_DEMAND, REGIONS, SPECS, SPOT, Signal, age
from deepvm.errors import RequestError

NOW = datetime(2026, 11, 27, 9, 0, tzinfo=timezone.utc)
PATH = "/v8/aws/vms.csv"
QUICK_TOTAL_S = 0.6
FILE = skypilot_file("aws")


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in SOURCES:
        monkeypatch.delenv(SOURCES[name].variable, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PublicServer]:
    with public_server() as found:
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", found.url)
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", found.url)
        yield found


def market(
    tmp_path: Path,
    now: datetime = NOW,
    name: str = "skypilot",
    cloud: str = "aws",
    wait_s: float = QUICK_S,
) -> PublicCatalog:
    cache = Cache(tmp_path / f"source_{name}", "public", SOURCES[name].period_s)
    return PublicCatalog(SOURCES[name], REGISTRY[cloud], cache, cache, now, wait_s=wait_s)


def prices(signals: Signals, region: str = "us-east-1") -> Any:
    signal = signals.get(SignalRequest(region, ON_DEMAND))
    return None if signal is None else signal.data


def spot(signals: Signals, region: str = "us-east-1") -> Signal:
    return signals[SignalRequest(region, SPOT)]


class TestAnAnswer:
    def test_all_regions_of_the_file_are_kept(self, server: PublicServer, tmp_path: Path) -> None:
        catalog = market(tmp_path, wait_s=30)
        signals = catalog.latest(["us-east-1"])
        assert prices(signals)["g5.xlarge"] == "1.006" and catalog.error is None
        signal = spot(signals)
        assert (signal.origin, signal.source) == ("live", "skypilot-catalog")
        assert signal.observed_at == NOW
        kept = market(tmp_path, NOW + timedelta(hours=1), wait_s=0).latest(
            ["us-east-1", "us-west-2"]
        )
        assert prices(kept) == prices(signals)
        assert prices(kept, "us-west-2")["c5.2xlarge"] == "0.34"
        assert market(tmp_path).regions() == ("us-east-1", "us-west-2")

    def test_it_is_asked_once_in_its_publishers_period(
        self, server: PublicServer, tmp_path: Path
    ) -> None:
        for hours, asked in ((0, 1), (6, 1), (8, 2)):
            later = NOW + timedelta(hours=hours)
            # A region that the file lacks does not ask again
            signals = market(tmp_path, later, wait_s=30).latest(["us-east-1", "eu-west-9"])
            assert prices(signals) and not prices(signals, "eu-west-9")
            assert len(server.asked) == asked

    def test_a_damaged_file_of_the_cache_does(self, server: PublicServer, tmp_path: Path) -> None:
        market(tmp_path).refresh()
        (tmp_path / "source_skypilot" / "us-east-1" / "specs.json").write_text("{}")
        signals = market(tmp_path, wait_s=30).latest(["us-east-1"])
        assert SignalRequest("us-east-1", SPECS) in signals and len(server.asked) == 2

    @pytest.mark.parametrize(
        ("written", "observed"),
        [
            ("Thu, 26 Nov 2026 20:00:00 GMT", datetime(2026, 11, 26, 20, tzinfo=timezone.utc)),
            ("Thu, 26 Nov 2099 20:00:00 GMT", NOW),
        ],
    )
    def test_the_server_says_when_the_file_was_written(
        self, server: PublicServer, tmp_path: Path, written: str, observed: datetime
    ) -> None:
        server.answers[PATH] = say(FILE, **{"Last-Modified": written})
        assert spot(market(tmp_path).refresh()).observed_at == observed

    def test_a_file_without_a_date_may_be_as_old_as_its_publisher_lets_it_get(
        self, server: PublicServer, tmp_path: Path
    ) -> None:
        """GitHub's raw files have no Last-Modified: their prices are not called today's."""
        server.answers[PATH] = say(FILE)
        signal = spot(market(tmp_path).refresh())
        assert signal.observed_at == NOW - timedelta(hours=7) and not signal.dated
        kept = spot(market(tmp_path, wait_s=0).latest(["us-east-1"]))
        assert not kept.dated, "the cache knows, too"
        assert age(kept.observed_at, NOW + timedelta(hours=2), kept.dated) == "at most 9 h"

    def test_a_file_that_is_not_renewed_is_as_old_as_its_end(
        self, server: PublicServer, tmp_path: Path
    ) -> None:
        server.answers["/v6/azure/vms.csv"] = say(skypilot_file("azure"))
        signal = spot(market(tmp_path, cloud="azure").refresh(), "eastus")
        assert signal.observed_at.date().isoformat() == "2025-04-28" and signal.dated

    def test_packed_files_are_unpacked(self, server: PublicServer, tmp_path: Path) -> None:
        server.answers[PATH] = say(gzip.compress(FILE), **{"Content-Encoding": "gzip"})
        assert prices(market(tmp_path).refresh())
        assert "gzip" in server.headers[0]


def test_every_source_says_what_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SOURCES:
        found = SOURCES[name]
        monkeypatch.delenv(found.variable, raising=False)
        assert found.name == name and found.licence and found.period_s >= 3600
        assert found.address.startswith("https://")
        assert all(found.url(cloud).startswith(found.address) for cloud in found.paths)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://joe:s3cr3t@host/x", "here"])
def test_an_address_that_is_none_of_the_web_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str
) -> None:
    monkeypatch.setenv("DEEPVM_SKYPILOT_URL", url)
    with pytest.raises(RequestError, match="for DEEPVM_SKYPILOT_URL: ") as caught:
        market(tmp_path).latest(["us-east-1"])
    assert "s3cr3t" not in str(caught.value)


def test_no_credential_is_sent(
    server: PublicServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI-K7MDENG",
        "AWS_SESSION_TOKEN": "session-s3cr3t",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/joe/key.json",
        "RUNPOD_API_KEY": "rp-s3cr3t",
        "LAMBDA_API_KEY": "la-s3cr3t",
        "GITHUB_TOKEN": "ghp_s3cr3t",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login joe password netrc-s3cr3t\n")
    (tmp_path / ".netrc").chmod(0o600)
    for name in SOURCES:
        assert prices(market(tmp_path, name=name).refresh())
    sent = "\n".join((*server.headers, *server.asked))
    assert len(server.asked) == 3 and "deepvm" in sent
    assert not [v for v in (*secrets.values(), "netrc-s3cr3t", "joe") if v in sent]
    assert not [
        line
        for line in sent.lower().splitlines()
        if line.startswith(("authorization", "cookie", "proxy-"))
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_a_proxys_password_goes_to_the_proxy_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, whole: bool
) -> None:
    """urllib keeps it among the headers of a redirect, which may lead past the proxy."""
    seen: dict[str, list[str]] = {"proxy": [], "source": []}

    def source_answers(handler: Any) -> None:
        seen["source"].append(str(handler.headers))
        say(FILE)(handler)

    def proxy_answers(handler: Any) -> None:
        seen["proxy"].append(f"{handler.path}\n{handler.headers}")
        (say(FILE) if whole else say(b"", 302, Location=f"{direct}/vms.csv"))(handler)

    with serving(source_answers) as direct, serving(proxy_answers) as proxy:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, proxy.replace("//", "//joe:pr0xy-s3cr3t@"))
        monkeypatch.setenv("DEEPVM_SKYPILOT_URL", "http://catalogs.example")
        assert prices(market(tmp_path).refresh())
    (asked,) = seen["proxy"]
    assert asked.startswith("http://catalogs.example/v8/aws/vms.csv") and "Basic " in asked
    assert len(seen["source"]) == (not whole)
    assert not [s for s in seen["source"] if "authorization" in s.lower() or "joe" in s]


def pieces(
    body: bytes, pause_s: float, size: int = 100, length: bool = False
) -> Callable[[Any], None]:
    def answer(handler: Any) -> None:
        handler.send_response(200)
        if length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        for start in range(0, len(body), size):
            handler.wfile.write(body[start : start + size])
            time.sleep(pause_s)

    return answer


def endless(handler: Any) -> None:
    """100 MB, in quick pieces."""
    handler.send_response(200)
    handler.end_headers()
    line = f"{AWS_ROWS[6]}\n".encode()
    handler.wfile.write(f"{AWS_HEAD}\n".encode())
    for _ in range(100 * 2**20 // (1000 * len(line)) + 1):
        handler.wfile.write(line * 1000)


def silent(_: Any) -> None:
    time.sleep(2)


@dataclass(frozen=True)
class Form:
    """How a source sends its file of AWS: ``text`` is the CSV, ``pack`` makes what is sent."""

    path: str
    text: bytes
    head: str
    pack: Callable[[bytes], bytes] = bytes

    @property
    def file(self) -> bytes:
        return self.pack(self.text)

    def edited(self, old: str, new: str) -> Callable[[Any], None]:
        return say(self.pack(self.text.replace(old.encode(), new.encode())))

    def of_rows(self, rows: list[str]) -> Callable[[Any], None]:
        return say(self.pack(csv_file(self.head, rows)))

    def chunked(self, handler: Any) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n" % len(self.file) + self.file[:100])


HUNTED = [
    row.replace("us-east-1", region)
    for region in ("us-west-2", "eu-west-1")
    for row in HUNT_ROWS["aws"]
]
FORMS = {
    "skypilot": Form(PATH, FILE, AWS_HEAD),
    "gpuhunt": Form("/aws/20261127-12/catalog.zip", gpuhunt_csv("aws", *HUNTED), HUNT_HEAD, zipped),
}
ZERO = {
    "skypilot": [f"c5.{n}xlarge,,,8,16,,{n % 2}.0,0,us-east-1,use1-az1,x86_64" for n in range(20)],
    "gpuhunt": [f"c5.{n}xlarge,us-east-1,{-(n % 2)}.0,8,16.0,0,,,False,,,,x86," for n in range(20)],
}
BOMB = gzip.compress(bytes(100 * 2**20))
GZIP = {"Content-Encoding": "gzip"}

FAULTS: dict[str, tuple[Callable[[Form], Callable[[Any], None]], str]] = {
    # what the server does, and why the file is not used
    "promises more than it sends": (lambda f: say(f.file[:300], promised=len(f.file)), "network"),
    "ends within a row": (lambda f: say(f.pack(f.text[:-20])), "reply"),
    "ends within the file": (lambda f: say(f.file[:300]), "reply"),
    "ends within a chunk": (lambda f: f.chunked, "network"),
    "ends within a packed file": (lambda f: say(gzip.compress(f.file)[:-30], **GZIP), "network"),
    "is not packed as it says": (lambda f: say(f.file, **GZIP), "reply"),
    "unpacks to 100 MB": (lambda f: say(BOMB, **GZIP), "reply"),
    "has 100 MB": (lambda f: endless, "reply"),
    "says nothing": (lambda f: silent, "timeout"),
    "stalls in the middle": (lambda f: pieces(f.file, 1.0, 300), "timeout"),
    "drips": (lambda f: pieces(f.file, 0.05, 10), "timeout"),
    "is empty": (lambda f: say(b""), "reply"),
    "is a web page": (lambda f: say(b"<html><body>Sign in to the WiFi</body></html>\n"), "reply"),
    "is JSON": (lambda f: say(f.pack(b'{"message": "API rate limit exceeded"}\n')), "reply"),
    "is binary": (lambda f: say(f.pack(bytes(range(256)) * 50)), "reply"),
    "has other columns": (
        lambda f: say(f.pack(b"type,cost\n" + b"g5.xlarge,1.006\n" * 50)),
        "reply",
    ),
    "has a renamed column": (
        lambda f: f.edited("SpotPrice", "Spot") if f.text is FILE else f.edited("spot", "s"),
        "reply",
    ),
    "has shifted cells": (lambda f: f.edited("us-east-1,", "us-east-1,,"), "reply"),
    "has no rows": (lambda f: f.of_rows([]), "reply"),
    "has zero prices": (
        lambda f: f.of_rows(ZERO["skypilot" if f.text is FILE else "gpuhunt"]),
        "reply",
    ),
    "has negative prices": (lambda f: f.edited(",0.", ",-0."), "reply"),
    "has prices in words": (lambda f: f.edited(",0.", ",USD 0."), "reply"),
    "says 403": (lambda f: say(b"<Error/>", 403), "reply"),
    "says 404": (lambda f: say(b"404: Not Found", 404), "reply"),
    "says 429": (lambda f: say(b"Too Many Requests", 429), "throttled"),
    "says 500": (lambda f: say(b"", 500), "reply"),
    "says 503": (lambda f: say(b"", 503), "throttled"),
    "points to a local file": (lambda f: say(b"", 302, Location="file:///etc/passwd"), "reply"),
    "points to itself": (lambda f: say(b"", 302, Location=f.path), "reply"),
}


_CONTENTS = ("is JSON", "has other columns", "has a renamed column", "has shifted cells")


@pytest.mark.parametrize(
    ("name", "fault"),
    [*(("skypilot", f) for f in FAULTS), *(("gpuhunt", f) for f in (*_CONTENTS, "is binary"))],
)
def test_a_file_that_cannot_be_used_leaves_the_old_cache(
    server: PublicServer, tmp_path: Path, name: str, fault: str
) -> None:
    before = prices(market(tmp_path, name=name).refresh())
    assert before
    kept = contents(tmp_path)
    make, why = FAULTS[fault]
    server.answers[FORMS[name].path] = make(FORMS[name])
    catalog = market(tmp_path, NOW + timedelta(hours=9), name)
    with soon(8):
        catalog.refresh(total_s=QUICK_TOTAL_S)
    assert catalog.error is not None
    assert catalog.error.why in (why, "timeout" if "100 MB" in fault else why), catalog.error
    assert "\n" not in str(catalog.error) and catalog.error.advice
    assert {p: b for p, b in contents(tmp_path).items() if "failures" not in p} == kept
    signals = catalog.latest(["us-east-1"])
    assert prices(signals) == before
    assert (spot(signals).origin, spot(signals).observed_at) == ("expired", NOW)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.json")}


@pytest.mark.parametrize("fault", ["says nothing", "drips"])
def test_two_seconds_are_the_patience(server: PublicServer, tmp_path: Path, fault: str) -> None:
    server.answers[PATH] = pieces(FILE, 0.1, 20) if fault == "drips" else lambda _: time.sleep(6)
    start = time.monotonic()
    catalog = market(tmp_path)
    catalog.latest(["us-east-1"])
    assert 1.5 < time.monotonic() - start < 3.5
    assert catalog.error is not None and catalog.error.why == "timeout"
    assert "'deepvm catalog refresh --source skypilot --cloud aws' waits longer" in str(
        catalog.error
    )
    start = time.monotonic()
    again = market(tmp_path, NOW + timedelta(seconds=20))
    assert not again.latest(["us-east-1"]) and again.error is not None
    assert time.monotonic() - start < 0.5, "it is not waited for again within five minutes"


def test_reading_a_file_that_is_here_is_not_counted(
    server: PublicServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file on a slow machine: else it would be downloaded with every command."""
    check = integrity.check
    monkeypatch.setattr(integrity, "check", lambda rows: (time.sleep(1), check(rows))[1])
    catalog = market(tmp_path, wait_s=0.5)
    assert prices(catalog.latest(["us-east-1"])) and catalog.error is None


def test_a_bug_in_a_reader_costs_its_source_only(
    server: PublicServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> object:
        raise KeyError("s3cr3t")

    monkeypatch.setattr(integrity, "check", broken)
    catalog = market(tmp_path)
    assert not catalog.refresh()
    assert "KeyError" in str(catalog.error) and "s3cr3t" not in str(catalog.error)


def test_what_fails_at_once_is_asked_again(server: PublicServer, tmp_path: Path) -> None:
    server.answers[PATH] = say(b"", 404)
    assert not market(tmp_path).latest(["us-east-1"])
    del server.answers[PATH]
    assert prices(market(tmp_path, wait_s=30).latest(["us-east-1"]))


REFRESH = """
import sys
from datetime import datetime, timezone
from pathlib import Path
from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public import skypilot
from deepvm.catalog.public.download import DownloadedFile
from deepvm.catalog.clouds import REGISTRY
from deepvm.catalog.public.public_market import PublicCatalog
from deepvm.catalog.signals.cache import Cache
folder, file = map(Path, sys.argv[1:])
found = SOURCES["skypilot"]
cache = Cache(folder / "source_skypilot", "public", found.period_s)
now = datetime.now(timezone.utc)
skypilot.fetch = lambda source, cloud, total_s: DownloadedFile(file.read_bytes())
market = PublicCatalog(found, REGISTRY["aws"], cache, cache, now)
print("ready", flush=True)
while True:
    market.refresh()
"""


@pytest.mark.slow
def test_a_refresh_killed_at_any_moment_leaves_whole_files(tmp_path: Path) -> None:
    """Each file is the old one or the new one, and the sums tell the two apart."""
    rows = [r.replace("us-east-1", f"r-{n}") for n in range(20) for r in AWS_ROWS[:9]]
    file = tmp_path / "vms.csv"
    file.write_bytes(csv_file(AWS_HEAD, rows))
    for moment in range(20):
        process = subprocess.Popen(
            [sys.executable, "-c", REFRESH, str(tmp_path), str(file)], stdout=subprocess.PIPE
        )
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.004 * moment)
        os.kill(process.pid, signals.SIGKILL)
        process.wait()
        process.stdout.close()
        now = datetime.now(timezone.utc)
        cache = Cache(tmp_path / "source_skypilot", "public", 3600)
        entries = cache.entries(now)
        assert all(e.state == "fresh" for e in entries), [e for e in entries if e.state != "fresh"]
        regions = [f"r-{n}" for n in range(20)]
        kept = PublicCatalog(SOURCES["skypilot"], REGISTRY["aws"], cache, cache, now).latest(
            regions
        )
        assert all(prices(kept, r) in (None, prices(kept, "r-0")) for r in regions)
        about = cache.read("all-regions", REGIONS, now)
        assert about is None or len([r for r in regions if prices(kept, r)]) == 20
    assert not cache.take_notes()
