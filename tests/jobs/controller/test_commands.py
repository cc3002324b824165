"""Commands of the user: each is done, or answered with why not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs.controllers import Messages

from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.history.history import PLACE, History
from deepvm.jobs.wire import USER, new_secret

WORLD = JobState(JobLimits(1, 1), 0.0, pools=(Pool("g4dn.xlarge", "here", "spot", 0.3),))
LIVES = {"mttp": 30.0, "grace": 5.0, "missed": 0.0, "seed": 1, "count": None}


@pytest.mark.parametrize("can_preempt", [True, False])
def test_inject_where_the_cloud_cannot(tmp_path: Path, *, can_preempt: bool) -> None:
    cloud: Any = Messages()
    cloud.can_preempt = can_preempt
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        history.add_job("job", 0.0, tmp_path, {}, WORLD)
        job = ControlledJob("job", tmp_path, new_secret(), {})
        controller = Controller(job, replace(WORLD), cloud, history)
        answer = asyncio.run(controller.command(USER, {"command": "inject", "inject": LIVES}))
        events = history.events("job")
    assert [(e.kind, e.facts["mttp_s"]) for e in events] == (
        [("injected", 30.0)] if can_preempt else []
    )
    assert answer == ({} if can_preempt else {"error": answer["error"]})
    assert can_preempt or "allowed with local, netns and ssh" in str(answer["error"])
