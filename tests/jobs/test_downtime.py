"""Time without a controller: it is told, paid, and counts neither as training nor against the
forecast.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs import worlds
from support.jobs.runs import Home, until

from deepvm.core.preemption.savepolicy import SaveFacts
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool, StepRate
from deepvm.jobs.history.forecast import forecast, step_time
from deepvm.jobs.history.history import PLACE, EventRow, History, Sample
from deepvm.jobs.history.job_report import CAUSES, final_document, spent
from deepvm.jobs.history.timeline import DOWNTIME, Downtime, caught_up, downtimes, losses
from deepvm.jobs.standing import standing_of
from deepvm.reports.text import print_text

POOL = Pool("g4dn.xlarge", "here", "spot", 3.6)
SPEC = {"cloud": "local", "inject": None}
AWAY = [Downtime(100.0, 1100.0)]


def slept(steps: int = 0) -> tuple[JobState, list[EventRow]]:
    """100 steps of 2 s from 20 s on, and a controller that was away from 100 s to 1100 s.

    So many were done then.
    """
    over_s = 1220.0 - 2 * steps
    times = {"launched_s": 0.0, "ready_s": 15.0, "trained_s": 20.0, "ended_s": over_s + 10}
    m1 = MachineRecord("m1", POOL, 0.0, Machine.ENDED, **times, end_reason="released")  # type: ignore[arg-type]
    facts = {"id": "m1", "generation": 1}
    events = [
        EventRow(20.0, "started", "running", {**facts, "version": 0}),
        EventRow(1100.0, DOWNTIME, "running", {"since_s": 100.0, "generation": 1}),
        EventRow(over_s, "ended", "done", {**facts, "code": 0, "step": 100}),
    ]
    terms = JobLimits(1, 1, steps=100, restart_s=20.0, mttp_s=1e9)
    machines = {"m1": m1}
    return (
        JobState(
            terms,
            over_s + 10,
            Job.DONE,
            machines,
            generation=1,
            members=("m1",),
            reached=100,
            pools=(POOL,),
        ),
        events,
    )


def samples(steps: int = 0) -> list[Sample]:
    before = [Sample(t, 1, int((t - 20) / 2)) for t in range(20, 101, 10)]
    return [
        *before,
        Sample(1100.0, 1, 40),
        Sample(1101.0, 1, 40 + steps + (not steps)),
        Sample(1150.0, 1, 65 + steps),
    ]


@pytest.mark.parametrize(("steps", "known"), [(0, 1), (30, 30)])
def test_steps_of_a_time_without_a_controller_follow_from_the_samples(
    steps: int, known: int
) -> None:
    assert downtimes(slept()[1], samples(steps)) == [Downtime(100.0, 1100.0, known)]
    assert downtimes(slept()[1], []) == AWAY


@pytest.mark.parametrize("first_s", [0.0, 90.0])
def test_of_samples_that_are_far_apart_it_gets_its_share(first_s: float) -> None:
    """A step takes 2 s all the time; a long job has few samples."""
    one, other = (Sample(at_s, 1, int(at_s / 2)) for at_s in (first_s, 2000.0))
    assert downtimes(slept()[1], [one, other]) == [Downtime(100.0, 1100.0, 500)]


def test_steps_that_were_lost_meanwhile_are_none() -> None:
    assert (
        downtimes(slept()[1], [Sample(90.0, 1, 50), Sample(1100.0, 1, 50), Sample(1105.0, 2, 10)])
        == AWAY
    )


def test_it_is_no_training() -> None:
    world, events = slept()
    found = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2}, AWAY)
    assert found["breakdown_s"] == {
        "allocation": 0,
        "preparation": 30,
        "compute": 200,
        "recompute": 0,
        "save": 0,
        "hang": 0,
    }
    assert (
        found["downtime_s"] == 1000
        and found["total_s"] == 1230 == sum(found["breakdown_s"].values()) + 1000
    )
    assert found["spent_usd"]["downtime"] == pytest.approx(1.0) and found["spent_usd"][
        "compute"
    ] == pytest.approx(0.2)
    assert sum(found["spent_usd"].values()) == pytest.approx(found["cost_usd"], abs=1e-6)
    assert found["same_work_on_demand_usd"] == pytest.approx(220 * 0.002)  # the steps and one start


def test_steps_done_meanwhile_count_for_what_the_work_costs() -> None:
    world, events = slept(25)
    found = final_document(
        "one", 0.0, world, events, {"g4dn.xlarge": 7.2}, [Downtime(100.0, 1100.0, 25)]
    )
    assert found["breakdown_s"]["compute"] == 150
    assert found["same_work_on_demand_usd"] == pytest.approx(220 * 0.002)
    unseen = final_document(
        "one", 0.0, world, events, {"g4dn.xlarge": 7.2}, [Downtime(100.0, 1100.0, 100)]
    )
    assert unseen["same_work_on_demand_usd"] is None


@pytest.mark.parametrize("steps", [0, 25])
def test_the_forecast_is_compared_with_the_rest(
    steps: int, capsys: pytest.CaptureFixture[str]
) -> None:
    world, events = slept(steps)
    without = [Downtime(100.0, 1100.0, steps)]
    assert step_time(world, events, without) == pytest.approx(2.0)
    document = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2}, without)
    found = forecast(SPEC, 0.0, world, events, (), document, without)
    assert found is not None and found["step_s"] == 2.0
    assert found["fact"] == {"total_s": 230.0, "cost_usd": pytest.approx(0.23), "preemptions": 0}
    assert found["off"]["total_s"] == pytest.approx(220 / 230 - 1, abs=1e-3)
    print_text("job", document={**document, "forecast": found}, events=())
    said = " ".join(capsys.readouterr().out.split())
    assert "16.7 min of it without a controller, 1 generation" in said, said
    assert (
        "no controller 16.7 min 1.0000" in said and "min without a controller are left out" in said
    ), said


def test_stopped_time_is_none() -> None:
    """Nobody needs to control a job that is stopped."""
    rows = [EventRow(50.0, "stop", "stopped", {}), EventRow(1100.0, "launched", "pending", {})]
    world = JobState(JobLimits(1, 1), 1200.0, Job.PENDING)
    found = spent(0.0, world, rows, [Downtime(60.0, 1150.0)])
    waited = {"allocation": 100, DOWNTIME: 50}
    assert found.seconds == dict.fromkeys(CAUSES, 0) | waited


def test_the_pace_of_steps_is_measured_anew() -> None:
    """A deadline must not take an hour in which all slept for slow steps."""
    spot = replace(POOL, usd_per_hour=1.0)
    member = MachineRecord(
        "m1", POOL, 0.0, Machine.MEMBER, launched_s=0.0, ready_s=1.0, trained_s=2.0, heard_s=3600.0
    )
    terms = JobLimits(
        1,
        1,
        steps=10_000,
        end_s=1e6,
        bought=(spot,),
        deadline_policy="greedy",
        lost_s=1e6,
        silent_s=1e6,
    )
    pace = StepRate(1, first=10, first_s=10.0, step_s=0.5, last=20)
    made = {
        "machines": {"m1": member},
        "members": ("m1",),
        "formed": True,
        "generation": 1,
        "pools": (POOL,),
    }
    world = JobState(terms, 15.0, Job.RUNNING, pace=pace, reached=20, reached_s=15.0, **made)  # type: ignore[arg-type]
    world = replace(world, facts=SaveFacts(step_s=0.5))
    for at_s, step in ((3600.5, 21), (3601.0, 22), (3601.5, 23), (3602.0, 24), (3602.5, 25)):
        if at_s == 3600.5:
            world, _ = react(world, d.Downtime(15.0), 3600.0)
        world, _ = react(world, d.Heartbeat("m1", 1, step, warm=True, step_s=0.5), at_s)
    assert world.pace.step_s == pytest.approx(0.5)


def test_the_next_controller_knows_the_steps_of_the_last_heartbeats() -> None:
    """Else the first sample after it would be a loss of steps that nobody has lost."""
    world = JobState(JobLimits(1, 1), 50.0, Job.RUNNING, generation=2, reached=10, reached_s=40.0)
    seen = [Sample(45.0, 2, 20), Sample(55.0, 2, 30)]
    found = caught_up(world, seen)
    assert (found.reached, found.reached_s) == (30, 55.0)
    assert caught_up(replace(world, reached_s=None), seen).reached_s is None
    for other in (
        replace(world, generation=3),
        replace(world, peak=12),
        replace(world, reached=31),
    ):
        assert caught_up(other, seen) == other
    assert caught_up(world, []) == world


def test_a_job_whose_controller_is_gone_now(tmp_path: Path) -> None:
    job = worlds.one_machine(over=False)
    (machine,) = job.world.machines.values()
    machine = replace(machine, ended_s=None, end_reason="", state=Machine.MEMBER)
    world = replace(job.world, job=Job.RUNNING, machines={"m1": machine}, now_s=worlds.START_S + 40)
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        worlds.store(history, replace(job, world=world, events=job.events[:4]), tmp_path)
        row = history.job("resnet-7")
        assert row is not None
        found = standing_of(history, row, worlds.START_S + 3657)
        # After the last sample
        assert found.without == [Downtime(worlds.START_S + 57, worlds.START_S + 3657)]
        assert (
            found.document["downtime_s"] == 3600 and found.document["breakdown_s"]["compute"] == 50
        )
        assert not standing_of(history, row, worlds.START_S + 58).without


# --- whole jobs -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def events_of(home: Home, name: str) -> list[EventRow]:
    with History.open(home.env) as history:
        return history.events(name)


@pytest.mark.slow
def test_a_controller_that_was_killed(home: Home) -> None:
    process = home.start(
        "run",
        str(home.job("killed", "exec python own.py 1500 0.02;", steps=1500, save_policy="none")),
    )
    until(lambda: (home.result / "starts-0").exists())
    time.sleep(3)  # samples are on the disk
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    time.sleep(7)
    gone = home.document("jobs", "show", "killed")
    assert gone["state"] == "running" and gone["downtime_s"] > 5
    done = home.run("jobs", "resume", "killed")
    assert "there was no controller for" in done.stderr and "no controller" in done.stdout, done
    found = home.document("jobs", "show", "killed")
    assert (found["state"], found["steps"], found["generations"]) == ("done", 1500, 1)
    assert 7 < found["downtime_s"] < found["total_s"] - 3
    assert found["forecast"]["fact"]["total_s"] <= found["total_s"]
    with History.open(home.env) as history:
        seen = history.samples("killed")
        (without,) = downtimes(history.events("killed"), seen)
    # It trained on; agents come back in seconds
    assert without.span_s / 2 < without.steps * 0.02 < without.span_s + 6
    assert not losses(seen)
    assert sum(found["breakdown_s"].values()) + found["downtime_s"] == pytest.approx(
        found["total_s"], abs=0.5
    )


@pytest.mark.slow
def test_a_computer_that_sleeps(home: Home) -> None:
    """All processes of the job stand still, and go on."""
    process = home.start("run", str(home.job("slept", "exec python own.py 300 0.02;", steps=300)))
    until(lambda: (home.result / "starts-0").exists())
    time.sleep(2)
    asleep = home.processes()
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(12)
    for pid in asleep:
        os.kill(pid, signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and b"there was no controller for" in said, said
    found = home.document("jobs", "show", "slept")
    assert found["downtime_s"] == pytest.approx(12, abs=2.5) and found["lost_steps"] == 0
    assert found["forecast"]["fact"]["total_s"] == pytest.approx(
        found["total_s"] - found["downtime_s"], abs=2
    )
    assert found["breakdown_s"]["compute"] < 12


@pytest.mark.slow
def test_preemptions_on_purpose_outlive_their_controller(home: Home) -> None:
    """Of three that were ordered some have happened when the controller is killed.

    The others happen after that.
    """
    process = home.start("run", str(home.job("struck", "exec python own.py 3000 0.02;")))
    until(lambda: (home.result / "starts-0").exists())
    ordered = home.run(
        "inject", "struck", "--mttp", "2s", "--seed", "4", "--grace", "3s", "--count", "3"
    )
    assert ordered.returncode == 0, ordered
    until(lambda: any(e.kind == "struck" for e in events_of(home, "struck")))
    os.killpg(process.pid, signal.SIGKILL)  # whether or not the cloud has heard of it
    process.communicate()
    resumed = home.start("jobs", "resume", "struck")
    until(lambda: sum(e.kind == "noticed" for e in events_of(home, "struck")) == 3, 90)
    home.hurry()
    _, said = resumed.communicate(timeout=60)
    assert resumed.returncode == 0, said
    found = home.document("jobs", "show", "struck")
    assert (found["state"], found["preemptions"], found["notices"]) == ("done", 3, 3)
    struck = [e.facts["id"] for e in events_of(home, "struck") if e.kind == "struck"]
    assert len(struck) == len(set(struck)) == 3
