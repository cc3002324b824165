"""A controller whose job another one has taken over, as one on a newer head."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.jobs.controllers import JOB, Messages

from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.head.mirror import FencedError
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.wire import new_secret


class Cloud(Messages):
    """Counts how often all that a job shares was removed, and its machines with it."""

    def __init__(self) -> None:
        super().__init__()
        self.finished = 0

    def finish(self, job: str) -> None:
        self.finished += 1


async def _fenced() -> None:
    raise FencedError("another head has the job")


def controller(folder: Path, cloud: Cloud, job: Job) -> Controller:
    history = History.open({PLACE: str(folder / "history.db")})
    world = JobState(JobLimits(1, 1), 1.0, job=job, pools=(Pool("g4dn.xlarge", "z", "spot", 0.3),))
    history.add_job(JOB, 1.0, folder, {}, world)
    spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
    return Controller(ControlledJob(JOB, folder, new_secret(), spec), world, cloud, history)  # type: ignore[arg-type]


def test_at_its_end_it_removes_nothing(tmp_path: Path) -> None:
    cloud = Cloud()
    found = controller(tmp_path, cloud, Job.STOPPED)
    found.kept = _fenced
    with pytest.raises(FencedError):
        asyncio.run(found.run())
    assert not cloud.finished


def test_it_ends_although_nothing_happens(tmp_path: Path) -> None:
    cloud = Cloud()
    found = controller(tmp_path, cloud, Job.PENDING)

    async def run() -> None:
        asyncio.get_running_loop().call_later(
            0.5, found.give_up, FencedError("another head has the job")
        )
        await asyncio.wait_for(found.run(), 10)

    with pytest.raises(FencedError):
        asyncio.run(run())
    assert not cloud.finished and list(cloud.alive) == ["m1"]
