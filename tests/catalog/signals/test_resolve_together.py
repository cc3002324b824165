"""Several regions, threads and processes at once; sources that stall, and Ctrl-C."""

import signal as signals_of_unix
import subprocess
import sys
import threading
import time

import pytest
from support.catalog_signals import KINDS, NOW, Cloud, Fake, denied, get, several
from support.pace import soon
from support.places import TESTS

from deepvm.catalog.signals import fetching
from deepvm.catalog.signals.cache import Cache
from deepvm.errors import CloudError


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache", "me")


# Several regions


def test_regions_are_fetched_together(cache):
    cloud = Cloud({**dict.fromkeys(KINDS)})
    for fake in cloud.fakes.values():
        fake.stall_s = 0.1
    with soon(1.0):  # 14 waits of 0.1 s, 8 at once
        found = several(cache, cloud, ["us-east-1", "eu-west-1"])
    assert {(r.region, s.origin) for r, s in found.signals.items()} == {
        ("us-east-1", "live"),
        ("eu-west-1", "live"),
    }
    assert cloud.calls == dict.fromkeys(KINDS, 2)
    assert found.of_region("eu-west-1")["spot"].region == "eu-west-1"


def test_never_more_than_eight_at_once(cache):
    busy, most, lock = [0], [0], threading.Lock()

    class Counting(Fake):
        def fetch(self, region, now):
            with lock:
                busy[0] += 1
                most[0] = max(most[0], busy[0])
            time.sleep(0.01)
            with lock:
                busy[0] -= 1
            return super().fetch(region, now)

    cloud = Cloud()
    cloud.fakes = {k: Counting(k) for k in KINDS}
    several(cache, cloud, [f"r-{i}" for i in range(5)])
    assert most[0] == 8 and cloud.calls == dict.fromkeys(KINDS, 5)


def test_one_region_fails_the_other_does_not(cache):
    class Closed(Fake):
        def fetch(self, region, now):
            if region == "ap-east-1":
                raise denied("region", "not enabled", "enable ap-east-1")
            return super().fetch(region, now)

    cloud = Cloud()
    cloud.fakes = {k: Closed(k) for k in KINDS}
    found = several(cache, cloud, ["us-east-1", "ap-east-1"])
    assert set(found.of_region("us-east-1")) == set(KINDS)
    assert found.of_region("ap-east-1") == {}
    (note,) = found.notes
    assert "enable ap-east-1" in note
    live = several(cache, cloud, ["us-east-1", "ap-east-1"], "live")
    with pytest.raises(CloudError, match="live prices of ap-east-1"):
        live.check_live("ap-east-1")
    live.check_live("us-east-1")
    assert live.of_region("us-east-1")["spot"].origin == "live"


def test_a_failure_of_all_regions_is_said_once(cache):
    cloud = Cloud(**{k.replace("-", "_"): denied("network", "no route", "check") for k in KINDS})
    (note,) = several(cache, cloud, ["us-east-1", "eu-west-1", "us-west-2"]).notes
    assert "of us-east-1, eu-west-1 and us-west-2" in note


def test_no_regions(cache):
    assert several(cache, Cloud(), []).signals == {}


# Stalls and interrupts


def test_a_source_that_never_answers_is_given_up(cache, monkeypatch):
    monkeypatch.setattr(fetching, "AUTO_GIVE_UP_S", 0.3)
    with soon(3):
        found = get(cache, Cloud(spot=Fake("spot", stall_s=5)))
    assert found.signals["spot"].origin == "snapshot" and found.signals["specs"].origin == "live"
    assert "no answer within 0 s" in found.notes[0]


INTERRUPTED = """
import sys, signal as unix
sys.path.insert(0, {root!r})
from pathlib import Path
from deepvm.catalog.signals.cache import Cache
from support.catalog_signals import KINDS, NOW, Cloud, Fake, resolve
cloud = Cloud(spot=Fake("spot", stall_s=60), specs=Fake("specs", stall_s=60))
def progress(line):
    print(line, flush=True)
try:
    cache = Cache(Path(sys.argv[1]), "me")
    resolve(
        "us-east-1", KINDS, "auto",
        cache=cache, providers=cloud, snapshot={{}}, now=NOW, progress=progress,
    )
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.exit(130)
"""


def test_an_interrupt_ends_at_once(cache):
    script = INTERRUPTED.format(root=str(TESTS))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(cache.folder)], stdout=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline() for _ in range(1 + 5)]  # the start, and what does not stall
    assert all("fetch" in line for line in lines)
    with soon(5):
        process.send_signal(signals_of_unix.SIGINT)
        out, _ = process.communicate(timeout=55)
    assert process.returncode == 130 and out == "interrupted\n"
    entries = cache.entries(NOW)
    # What had come is kept, whole
    assert len(entries) == 5 and all(e.state == "fresh" for e in entries)
    assert not list(cache.folder.rglob("*.tmp"))


def test_an_interrupt_between_answers_stops_the_rest(cache, monkeypatch):
    monkeypatch.setattr(fetching, "AT_ONCE", 1)
    cloud = Cloud()
    for fake in cloud.fakes.values():
        fake.stall_s = 0.05

    def interrupt(line):
        if "fetched" in line:
            raise KeyboardInterrupt

    kept_alive = None
    try:
        get(cache, cloud, progress=interrupt)
    except KeyboardInterrupt as caught:
        kept_alive = caught
    assert kept_alive is not None
    time.sleep(0.5)
    assert sum(cloud.calls.values()) <= 3  # the one that came, and what had begun
