"""Where a job's time went, by events that are made up and by a training that says itself what it
did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.jobs import worlds
from support.jobs.runs import Home

from deepvm.cli.jobs import run
from deepvm.jobs.controller.controller import ControlledJob
from deepvm.jobs.decisions.events import Safe
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import (
    JobLimits,
    JobState,
    KeptOutputs,
    MachineRecord,
    Pool,
    Reason,
    Role,
    StepGap,
)
from deepvm.jobs.history.history import MACHINE, PLACE, EventRow, History
from deepvm.jobs.history.job_report import final_document, restarts, spent
from deepvm.reports.jobs.live import words
from deepvm.reports.jobs.run_page import RunPage
from deepvm.reports.text import print_text

POOL = Pool("g4dn.xlarge", "z", "spot", 0.3)


def machine(
    name: str, launched_s: float, ended_s: float | None, role: Role = Role.TRAINER
) -> MachineRecord:
    return MachineRecord(
        name, POOL, 0.0, Machine.ENDED, launched_s=launched_s, ended_s=ended_s, role=role
    )


def rows(*states: tuple[float, str]) -> list[EventRow]:
    return [EventRow(at_s, "state", state, {}) for at_s, state in states]


def world(now_s: float, *machines: MachineRecord, least: int = 1, **more: object) -> JobState:
    known = {m.id: m for m in machines}
    return JobState(JobLimits(least, least), now_s, Job.DONE, known, **{"reached": 1, **more})  # type: ignore[arg-type]


def breakdown(created_s: float, world: JobState, events: list[EventRow]) -> dict[str, float]:
    return {
        cause: round(seconds, 6)
        for cause, seconds in spent(created_s, world, events).seconds.items()
    }


def test_a_job_waits_for_machines_whatever_happens_meanwhile() -> None:
    """Messages between two launches do not reclassify the wait for the second one."""
    found = breakdown(
        100.0,
        world(220.0, machine("m1", 110.0, 150.0), machine("m2", 180.0, 220.0)),
        rows(
            (112.0, "pending"),
            (115.0, "running"),
            (150.0, "forming"),
            (160.0, "forming"),
            (190.0, "running"),
        ),
    )
    assert found == {
        "allocation": 40.0,
        "preparation": 15.0,
        "compute": 65.0,
        "recompute": 0.0,
        "save": 0.0,
        "hang": 0.0,
    }


@pytest.mark.parametrize(("least", "allocation"), [(1, 10.0), (2, 40.0)])
def test_a_job_that_needs_two_machines_waits_for_both(least: int, allocation: float) -> None:
    anchor = machine("a", 101.0, None, Role.ANCHOR)  # trains nothing
    machines = (machine("m1", 110.0, None), machine("m2", 140.0, None), anchor)
    found = breakdown(100.0, world(160.0, *machines, least=least), rows((150.0, "running")))
    assert found["allocation"] == allocation and found["allocation"] + found["preparation"] == 50.0


def test_a_job_that_was_stopped_and_resumed() -> None:
    """What comes after the resumption is training, not the end of the first part.

    Between them nothing happens.
    """
    first, second = machine("m1", 0.0, 45.0), machine("m2", 1010.0, None)
    states = [
        (10.0, "running"),
        (40.0, "stopped"),
        (45.0, "stopped"),
        (1005.0, "pending"),
        (1020.0, "running"),
    ]
    events = rows(*states, (1100.0, "done"))
    done = world(1100.0, first, second)
    found = spent(0.0, done, events)
    seconds = {
        "allocation": 5.0,
        "preparation": 20.0,
        "compute": 110.0,
        "recompute": 0.0,
        "save": 0.0,
        "hang": 0.0,
    }
    assert {cause: round(s, 6) for cause, s in found.seconds.items()} == seconds
    assert found.usd["release"] == pytest.approx(0.3 / 3600 * 5)
    document = final_document("job", 0.0, done, events, {})
    assert document["total_s"] == sum(document["breakdown_s"].values()) == 135.0
    still = breakdown(0.0, replace(done, job=Job.STOPPED), [*events[:3]])
    assert still["compute"] == 30.0


def test_a_job_that_fails_before_its_first_step_has_trained_nothing() -> None:
    failed = replace(world(30.0, machine("m1", 5.0, 28.0)), job=Job.FAILED, reached=0)
    events = rows((10.0, "running"), (25.0, "failed"))
    found = breakdown(0.0, failed, events)
    assert (found["compute"], found["preparation"]) == (0.0, 25.0)
    document = final_document("job", 0.0, failed, events, {"g4dn.xlarge": 0.5})
    assert document["same_work_on_demand_usd"] is None and document["on_demand_cost_usd"] > 0
    one = breakdown(0.0, replace(failed, reached=1), events)
    assert one["compute"] == 15.0


def test_the_release_of_machines_is_no_wait_for_them() -> None:
    found = breakdown(
        0.0, world(30.0, machine("m1", 0.0, 22.0)), rows((10.0, "running"), (20.0, "done"))
    )
    assert (found["allocation"], found["preparation"], found["compute"]) == (0.0, 20.0, 10.0)


def crashing() -> tuple[JobState, list[EventRow]]:
    """50 steps of 20 ms, and trainers that load for 6 s: nine times they fail after 5 of them, on
    the same machine.

    After another hang, noticed after 30 s, the rest is done.
    """
    events, at_s = list[EventRow](), 10.0
    for number in range(1, 11):
        facts = {"id": "m1", "generation": number}
        events.append(EventRow(at_s, "started", "running", facts))
        events.append(EventRow(at_s + 6.0, "stepped", "running", {**facts, "took_s": 6.0}))
        at_s += 6.08
        if number == 10:
            hung = {"since_s": at_s, "why": "", "version": 45, "again": True, "generation": 10}
            events.append(EventRow(at_s + 30.0, "hung", "forming", hung))
            at_s += 30.5
            continue
        events.append(EventRow(at_s, "ended", "running", {**facts, "code": 1, "step": 5 * number}))
        events.append(EventRow(at_s + 0.5, "state", "forming", {"generation": number}))
        at_s += 1.0
    facts = {"id": "m1", "generation": 11}
    events.append(EventRow(at_s, "started", "running", facts))
    events.append(EventRow(at_s + 6.0, "stepped", "running", {**facts, "took_s": 6.0}))
    events.append(EventRow(at_s + 6.08, "ended", "done", {**facts, "code": 0, "step": 50}))
    one = replace(machine("m1", 1.0, at_s + 7.0), trained_s=10.0)
    facts_s = replace(world(0.0).facts, step_s=0.02)
    return (world(at_s + 7.0, one, facts=facts_s, reached=50, generation=11, lost_steps=5), events)


def test_trainers_that_load_or_hang_make_no_steps() -> None:
    known, events = crashing()
    found = final_document("job", 0.0, known, events, {"g4dn.xlarge": 0.6})
    took = found["breakdown_s"]
    assert took["compute"] == pytest.approx(50 * 0.02, rel=0.01) and took[
        "recompute"
    ] == pytest.approx(0.1, rel=0.01)
    assert took["hang"] == pytest.approx(30.0) and took["preparation"] > 11 * 5.9
    assert sum(took.values()) == pytest.approx(found["total_s"], abs=0.01)
    assert sum(found["spent_usd"].values()) == pytest.approx(found["cost_usd"], abs=1e-7)
    # The steps, and one start: from the launch until the first step.
    assert found["same_work_on_demand_usd"] == pytest.approx((1.0 + 14.98) * 0.6 / 3600, rel=0.01)
    again = found["restarts"]
    assert (again["count"], again["causes"]["crash"], again["causes"]["hang"]) == (10, 9, 1)
    assert "10 restarts (1 hang and 9 crashes): " in words().restarts(found)
    assert (
        again["waiting_s"] == pytest.approx(9 * 1.0 + 30.5 + 10 * 5.98, abs=0.1)
        and not again["uncertain_s"]
    )


def test_steps_that_were_done_twice_have_their_share() -> None:
    """The last step may have been a slow one: 20 of 100 steps done are a fifth of the time."""
    last = world(100.0).facts
    known = world(
        100.0, machine("m1", 0.0, None), lost_steps=20, reached=80, saving_s=10.0, facts=last
    )
    found = breakdown(0.0, known, rows((0.0, "running")))
    assert found == {
        "allocation": 0.0,
        "preparation": 0.0,
        "compute": 72.0,
        "recompute": 18.0,
        "save": 10.0,
        "hang": 0.0,
    }


@pytest.mark.parametrize(
    ("reason", "saving_s"), [(Reason.EMERGENCY, 3.0), (Reason.INSURANCE, 0.25)]
)
def test_a_save_before_a_preemption_takes_until_it_is_safe(reason: Reason, saving_s: float) -> None:
    before = JobState(
        JobLimits(1, 1),
        0.0,
        Job.RUNNING,
        {"m1": machine("m1", 0.0, None)},
        generation=1,
        members=("m1",),
    )
    after, _ = react(before, Safe(1, 5, reason, stall_s=0.25, took_s=3.0), 1.0)
    assert after.saving_s == saving_s


def test_what_comes_before_the_steps_and_between_them(capsys: pytest.CaptureFixture[str]) -> None:
    events = [
        EventRow(
            9.0,
            "prepared",
            "pending",
            {"id": "m1", "code_s": 1.0, "setup_s": 50.0, "data_s": 0.0, "load_s": 4.0},
        ),
        EventRow(
            9.0,
            "prepared",
            "pending",
            {"id": "m2", "code_s": 2.0, "setup_s": 70.0, "data_s": 0.0, "load_s": 4.0},
        ),
        EventRow(12.0, "stepped", "running", {"id": "m1", "generation": 1, "took_s": 12.0}),
    ]
    job = worlds.one_machine()
    slow = replace(job.world, between=StepGap(s=31.0, of_s=100.0))
    document = final_document("job", worlds.START_S, slow, events, {})
    assert document["phases_s"] == {
        "code": 1.5,
        "setup": 60.0,
        "data": 0.0,
        "load": 4.0,
        "first_step": 12.0,
    }
    assert document["between_steps"] == 0.31
    print_text("job", document=document, events=())
    out, page = capsys.readouterr().out, RunPage(replace(job, document=document)).render()
    for said in (
        "on average: 60 s for setup and 12 s for their first step",
        "31 % of the training passes between steps",
    ):
        assert said in out and said in page
    print_text("job", document=job.document, events=())
    assert "on average" not in (out := capsys.readouterr().out) and "between steps" not in out
    assert job.document["between_steps"] is None and set(job.document["phases_s"].values()) == {
        None
    }


def test_what_is_wrong_with_a_simulation_keeps_no_job_from_its_final_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without one the job is never over, however often it is resumed."""
    job = worlds.one_machine(cloud="local")

    async def over(*_: object) -> JobState:
        return job.world

    def wrong(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(run, "_run", over)
    monkeypatch.setattr(run, "_validation", wrong)
    monkeypatch.setattr("deepvm.jobs.history.forecast.forecast", wrong)
    monkeypatch.setenv("DEEPVM_DATA_DIR", str(tmp_path))
    with History.open({PLACE: str(tmp_path / "history.db")}) as history:
        worlds.store(history, job, tmp_path)
        name = job.row.name
        history.commit(name, job.world, job.world, [])  # it has no result again
        run.control(
            ControlledJob(name, tmp_path, "00" * 32, job.row.spec),
            job.world,
            history,
            "json",
            validate=True,
        )
        row = history.job(name)
    assert row is not None and row.result is not None and row.result["state"] == "done"
    assert row.result["forecast"] is row.result["validation"] is None
    assert [record.getMessage() for record in caplog.records] == [
        "the job has no forecast",
        "the job has no validation",
    ]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


TIMED = """
import os, sys, time
import deepvm.training as dt

latest = dt.latest()
step = int(latest.read_text()) if latest else 0
spent = {"compute": 0.0, "save": 0.0}
while step < int(sys.argv[1]):
    began = time.monotonic()
    with dt.step_context():
        time.sleep(0.02)
    time.sleep(0.005)  # data
    spent["compute"] += time.monotonic() - began
    step += 1
    if dt.check_save():
        began = time.monotonic()
        mine = f"{os.environ['RESULT']}/mine-{os.environ['DEEPVM_EPOCH']}-{step}"
        open(mine, "w").write(str(step))
        dt.backup(mine)
        spent["save"] += time.monotonic() - began
    open(f"{os.environ['RESULT']}/spent-{os.environ['DEEPVM_EPOCH']}", "w").write(repr(spent))
"""


@pytest.mark.slow
def test_the_training_says_the_same(home: Home) -> None:
    (home.code / "own.py").write_text(TIMED)
    inject = {"mttp": "1s", "count": 2, "grace": "4s", "seed": 4}
    found = home.document(
        "run", str(home.job("timed", "exec python own.py 200;", inject=inject, setup="sleep 0.3"))
    )
    took = found["breakdown_s"]
    assert sum(took.values()) == pytest.approx(found["total_s"], rel=0.01)
    assert (found["state"], found["lost_steps"], took["recompute"]) == ("done", 0, 0.0)
    phases = found["phases_s"]
    assert (
        0.3 <= phases["setup"] < 1.0
        and phases["code"] > 0 == phases["data"]
        and 0 < phases["first_step"] < 5
    )
    # 5 ms between steps of 20; what is said last of a generation may be up to a heartbeat old.
    assert 0.15 < found["between_steps"] < 0.4
    told = [eval(file.read_text()) for file in home.result.glob("spent-*")]
    assert len(told) == found["generations"] == 3
    steps_s = sum(t["compute"] for t in told)
    # Three starts and ends of a script, and the time in which a trainer stands after its version is
    # safe.
    assert steps_s <= took["compute"] + took["save"] <= 1.5 * steps_s + 3 * 0.7
    # Half a second each; a part of it passes while the version is saved
    assert took["allocation"] >= 0.5 + 2 * 0.2
    assert set(took) == set(final_document("x", 0.0, world(1.0), [], {})["breakdown_s"])


@pytest.mark.parametrize("code", [0, 1])
def test_a_restart_after_the_end_is_a_resume_though_trainers_were_killed(code: int) -> None:
    events = [
        EventRow(10.0, "started", "running", {"id": "m1", "generation": 1}),
        EventRow(20.0, "ended", "running", {"id": "m1", "generation": 1, "code": code, "step": 5}),
        EventRow(20.0, "stop", "stopped", {"why": "stopped by the user", "at_once": True}),
        EventRow(50.0, "started", "running", {"id": "m2", "generation": 2}),
        EventRow(60.0, MACHINE, "forming", {"id": "m2", "state": "ended", "why": "lost"}),
        EventRow(70.0, "started", "running", {"id": "m3", "generation": 3}),
        EventRow(90.0, "started", "running", {"id": "m3", "generation": 4}),
    ]
    assert [restart.cause for restart in restarts(events)] == ["resume", "preemption", "resize"]


@pytest.mark.parametrize(
    ("job", "lost", "line"),
    [
        (Job.STOPPED, 0, "0 preemptions, 0 with a notice; 26 steps are not saved"),
        (Job.FAILED, 3, "0 preemptions, 0 with a notice; 3 steps lost; 26 steps are not saved"),
        (
            Job.DONE,
            0,
            "0 preemptions, 0 with a notice; 0 steps lost; the last 26 steps came after the newest"
            " checkpoint",
        ),
        (Job.RUNNING, 0, "0 preemptions, 0 with a notice; 0 steps lost"),
    ],
)
def test_steps_after_the_newest_checkpoint_are_not_called_safe(
    job: Job, lost: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = replace(machine("m1", 0.0, 30.0), trained_s=2.0)
    known = replace(world(30.0, one, reached=28, version=2, lost_steps=lost), job=job)
    document = final_document("job", 0.0, known, [], {})
    assert (document["unsaved_steps"], document["lost_steps"]) == (26, lost)
    print_text("job", document=document, events=())
    assert line in capsys.readouterr().out.splitlines()
    page = RunPage(
        replace(worlds.one_machine(), document={**worlds.one_machine().document, **document})
    ).render()
    assert ("26 steps are not saved" in page) == (job in (Job.STOPPED, Job.FAILED))
    assert ("the last 26 steps came after the newest checkpoint" in page) == (job is Job.DONE)
    assert ("nothing was done twice" in page) == (job is Job.RUNNING)
    older = {key: value for key, value in document.items() if key != "unsaved_steps"}
    print_text("job", document=older, events=())
    assert "steps lost" in capsys.readouterr().out


def test_after_a_preemption_without_a_safe_checkpoint_lost_steps_are_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The history may not say more: it could not be written since."""
    one = replace(machine("m1", 0.0, None), trained_s=2.0, noticed_s=20.0, state=Machine.NOTICED)
    known = replace(world(30.0, one, reached=157, members=("m1",)), job=Job.RUNNING)
    document = final_document("job", 0.0, known, [], {})
    assert (document["preemptions"], document["steps"], document["lost_steps"]) == (1, 157, None)
    print_text("job", document=document, events=())
    assert "steps lost: unknown, no checkpoint is safe" in capsys.readouterr().out
    status = replace(worlds.one_machine(), document={**worlds.one_machine().document, **document})
    page = RunPage(status).render()
    assert "no checkpoint is safe" in page and "nothing was done twice" not in page
    again = replace(known, generation=2, lost_steps=157, reached=3)
    assert final_document("job", 0.0, again, [], {})["lost_steps"] == 157


def test_a_named_pattern_that_matched_nothing_fails_a_job_that_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = replace(machine("m1", 0.0, 30.0), trained_s=2.0)
    default = ["outputs/", "*.pt", "*.pth", "*.safetensors"]
    for patterns, code, reason in (
        (["*.bin", "*.nope"], 1, "outputs: nothing matched *.nope"),
        (["outputs/"], 1, "outputs: nothing matched outputs/"),
        (["*.bin"], 0, ""),
        (default, 0, ""),
    ):
        unmatched = tuple(name for name in patterns if name != "*.bin")
        looked = {"m1": KeptOutputs(unmatched=unmatched)}
        known = replace(world(30.0, one, outputs=looked), job=Job.DONE)
        document = final_document("job", 0.0, known, [], {}, patterns=patterns)
        assert (document["exit_code"], document["why"]) == (code, reason)
        lines = words().closing(document, Path("logs"), "", "", [], []).split("\n")
        assert lines[:-1] == ([f"job is done, but {reason}"] if code else [])
        print_text("job", document=document, events=())
        assert ("outputs: none" in capsys.readouterr().out.splitlines()) == (patterns == default)
        stopped = final_document("job", 0.0, replace(known, job=Job.STOPPED), [], {}, (), patterns)
        assert (stopped["exit_code"], stopped["why"]) == (3, "")
