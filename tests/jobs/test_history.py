"""The history of jobs in SQLite and PostgreSQL: what was written survives a kill."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.effort import examples, in_ring_2, sampled

from deepvm.errors import DataError
from deepvm.jobs.controller.changes import rows_of
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.history.history import PLACE, SCHEMA, EventRow, History, Sample
from deepvm.jobs.history.pools import expected_life_s, learnt, lives_by_type, own_pool, pools_of
from deepvm.reports.text import print_text

POOL = Pool("g4dn.xlarge", "here", "spot", 0.36)


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    server = pgserver.get_server(tmp_path_factory.mktemp("postgres"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(params=in_ring_2(["sqlite", "postgres"], "postgres"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    url = str(request.getfixturevalue("postgres"))
    with History.open({PLACE: url}) as history:
        from deepvm.jobs.history.history import _TABLES

        _TABLES.drop_all(history._engine)
    return url


READS: dict[str, Callable[[History], object]] = {
    "jobs": lambda h: h.jobs(),
    "job": lambda h: h.job("a"),
    "world": lambda h: h.world("a"),
    "events": lambda h: h.events("a"),
    "samples": lambda h: h.samples("a"),
    "machines": lambda h: h.machines(),
    "copy": lambda h: h.copy("a"),
}


@pytest.mark.parametrize("read", READS)
def test_a_history_that_cannot_be_read_any_more(tmp_path: Path, read: str) -> None:
    """The disk fails, or the database is gone: whoever reads can try again, or say so."""
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        with history._engine.begin() as connection:
            for table in ("jobs", "machines", "events", "samples"):
                connection.execute(sa.text(f"DROP TABLE {table}"))
        with pytest.raises(DataError, match=r"history\.db cannot be used: no such table"):
            READS[read](history)


def test_a_new_history_that_somebody_else_makes(tmp_path: Path) -> None:
    """SQLite says at once that it is locked, whatever the limit for locks."""
    with contextlib.closing(
        sqlite3.connect(tmp_path / "history.db", isolation_level=None)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        code = (
            "import sys; from deepvm.jobs.history.history import *; History.open({PLACE:"
            " sys.argv[1]}).close()"
        )
        words = [sys.executable, "-c", code, str(tmp_path / "history.db")]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        other.execute("ROLLBACK")
        assert process.wait(30) == 0, process.stderr and process.stderr.read()
    assert process.stderr is not None
    process.stderr.close()


def test_writes_that_may_not_wait(tmp_path: Path) -> None:
    world = new_world()
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        assert history.add_job("one", 100.0, tmp_path, {}, world)
        with contextlib.closing(
            sqlite3.connect(tmp_path / "history.db", isolation_level=None)
        ) as other:
            other.execute("BEGIN IMMEDIATE")
            with history.hurried(0.2):
                for write in (
                    lambda: history.commit("one", world, world, []),
                    lambda: history.add_samples("one", [Sample(1.0, 1, 1)]),
                ):
                    began_s = time.monotonic()
                    with pytest.raises(DataError, match="locked"):
                        write()
                    assert time.monotonic() - began_s < 10
            other.execute("ROLLBACK")
        with history.hurried(0.2):
            history.add_samples("one", [Sample(1.0, 1, 1)])
        assert history.samples("one") == [Sample(1.0, 1, 1)]


def new_world() -> JobState:
    return JobState(JobLimits(1, 1), 100.0, pools=(POOL,))


def test_jobs_machines_and_events(place: str, tmp_path: Path) -> None:
    world = new_world()
    with History.open({PLACE: place}) as history:
        assert history.add_job("one", 100.0, tmp_path, {"train": "x"}, world)
        assert not history.add_job("one", 101.0, tmp_path, {}, world)
        steps: tuple[d.Event, ...] = (
            d.Tick(),
            d.Launched("m1", 105.0),
            d.Heartbeat("m1", warm=True),
            d.Started("m1", 1, 0),
        )
        for event in steps:
            after, _ = react(world, event, 106.0)
            history.commit(
                "one", world, after, [EventRow(106.0, "kind", after.job.value, {"a": 1})]
            )
            world = after
    with History.open({PLACE: place}) as history:
        assert history.world("one") == world
        assert [(e.kind, e.state, e.facts) for e in history.events("one")][-1] == (
            "kind",
            "running",
            {"a": 1},
        )
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
        assert (pool.instance_type, pool.machines, pool.preemptions, pool.mttp_s) == (
            "g4dn.xlarge",
            1,
            0,
            None,
        )
        assert pool.lived_s == pytest.approx(101.0) and pool.allocation_s == pytest.approx(
            0.0, abs=6
        )


def test_rebalance_recommendations_are_counted_and_notices_have_their_lead(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with History.open({PLACE: place}) as history:
        for name in ("one", "two"):
            world = new_world()
            history.add_job(name, 100.0, tmp_path, {"cloud": "aws"}, world)
            steps: tuple[tuple[d.Event, float], ...] = (
                (d.Tick(), 100.0),
                (d.Launched("m1", 105.0), 106.0),
                *([(d.Rebalanced("m1"), 107.0)] if name == "one" else []),
                (d.Noticed("m1", 300.0), 180.0),
                (d.InstancesListed({}, {"m1": (105.0, 290.0)}), 300.0),
            )
            for event, at_s in steps:
                after, _ = react(world, event, at_s)
                history.commit(
                    name,
                    world,
                    after,
                    rows_of(world, after, [] if isinstance(event, d.InstancesListed) else [event]),
                )
                world = after
        machines = history.machines()
    told = {(m["job"], m["id"]): m["rebalanced_s"] for m in machines}
    assert told["one", "m1"] == 107.0 and told["two", "m1"] is None
    (pool,) = pools_of(machines, 400.0)
    assert (pool.preemptions, pool.rebalances, pool.leads_s) == (2, 1, pytest.approx(110.0))
    print_text("history_pools", pools=[pool])
    header, row = (re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines())
    shown = dict(zip(header, row, strict=True))
    assert (shown["notice"], shown["rebalance"]) == ("110 s", "1")


def of_version_1(place: str, folder: Path) -> None:
    """A database as the first schema had it, with a job that runs on one machine."""
    from deepvm.jobs.history.history import _META, _TABLES

    with History.open({PLACE: place}) as history:
        world = new_world()
        history.add_job("old", 100.0, folder, {"cloud": "local"}, world)
        after, _ = react(world, d.Tick(), 101.0)
        history.commit("old", world, after, [EventRow(101.0, "tick", "pending", {})])
        with history._engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE machines DROP COLUMN cloud"))
            (text,) = connection.execute(sa.text("SELECT world FROM jobs")).one()
            old = json.loads(text)
            for name in ("pace", "on_demand", "losses"):
                del old[name]
            for name in (
                "steps",
                "begun_s",
                "begun",
                "deadline_policy",
                "bought",
                "restart_s",
                "usd_per_hour",
                "mttp_s",
            ):
                del old["terms"][name]
            connection.execute(
                sa.text("UPDATE jobs SET world = :world"), {"world": json.dumps(old)}
            )
            connection.execute(_META.update().values(version=1))
    assert "cloud" in _TABLES.tables["machines"].c


def test_the_state_of_a_job_that_is_not_there(tmp_path: Path) -> None:
    """A controller may fail before it adds its job."""
    place = {PLACE: str(tmp_path / "history.db")}
    with History.open(place) as history, pytest.raises(DataError):
        history.world("none")


def test_an_older_database_is_brought_up_to_date(place: str, tmp_path: Path) -> None:
    of_version_1(place, tmp_path)
    for _ in range(2):  # once, and then it stays
        with History.open({PLACE: place}) as history:
            (machine,) = history.machines()
            assert (machine["id"], machine["cloud"], machine["instance_type"]) == (
                "m1",
                "local",
                "g4dn.xlarge",
            )
            world = history.world("old")
            assert (
                world.machines["m1"].pool == POOL
                and world.terms == JobLimits(1, 1)
                and not world.on_demand
            )
            after, _ = react(world, d.Launched("m1", 102.0), 103.0)
            history.commit("old", world, after, [])
            assert history.machines()[0]["launched_s"] == 102.0


def test_a_migration_that_is_killed_leaves_the_older_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepvm.jobs.history import history as module

    place = str(tmp_path / "history.db")
    of_version_1(place, tmp_path)

    def dies(connection: sa.Connection) -> None:
        module._names_clouds(connection)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_MIGRATIONS", {2: dies})
        with pytest.raises(KeyboardInterrupt):
            History.open({PLACE: place})
    with History.open({PLACE: place}) as history:
        assert history.machines()[0]["cloud"] == "local"


WRITER = """
import sys
from deepvm.jobs.history.history import PLACE, EventRow, History
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from pathlib import Path

