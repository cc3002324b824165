"""The end of a job: it comes however long the cloud takes to say what lives, and leaves nothing
behind.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from support.jobs.controllers import JOB, Messages
from support.jobs.worlds import spec

from deepvm.cli.jobs.run import control
from deepvm.errors import DataError
from deepvm.jobs.cloud import Listing, UnknownError
from deepvm.jobs.controller import controller
from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import RELEASED, JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, EventRow, History
from deepvm.jobs.history.timeline import DOWNTIME
from deepvm.jobs.wire import USER, new_secret


class Slow(Messages):
    """Takes a while to say what lives; ``done``: what it was asked for, in order."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.takes_s, self.done = takes_s, list[str]()

    def listing(self, job: str) -> Listing:
        time.sleep(self.takes_s)
        self.done.append("listing")
        return super().listing(job)

    def release(self, job: str, machine: str) -> None:
        super().release(job, machine)
        self.done.append(f"release {machine}")

    def finish(self, job: str) -> None:
        self.done.append("finish")


def ended(folder: Path, cloud: Messages, list_s: float) -> list[EventRow]:
    """What is written down of a job that is over, by the controller that ends it."""
    with History.open({PLACE: str(folder / "history.db")}) as history:
        world = JobState(
            JobLimits(1, 1), 1.0, job=Job.DONE, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),)
        )
        history.add_job(JOB, 1.0, folder, {}, world)
        spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
        job = ControlledJob(JOB, folder, new_secret(), spec, list_s=list_s)
        found = Controller(job, world, cloud, history)  # type: ignore[arg-type]
        asyncio.run(asyncio.wait_for(found.run(), 10))
        return history.events(JOB)


def test_a_list_that_takes_longer_than_the_time_between_two(tmp_path: Path) -> None:
    """Else the next one begins before the job is seen to be over, and its machines and its head are
    paid for ever.
    """
    cloud = Slow(0.3)
    ended(tmp_path, cloud, 0.1)
    assert cloud.done == ["listing", "finish"]


def test_the_wait_for_the_last_list_is_no_time_without_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "LEAST_S", 0.5)
    cloud = Slow(1.6)
    events = ended(tmp_path, cloud, 1e9)
    assert cloud.done[-1] == "finish" and DOWNTIME not in [event.kind for event in events]


def test_what_the_last_list_shows_is_released_first(tmp_path: Path) -> None:
    """A request that was given up has made a machine since."""
    cloud = Slow(0.0)
    cloud.alive["m9"] = 1.0
    ended(tmp_path, cloud, 1e9)
    assert cloud.done[-2:] == ["release m9", "finish"] and not cloud.alive


@pytest.mark.parametrize(
    ("state", "cure"),
    [(Job.DONE, "writes down its result"), (Job.STOPPED, "continues it")],
    ids=str,
)
@pytest.mark.parametrize("method", ["samples", "finish"])
def test_where_its_result_cannot_be_written_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Job, cure: str, method: str
) -> None:
    """As where a database is away for a moment."""
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path))
    whole = getattr(History, method)

    def fails(history: History, *given: Any) -> Any:
        if over == [True]:  # after the first run
            raise DataError("the database is gone")
        return whole(history, *given)

    async def run(controller: Controller) -> JobState:
        over.append(True)
        return controller.world

    over: list[bool] = []
    monkeypatch.setattr(History, method, fails)
    monkeypatch.setattr(Controller, "run", run)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = JobState(
            JobLimits(1, 1), 1.0, job=state, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),)
        )
        history.add_job(JOB, 1.0, tmp_path, spec(cloud="local"), world)
        job = ControlledJob(JOB, tmp_path, new_secret(), {})
        said = f"the database is gone; the job is over; then 'deepvm jobs resume {JOB}' {cure}"
        with pytest.raises(DataError, match=re.escape(said)):
            control(job, world, history, "table")
        if state is Job.DONE:
            control(job, world, history, "table")
            row = history.job(JOB)
            assert row is not None and row.result is not None


