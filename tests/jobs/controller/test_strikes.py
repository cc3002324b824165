"""Strikes that a cloud does not make at once: they come again, and none is counted twice."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import pytest
from support.jobs.controllers import JOB, Messages

from deepvm.jobs.cloud import UnknownError
from deepvm.jobs.controller import controller
from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.controller.injector import STRUCK
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.wire import new_secret

POOL = Pool("g4dn.xlarge", "z", "spot", 0.3)


class Flaky(Messages):
    """Fails so often to take a machine back."""

    can_preempt = True

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures, self.struck = failures, list[str]()

    def preempt(self, job: str, machine: str, grace_s: float | None) -> None:
        if self.failures:
            self.failures -= 1
            raise UnknownError("no answer")
        self.struck.append(machine)


def test_a_strike_that_the_cloud_did_not_make_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would never happen, and no other in its place."""
    monkeypatch.setattr(controller, "_AGAIN_S", 0.1)
    cloud, now_s = Flaky(2), time.time()
    times = {"launched_s": now_s, "ready_s": now_s, "trained_s": now_s, "heard_s": now_s + 60}
    machines = {m: MachineRecord(m, POOL, now_s, Machine.MEMBER, **times) for m in ("m1", "m2")}  # type: ignore[arg-type]
    cloud.alive = dict.fromkeys(machines, now_s)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        world = JobState(
            JobLimits(2, 2),
            now_s,
            Job.RUNNING,
            machines,
            members=("m1", "m2"),
            formed=True,
            pools=(POOL,),
        )
        history.add_job(JOB, now_s, tmp_path, {}, world)
        spec = {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
        job = ControlledJob(
            JOB, tmp_path, new_secret(), spec, injection=Injection(1e-9, count=1, grace_s=5.0)
        )
        found = Controller(job, world, cloud, history)  # type: ignore[arg-type]

        async def run() -> None:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(found.run(), 3)

        asyncio.run(run())
        assert cloud.struck == ["m1"] and not cloud.failures
        assert [e.facts["id"] for e in history.events(JOB) if e.kind == STRUCK] == ["m1"]