world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
history = History.open({PLACE: sys.argv[1]})
history.add_job(sys.argv[2], 0.0, Path("/x"), {}, world)
number = 0
while True:
    number += 1
    history.commit(sys.argv[2], world, world, [EventRow(float(number), "n", "pending", {"n": number})])
    print(number, flush=True)
"""  # noqa: E501


@pytest.mark.parametrize("round_", sampled(range(examples(100)), every=2))
def test_what_was_written_survives_a_kill(place: str, round_: int) -> None:
    """Of SQLite and PostgreSQL together 20 kills in the quick suite, 200 in the thorough one."""
    name = f"job-{round_}"
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, place, name], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(random.Random(round_).uniform(0.0, 0.4))
    process.send_signal(signal.SIGKILL)
    # On a busy machine it may have come no further
    last = int([first, *process.stdout.read().split()][-1])
    process.wait()
    process.stdout.close()
    with History.open({PLACE: place}) as history:
        numbers = [e.facts["n"] for e in history.events(name)]
    # The last may not have been told of
    assert numbers in (list(range(1, last + 1)), list(range(1, last + 2)))


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("/proc/none/history.db", "DEEPVM_HISTORY"),
        ("postgresql://nobody:secret@127.0.0.1:9/none", "cannot be used"),
        ("postgres://nobody:secret@127.0.0.1:9/none", "cannot be used: connection"),
        ("postgresql://nobody:secret@127.0.0.1:port/none", "'postgresql://...' .expected"),
        ("mysql://nobody:secret@127.0.0.1:9/none", "'mysql://...' .expected the name of an SQLite"),
        ("://secret", "DEEPVM_HISTORY: '://...' .expected"),
    ],
)
def test_a_place_that_cannot_be_used(place: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as found:
        History.open({PLACE: place})
    assert "secret" not in str(found.value)


@pytest.mark.system
def test_only_locks_are_waited_for(tmp_path: Path) -> None:
    code = """
