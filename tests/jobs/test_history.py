"""The history of jobs, in SQLite and in PostgreSQL: what was written is there, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepvm.errors import DataError
from deepvm.jobs import decisions as d
from deepvm.jobs.history import PLACE, SCHEMA, EventRow, History
from deepvm.jobs.pools import pools_of
from deepvm.jobs.world import Pool, Terms, World

POOL = Pool("g4dn.xlarge", "here", "spot", 0.36)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    url = str(request.getfixturevalue("postgres"))
    with History.open({PLACE: url}) as history:
        from deepvm.jobs.history import _TABLES

        _TABLES.drop_all(history._engine)
    return url


def new_world() -> World:
    return World(Terms(1, 1), 100.0, pools=(POOL,))


def test_jobs_machines_and_events(place: str, tmp_path: Path) -> None:
    world = new_world()
    with History.open({PLACE: place}) as history:
        assert history.add_job("one", 100.0, tmp_path, {"train": "x"}, world)
        assert not history.add_job("one", 101.0, tmp_path, {}, world)
        steps: tuple[d.Event, ...] = (
            d.Tick(),
            d.Launched("m1", 105.0),
            d.Heard("m1", warm=True),
            d.Started("m1", 1, 0),
        )
        for event in steps:
            after, _ = d.react(world, event, 106.0)
            history.commit("one", world, after, [EventRow(106.0, "kind", after.job.value, {"a": 1})])
            world = after
    with History.open({PLACE: place}) as history:
        assert history.world("one") == world
        assert [(e.kind, e.state, e.facts) for e in history.events("one")][-1] == ("kind", "running", {"a": 1})
        row = history.job("one")
        assert row is not None and (row.state, row.spec, row.folder, row.result) == (
            "running",
            {"train": "x"},
            tmp_path,
            None,
        )
        history.finish("one", {"state": "done"})
        assert [job.result for job in history.jobs()] == [{"state": "done"}]
        assert history.job("two") is None and history.events("two") == []
        (pool,) = pools_of(history.machines(), 206.0)
        assert (pool.instance_type, pool.machines, pool.preemptions, pool.mttp_s) == ("g4dn.xlarge", 1, 0, None)
        assert pool.lived_s == pytest.approx(101.0) and pool.allocation_s == pytest.approx(0.0, abs=6)


WRITER = """
import sys
from deepvm.jobs.history import PLACE, EventRow, History
from deepvm.jobs.world import Pool, Terms, World
from pathlib import Path

world = World(Terms(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
history = History.open({PLACE: sys.argv[1]})
history.add_job(sys.argv[2], 0.0, Path("/x"), {}, world)
number = 0
while True:
    number += 1
    history.commit(sys.argv[2], world, world, [EventRow(float(number), "n", "pending", {"n": number})])
    print(number, flush=True)
"""


@pytest.mark.parametrize("round_", range(4))
def test_what_was_written_survives_a_kill(place: str, round_: int) -> None:
    name = f"job-{round_}"
    process = subprocess.Popen([sys.executable, "-c", WRITER, place, name], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.1 + 0.15 * round_)
    process.send_signal(signal.SIGKILL)
    last = int(process.stdout.read().split()[-1])
    process.wait()
    process.stdout.close()
    with History.open({PLACE: place}) as history:
        numbers = [e.facts["n"] for e in history.events(name)]
    assert numbers in (list(range(1, last + 1)), list(range(1, last + 2)))  # the last may not have been told of


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/proc/none/history.db", "DEEPVM_HISTORY"),
        ("postgresql://nobody:secret@127.0.0.1:9/none", "cannot be used"),
    ],
)
def test_a_place_that_cannot_be_used(place: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as found:
        History.open({PLACE: place})
    assert "secret" not in str(found.value)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    place = {PLACE: str(tmp_path / "history.db")}
    with History.open(place) as history:
        from deepvm.jobs.history import _META

        with history._engine.begin() as connection:
            connection.execute(_META.update().values(version=SCHEMA + 1))
    with pytest.raises(DataError, match="newer deepvm"):
        History.open(place)


def test_no_database(tmp_path: Path) -> None:
    (tmp_path / "history.db").write_bytes(os.urandom(5000))
    with pytest.raises(DataError, match="cannot be used"):
        History.open({PLACE: str(tmp_path / "history.db")})


def test_intervals_of_mean_lives() -> None:
    def machine(lived_s: float, reason: str) -> dict[str, Any]:
        pool = {"instance_type": "a", "zone": "z", "market": "spot"}
        return {
            **pool,
            "requested_s": 0.0,
            "launched_s": 0.0,
            "ended_s": lived_s,
            "end_reason": reason,
            "noticed_s": 1.0,
        }

    rows = [machine(3600.0, "preempted") for _ in range(10)] + [machine(3600.0, "released") for _ in range(10)]
    (pool,) = pools_of(rows, 1e9)
    stats = pytest.importorskip("scipy.stats")
    low, high = pool.mttp_interval_s
    assert pool.mttp_s == 7200.0 and high is not None
    assert low == pytest.approx(2 * 72_000 / stats.chi2.ppf(0.9, 22), rel=0.005)  # Garwood's interval
    assert high == pytest.approx(2 * 72_000 / stats.chi2.ppf(0.1, 20), rel=0.005)