class Unready(Slow):
    """Needs a while for the address of the controller."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.goes_on = threading.Event()

    def host(self, job: str) -> str:
        self.goes_on.wait(10)
        return super().host(job)


def test_a_stop_that_comes_before_machines_are_adopted_waits_for_that(tmp_path: Path) -> None:
    """Else they count as lost: nothing was heard of them while there was no controller."""
    cloud = Unready()
    pool, now_s = Pool("g4dn.xlarge", "z", "spot", 0.3), time.time()
    cloud.alive["m1"] = now_s - 1000
    member = MachineRecord("m1", pool, now_s - 1000, Machine.MEMBER, now_s - 1000)
    member = replace(member, ready_s=now_s - 990, heard_s=now_s - 900)

    async def stopped() -> JobState:
        running = asyncio.create_task(found.run())
        await asyncio.sleep(0.1)
        await found.command(USER, {"command": "stop"})
        await asyncio.sleep(0.1)
        assert found.world is world
        cloud.goes_on.set()
        return await asyncio.wait_for(running, 10)

    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = JobState(JobLimits(1, 1), now_s - 900, Job.RUNNING, {"m1": member}, pools=(pool,))
        history.add_job(JOB, 1.0, tmp_path, {}, world)
        spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
        job = ControlledJob(JOB, tmp_path, new_secret(), spec, list_s=0.1)
        found = Controller(job, world, cloud, history)  # type: ignore[arg-type]
        end = asyncio.run(stopped())
    assert (end.job, end.ending) == (Job.STOPPED, "stopped by the user")
    assert end.machines["m1"].end_reason == RELEASED


class Stubborn(Slow):
    """Releases nothing."""

    def release(self, job: str, machine: str) -> None:
        self.done.append(f"release {machine}")
        raise UnknownError("the cloud does not answer")


@pytest.mark.parametrize(
    ("times", "cloud", "limit_s"),
    [(1, Slow(0.0), 0.1), (2, Slow(0.0), 15.0), (5, Stubborn(0.0), 0.3)],
)
def test_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, cloud: Slow, limit_s: float
) -> None:
    """What cannot be released is left after a while, and is known."""
    monkeypatch.setattr(controller, "RELEASE_LIMIT_S", limit_s)

    async def interrupted() -> JobState:
        running = asyncio.create_task(found.run())
        while not cloud.alive:
            await asyncio.sleep(0.01)
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        return await asyncio.wait_for(running, 10)

    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = JobState(
            JobLimits(1, 1, absent_s=0.5),
            time.time(),
            pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),),
        )
        history.add_job(JOB, 1.0, tmp_path, {}, world)
        job = ControlledJob(
            JOB,
            tmp_path,
            new_secret(),
            {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9},
            list_s=0.1,
        )
        found = Controller(job, world, cloud, history)  # type: ignore[arg-type]
        with found.signals:
            end = asyncio.run(interrupted())
        stops = [event.facts["at_once"] for event in history.events(JOB) if event.kind == "stop"]
    assert (end.job, end.ending, stops) == (Job.STOPPED, "interrupted", [False, True][:times])
    assert end.machines["m1"].state.over != bool(cloud.alive)
    assert "release m1" in cloud.done and ("finish" in cloud.done) != bool(cloud.alive)


@pytest.mark.parametrize("keeps", [False, True])
def test_machines_that_are_left_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], keeps: bool
) -> None:
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path))
    pool = Pool("g4dn.xlarge", "z", "spot", 0.3)
    machines = {
        m: MachineRecord(m, pool, 1.0, s)
        for m, s in (("m1", Machine.ENDED), ("m2", Machine.RELEASING))
    }
    world = JobState(
        JobLimits(1, 1), 1.0, Job.RUNNING if keeps else Job.STOPPED, machines, pools=(pool,)
    )

    async def run(controller: Controller) -> JobState:
        os.kill(os.getpid(), signal.SIGTERM)
        return controller.world

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(Controller, "run", run)
    monkeypatch.setattr(os, "_exit", leave)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        history.add_job(JOB, 1.0, tmp_path, spec(cloud="local"), world)
        with pytest.raises((SystemExit, typer.Exit)) as ended:
            control(
                ControlledJob(JOB, tmp_path, new_secret(), {}), world, history, "table", keep=keeps
            )
        row = history.job(JOB)
        assert row is not None and row.result is None
    assert getattr(ended.value, "exit_code", getattr(ended.value, "code", None)) == 143
    output = capsys.readouterr().err
    resume = f"'deepvm jobs resume {JOB}'"
    if keeps:
        assert output == f"Note: {JOB} trains on, for $0.3/h; {resume} watches it again\n"
    else:
        left = f"m2; 'deepvm jobs orphans --release {JOB}' ends them, {resume} continues the job"
        assert output == f"Note: interrupted by SIGTERM; may still be rented, for $0.3/h: {left}\n"


def test_a_signal_ends_the_wait_for_a_history_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool("g4dn.xlarge", "z", "spot", 0.3)
    world = JobState(JobLimits(1, 1), 1.0, pools=(pool,))
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        history.add_job(JOB, 1.0, tmp_path, {}, world)
        spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
        job = ControlledJob(JOB, tmp_path, new_secret(), spec, list_s=1.0)
        found = Controller(job, world, Messages(), history)  # type: ignore[arg-type]

        def commit(*_: object) -> None:
            asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGTERM)
            raise DataError("the disk is full")

        monkeypatch.setattr(history, "commit", commit)
        since_s = time.monotonic()
        with found.signals, pytest.raises(DataError, match="the disk is full"):
            asyncio.run(asyncio.wait_for(found.run(), 20))
    assert time.monotonic() - since_s < 5