import resource, sys
from deepvm.errors import DataError
from deepvm.jobs.history.history import PLACE, History

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    History.open({PLACE: sys.argv[1]})
except DataError as error:
    print(error)
"""
    began = time.monotonic()
    place = str(tmp_path / "history.db")
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True)
    assert "cannot be used" in done.stdout, done
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts and says nothing."""
    pytest.importorskip("psycopg")
    monkeypatch.setattr("deepvm.jobs.history.history._CONNECT_S", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        began = time.monotonic()
        with pytest.raises(DataError, match="cannot be used"):
            History.open({PLACE: f"postgresql://a@127.0.0.1:{server.getsockname()[1]}/a"})
        assert time.monotonic() - began < 30


@pytest.mark.system
def test_a_statement_that_waits_is_given_up(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that waited for it would answer no machine."""
    monkeypatch.setattr("deepvm.jobs.history.history._STATEMENT_S", 0.3)
    world = new_world()
    with History.open({PLACE: postgres}) as history, History.open({PLACE: postgres}) as other:
        history.add_job("locked", 0.0, tmp_path, {}, world)
        with other._engine.begin() as connection:
            connection.execute(sa.text("LOCK TABLE events"))
            with pytest.raises(DataError, match="statement timeout"):
                history.commit("locked", world, world, [EventRow(0.0, "n", "pending", {})])
        history.commit("locked", world, world, [EventRow(0.0, "n", "pending", {})])
        assert len(history.events("locked")) == 1


def test_only_the_user_reads_the_history(tmp_path: Path) -> None:
    """It has the environment of jobs, with their tokens.

    Also one that an earlier deepvm has made.
    """
    environ = {"XDG_DATA_HOME": str(tmp_path)}
    for _ in range(2):
        with History.open(environ) as history:
            history.add_job("one", 0.0, tmp_path, {"env": {"HF_TOKEN": "planted"}}, new_world())
            files = sorted((tmp_path / "deepvm").iterdir())
            assert [f.name for f in files] == ["history.db", "history.db-shm", "history.db-wal"]
            assert {f.stat().st_mode & 0o777 for f in files} == {0o600}
        assert (tmp_path / "deepvm").stat().st_mode & 0o777 == 0o700
        (tmp_path / "deepvm" / "history.db").chmod(0o644)
        (tmp_path / "deepvm").chmod(0o755)


def test_a_file_that_the_user_names_keeps_its_permissions(tmp_path: Path) -> None:
    place = tmp_path / "shared.db"
    place.touch(0o660)
    place.chmod(0o660)
    History.open({PLACE: str(place)}).close()
    assert place.stat().st_mode & 0o777 == 0o660


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path: Path) -> None:
    code = """
import resource, sys
from pathlib import Path
from deepvm.errors import DataError
from deepvm.jobs.history.history import PLACE, EventRow, History
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool

world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
history = History.open({PLACE: sys.argv[1]})
history.add_job("one", 0.0, Path("/x"), {}, world)
size = Path(sys.argv[1] + "-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20000, size + 20000))
for number in range(100):
    try:
        history.commit("one", world, world, [EventRow(float(number), "n", "pending", {"n": "x" * 2000})] * 3)
    except DataError as error:
        print(number, error)
        raise SystemExit(4)
"""  # noqa: E501
    place = str(tmp_path / "history.db")
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True)
    assert done.returncode == 4 and "cannot be used" in done.stdout and not done.stderr, done
    with History.open({PLACE: place}) as history:
        assert len(history.events("one")) == 3 * int(done.stdout.split()[0])


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    place = {PLACE: str(tmp_path / "history.db")}
    with History.open(place) as history:
        from deepvm.jobs.history.history import _META

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

    rows: list[dict[str, Any]] = [machine(3600.0, "preempted") for _ in range(10)] + [
        machine(3600.0, "released") for _ in range(10)
    ]
    (pool,) = pools_of(rows, 1e9)
    stats = pytest.importorskip("scipy.stats")
    low, high = pool.mttp_interval_s
    assert pool.mttp_s == 7200.0 and high is not None
    # Garwood's interval
    assert low == pytest.approx(2 * 72_000 / stats.chi2.ppf(0.9, 22), rel=0.005)
    assert high == pytest.approx(2 * 72_000 / stats.chi2.ppf(0.1, 20), rel=0.005)
    assert pool.missed_interval[0] == 0.0 < pool.missed_interval[1] < 0.2 and pool.leads_s == 3599.0
    for number, row in enumerate(rows):
        row["requested_s"] = -float(number)
    (pool,) = pools_of(rows, 1e9)
    assert pool.allocations_s == (2.0, 10.0, 18.0)


def spot(
    kind: str, lived_s: float, reason: str, *, cloud: str = "aws", market: str = "spot"
) -> dict[str, Any]:
    times = {"requested_s": 0.0, "launched_s": 0.0, "noticed_s": None, "ended_s": lived_s}
    return {
        "instance_type": kind,
        "zone": "z",
        "market": market,
        "end_reason": reason,
        "cloud": cloud,
        **times,
    }


def test_lives_to_plan_with() -> None:
    """Three preemptions or more.

    Machines that were taken back on purpose and those on demand say nothing.
    """
    rows = [spot("a", 7200.0, "preempted") for _ in range(3)] + [spot("a", 14_400.0, "released")]
    rows += [spot("b", 10.0, "preempted", cloud="local") for _ in range(9)]
    rows += [spot("c", 10.0, "lost") for _ in range(2)] + [
        spot("d", 10.0, "lost", market="on-demand")
    ] * 5
    known, thin = lives_by_type(rows, 1e9)
    assert set(known) == {"a"} and thin == {"c"}
    life = known["a"]
    assert life.mean_s == pytest.approx((14_400 + 36_000) / 4) and (
        life.preemptions,
        life.machines,
    ) == (3, 4)
    stats = pytest.importorskip("scipy.stats")
    assert life.low_s == pytest.approx(50_400 / stats.gamma.ppf(0.9, 4), rel=0.01)
    assert life.high_s == pytest.approx(50_400 / stats.gamma.ppf(0.1, 4), rel=0.01)


def test_the_life_that_a_new_job_expects() -> None:
    for rows, band, expected_s in [
        ([], 0, 14_400.0),  # the band says years, traces say hours at a busy time
        ([spot("a", 7200.0, "preempted")] * 3, 0, (14_400 + 21_600) / 4),
        ([spot("a", 7200.0, "preempted")] * 2, 4, 14_400.0),
        ([spot("a", 7200.0, "preempted", cloud="local")] * 3, 0, 14_400.0),
    ]:
        found = expected_life_s(Pool("a", "z", "spot", 1.0), "aws", rows, band, 1e9)
        assert found == pytest.approx(expected_s)


def test_what_a_job_learns_of_its_own_machines() -> None:
    world = JobState(JobLimits(2, 2, mttp_s=1000.0), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
    world, _ = react(world, d.Tick(), 0.0)
    world, _ = react(world, [d.Launched(m, 0.0) for m in ("m1", "m2")], 0.0)
    world, _ = react(world, [d.Heartbeat(m, warm=True) for m in ("m1", "m2")], 10.0)
    assert learnt(world) == (pytest.approx((1000 + 20) / 2), pytest.approx(0.1))  # the first of two
    world, _ = react(world, d.InstancesListed({"m2": 0.0}, {"m1": (0.0, 110.0)}), 110.0)
    mttp_s, missed = learnt(world)
    assert world.machines["m1"].end_reason == "lost"
    assert mttp_s == pytest.approx((1000 + 220) / 2)  # one is left
    assert missed == pytest.approx(2 / 11)


def _machine(
    zone: str, launched_h: float | None, ended_h: float | None, reason: str = "", **other: Any
) -> dict[str, Any]:
    """A spot machine of a job, hours after some moment."""
    facts = {
        "job": "job",
        "instance_type": "g5.xlarge",
        "zone": zone,
        "market": "spot",
        "cloud": "aws",
    }
    launched_s = None if launched_h is None else launched_h * 3600
    ended_s = None if ended_h is None else ended_h * 3600
    return {**facts, "launched_s": launched_s, "ended_s": ended_s, "end_reason": reason, **other}


def test_what_a_pool_of_spot_machines_has_shown() -> None:
    machines = [
        _machine("us-east-1a", 0, 5, "preempted"),
        _machine("us-east-1a", 0.1, 5, "preempted"),
        _machine("us-east-1a", None, 5.5, "refused"),
        _machine("us-east-1a", 6, None),  # had after a refusal: a spell begins
        _machine("us-east-1b", 6, 8, "released"),  # another zone has not refused
        _machine("us-east-1b", 12, 13, "released"),
        _machine("us-west-2a", 0, 1, "preempted"),
        _machine("us-east-1a", 0, 1, "preempted", market="on-demand"),
        _machine("us-east-1a", 0, 1, "preempted", instance_type="g5.2xlarge"),
        _machine("us-east-1a", 0, 1, "preempted", cloud="local"),  # taken back on purpose
    ]
    found = own_pool(machines, 10 * 3600, "g5.xlarge", "us-east-1")
    assert found is not None
    hours = [(life.seconds / 3600, life.ended, life.waited) for life in found.lives]
    assert hours == [
        (5.0, True, False),
        (pytest.approx(4.9), True, False),
        (4.0, False, True),
        (2.0, False, False),
        (1.0, False, False),
    ]
    assert (found.refused, found.preemptions, found.gang) == (1, 2, pytest.approx(7 / 5))
    one = own_pool(machines, 10 * 3600, "g5.xlarge", "us-east-1", "us-east-1b")
    assert one is not None
    assert (len(one.lives), one.refused) == (2, 0)
    assert own_pool(machines, 10 * 3600, "g5.xlarge", "eu-west-1") is None
    assert own_pool(machines, 10 * 3600, "p3.2xlarge") is None
