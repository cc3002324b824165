"""A machine whose metadata service refuses: its user is told that it hears no notices, once."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs import worlds
from support.jobs.controllers import JOB, Controlled, Messages, Peer, running
from support.jobs.metadata_services import Service
from support.jobs.runs import until

from deepvm.jobs.agent.agent import Agent
from deepvm.jobs.agent.notices import Ec2Notices
from deepvm.jobs.agent.preparation import AgentEnvironment
from deepvm.jobs.controller.controller import ControlledJob, Controller
from deepvm.jobs.decisions.states import Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.history import PLACE, EventRow, History
from deepvm.jobs.wire import new_secret, secret_of
from deepvm.reports.jobs.live import event_line, words
from deepvm.reports.jobs.run_page import RunPage
from deepvm.reports.text import print_text

POOL = Pool("g4dn.xlarge", "z", "spot", 0.3)


def deaf(number: int, why: str = "no token: 403 Forbidden") -> dict[str, Any]:
    return {"event": "deaf", "of": number, "why": why}


def test_it_is_written_down_once(tmp_path: Path) -> None:
    """Agents say it again after minutes."""
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        m1 = MachineRecord("m1", POOL, 1.0, Machine.WARMING, launched_s=1.0, heard_s=time.time())
        world = JobState(JobLimits(1, 1), time.time(), machines={"m1": m1}, pools=(POOL,))
        history.add_job(JOB, 1.0, tmp_path, {}, world)
        job = ControlledJob(
            JOB, tmp_path, new_secret(), {"per_machine": 1, "tiers": [], "orphan_after_s": 1e9}
        )
        found = Controller(job, world, Messages(), history)  # type: ignore[arg-type]

        async def heard() -> None:
            await found.report("m1", {"events": [deaf(1)]})
            await found.report("m1", {"events": [deaf(2), {"event": "deaf", "of": 3}]})

        with pytest.raises(TypeError):  # what does not say why is no report
            asyncio.run(heard())
        (row,) = [event for event in history.events(JOB) if event.kind == "deaf"]
    assert row.facts["id"] == "m1"
    assert event_line(row) == "m1 receives no notices from its cloud: no token: 403 Forbidden"
    assert words().group(row) == "trouble"


def test_it_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    job = worlds.one_machine()
    row = EventRow(
        worlds.START_S + 8, "deaf", "running", {"id": "m1", "why": "no token", "generation": 1}, 99
    )
    job = replace(job, events=[*job.events, row])
    print_text("job", document=job.document, events=job.events)
    assert "m1 receives no notices from its cloud: no token" in capsys.readouterr().out
    assert "m1 receives no notices from its cloud: no token" in RunPage(job).render()


class Refusing(Service):
    """IMDS that is there, and gives nobody a token, as where it is disabled."""

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str, dict[str, str]]:
        return 403, "", {}


@pytest.mark.slow
def test_a_metadata_service_that_refuses(tmp_path: Path) -> None:
    service = Refusing()
    with running(tmp_path, 1) as where:
        agent = _listening(where, service.url, tmp_path / "agent")
        until(lambda: "deaf" in where.kinds())
        agent._over.set()
        agent._reporter.join()
        agent._clients["report"].close()
        where.kill()
        where.start()
        Peer(where, "m1").ask("/report", {"events": [deaf(2**62)]})
        assert where.kinds().count("deaf") == 1
    service.close()


def _listening(where: Controlled, metadata: str, folder: Path) -> Agent:
    """The part of an agent that listens for notices, and reports."""
    secret = secret_of(where.secret, "m1")
    around = AgentEnvironment("m1", secret, folder, lambda: where.url, "127.0.0.1", "lo", 1.0, 1e9)
    found = Agent(around, Ec2Notices(metadata))
    threading.Thread(target=found._listen, daemon=True).start()
    return found
