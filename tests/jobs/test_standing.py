"""A job as it stands, from the history alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs import worlds

from deepvm.io.file_lock import FileLock
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.standing import (
    ALIVE,
    ELSEWHERE,
    GONE,
    LOCK,
    OVER,
    controller_of,
    job_lines,
    standing_of,
)


@pytest.fixture
def place(tmp_path: Path) -> dict[str, str]:
    return {PLACE: str(tmp_path / "history.db")}


def test_a_job_that_is_over(place: dict[str, str], tmp_path: Path) -> None:
    job = worlds.many(20)
    with History.open(place) as history:
        worlds.store(history, job, tmp_path / "gone")
        row = history.job("resnet-7")
        assert row is not None
        found = standing_of(history, row, worlds.START_S + 1e9)
        assert found.document == job.document and found.controller == OVER and found.over
        assert found.world.now_s == job.world.now_s  # it costs nothing any more
        assert found.samples == job.samples and len(found.events) == len(job.events)
        again = standing_of(history, row, 0.0, found.events[:10])
        assert again.events == found.events
        (line,) = job_lines(history, worlds.START_S + 1e9)
    assert (line.name, line.steps, line.cost_usd) == (
        "resnet-7",
        job.document["steps"],
        job.document["cost_usd"],
    )


def test_a_job_that_runs_costs_more_each_second(place: dict[str, str], tmp_path: Path) -> None:
    job = worlds.one_machine(over=False)
    (machine,) = job.world.machines.values()
    machine = replace(machine, ended_s=None, end_reason="", state=worlds.Machine.MEMBER)
    world = replace(job.world, job=worlds.Job.RUNNING, machines={"m1": machine}, reached=3)
    with History.open(place) as history:
        worlds.store(history, replace(job, world=world), tmp_path)
        row = history.job("resnet-7")
        assert row is not None
        one, other = (standing_of(history, row, worlds.START_S + s) for s in (100.0, 3700.0))
        assert other.world.usd - one.world.usd == pytest.approx(worlds.POOL.usd_per_hour)
        # Of the samples: heartbeats are not written down one by one
        assert one.document["steps"] == 200
        assert one.document["on_demand_cost_usd"] > one.document["cost_usd"]
        assert one.controller == GONE
        lock = FileLock(tmp_path / LOCK)
        assert lock.take(shared=False)
        assert controller_of(row) == ALIVE
        lock.release()
        assert controller_of(row) == GONE
        assert controller_of(replace(row, folder=tmp_path / "none")) == ELSEWHERE
        assert [line.machines for line in job_lines(history, worlds.START_S + 100)] == [1]


def test_a_job_that_goes_on_after_its_end_has_no_result_yet(
    place: dict[str, str], tmp_path: Path
) -> None:
    job = worlds.one_machine()
    with History.open(place) as history:
        worlds.store(history, job, tmp_path)
        history.commit("resnet-7", job.world, replace(job.world, job=worlds.Job.PENDING), [])
        row = history.job("resnet-7")
    assert row is not None and row.result is None and controller_of(row) == GONE


def test_a_reader_cannot_write(place: dict[str, str], tmp_path: Path) -> None:
    with History.reader(place) as history:
        assert history.jobs() == []
        with pytest.raises(Exception, match="readonly"):
            worlds.store(history, worlds.one_machine(), tmp_path)
