"""A controller whose history is locked, whose disk is full, whose clock is set: it waits, and loses
no machine.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest
from support.effort import THOROUGH
from support.jobs.controllers import BEAT, Controlled, Peer, running, shape
from support.jobs.runs import until
from support.small_disk import small_disk

from deepvm.jobs.decisions.states import Machine


def saved(version: int) -> dict[str, object]:
    event = {
        "event": "saved",
        "of": time.time_ns(),
        "generation": 1,
        "version": version,
        "reason": 1,
    }
    return {"events": [{**event, "stall_s": 0.1, "took_s": 0.2}]}


def is_heard_once(found: Controlled, report: dict[str, object]) -> None:
    peer = Peer(found, "m1")
    assert until(lambda: peer.send("/report", report)[0] == 200, 10)
    assert peer.send("/report", report)[0] == 200  # the answer was lost
    assert found.kinds().count("safe") == 1


@pytest.mark.slow
def test_a_history_that_is_locked(tmp_path: Path) -> None:
    with running(tmp_path) as found:
        before, report = shape(found.world()), saved(0)
        with contextlib.closing(
            sqlite3.connect(tmp_path / "history.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN EXCLUSIVE")
            began_s = time.monotonic()
            # Not written down: say it again
            assert Peer(found, "m1").send("/report", report)[0] == 503
            assert Peer(found, "m1").send("/report", report)[0] == 503
            assert Peer(found, "m2").send("/beat", {**BEAT, "wait_s": 0.0})[0] == 200
            assert time.monotonic() - began_s < 5, "a lock keeps the controller from its agents"
            time.sleep(60 if THOROUGH else 8)  # longer than silence lasts that ends a generation
            other.execute("ROLLBACK")
        is_heard_once(found, report)
        assert shape(found.world()) == before


@pytest.mark.slow
def test_a_history_that_is_locked_while_nothing_happens(tmp_path: Path) -> None:
    """Then samples are all that is written."""
    with running(tmp_path) as found:
        before = shape(found.world())
        with contextlib.closing(
            sqlite3.connect(tmp_path / "history.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN EXCLUSIVE")
            time.sleep(5)  # twice as long as samples are kept back
            other.execute("ROLLBACK")
        assert found.process.poll() is None
        assert until(lambda: found.samples() > 2, 10)
        assert shape(found.world()) == before


def test_nobody_sees_what_it_shows(tmp_path: Path) -> None:
    (tmp_path / "blind").touch()
    with running(tmp_path) as found:
        assert found.process.poll() is None


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as folder, running(folder) as found:
        before, report = shape(found.world()), saved(0)
        filler = folder / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(b"x" * 512):
                pass
        statuses = [Peer(found, "m1").send("/report", saved(0))[0] for _ in range(40)]
        assert 503 in statuses
        line = {
            "event": "line",
            "of": time.time_ns(),
            "local_rank": 0,
            "text": "x" * 10_000,
            "generation": 1,
        }
        Peer(found, "m2").send("/report", {"events": [line]})
        filler.unlink()
        peer = Peer(found, "m1")
        assert until(lambda: peer.send("/report", report)[0] == 200, 10)
        assert shape(found.world()) == before


@pytest.mark.slow
@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_clock_that_is_set(tmp_path: Path, jump_s: int) -> None:
    with running(tmp_path) as found:
        before = shape(found.world())
        (tmp_path / "clock").write_text(str(jump_s))
        time.sleep(5)  # longer than silence lasts that ends a generation
        assert shape(found.world()) == before
        assert all(m.state is Machine.MEMBER for m in found.world().machines.values())
        found.kill()
        found.start()
        time.sleep(5)
        assert shape(found.world()) == before
