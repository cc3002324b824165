"""The machine of a head: what runs there does what was asked for, and nothing more."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs.memory_bucket import NAME, HeadCloud, place_of, submitted

from deepvm.cli.jobs import jobs_group, run
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import World
from deepvm.jobs.head.head_state import HeadState
from deepvm.jobs.history.history import History, JobRow


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[History, JobRow]]:
    """A computer that is the head of a job, as its processes find it."""
    history, row = submitted(tmp_path)
    HeadState(1, time.time(), here=True).save(row.folder)
    for name, value in {**place_of(tmp_path), "DEEPVM_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    yield history, row
    history.close()


@pytest.fixture
def controlled(monkeypatch: pytest.MonkeyPatch) -> list[World]:
    """The worlds with which controllers are started."""
    found: list[World] = []
    monkeypatch.setattr(run, "control", lambda job, world, *_, **__: found.append(world))
    monkeypatch.setattr("deepvm.jobs.submission.submitted", lambda *_: None)
    return found


def test_it_rents_no_other_head_when_its_own_address_is_not_known(
    head: tuple[History, JobRow], controlled: list[World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its metadata service may not answer for a moment; the other head would end this one."""
    cloud = HeadCloud()
    assert not cloud.controls_here()
    monkeypatch.setattr("deepvm.jobs.submission.cloud_of", lambda name: cloud)
    jobs_group.resume(NAME, total_usd=None, deadline=None)
    assert not cloud.asked and len(controlled) == 1


@pytest.mark.parametrize("state", [Job.STOPPED, Job.FAILED])
def test_a_controller_that_was_killed_while_the_job_ended_goes_on_ending_it(
    head: tuple[History, JobRow], controlled: list[World], monkeypatch: pytest.MonkeyPatch, state: Job
) -> None:
    """Nobody has asked for more: its user does that from elsewhere, and rents a head for it."""
    monkeypatch.setattr("deepvm.jobs.submission.cloud_of", lambda name: HeadCloud())
    history, _ = head
    before = history.world(NAME)
    history.commit(NAME, before, replace(before, job=state, ending="stopped by the user"), [])
    jobs_group.resume(NAME, total_usd=None, deadline=None)
    (world,) = controlled
    assert (world.job, world.ending) == (state, "stopped by the user")
