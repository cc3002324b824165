"""Jobs whose progress is not known: no report says that nothing was lost, or calls time steps that
were not seen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.jobs import worlds

from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import PREEMPTED, GenerationProgress
from deepvm.jobs.history.history import MACHINE, STATE, EventRow
from deepvm.jobs.history.job_report import final_document
from deepvm.jobs.standing import OVER, JobLine, JobStatus
from deepvm.reports.jobs.live import closing_lines, event_line, live_lines
from deepvm.reports.jobs.run_page import JobsPage, RunPage
from deepvm.reports.pages import sentences
from deepvm.reports.text import print_text

S = worlds.START_S
WHY = "this script reports no steps"


def plain() -> JobStatus:
    """``torch.save`` in a loop, nothing else: m1 is preempted after 20 s of it, m2 does all of it
    again.
    """
    machines = [
        worlds.machine(
            1,
            0,
            launched_s=S + 2,
            ready_s=S + 4,
            trained_s=S + 5,
            ended_s=S + 25,
            end_reason=PREEMPTED,
        ),
        worlds.machine(
            2,
            25,
            launched_s=S + 27,
            ready_s=S + 29,
            trained_s=S + 30,
            ended_s=S + 70,
            end_reason="released",
        ),
    ]
    events = [
        EventRow(S + 5, "started", "running", {"id": "m1", "generation": 1}),
        EventRow(
            S + 25,
            MACHINE,
            "forming",
            {"id": "m1", "state": "ended", "why": PREEMPTED, "generation": 1},
        ),
        EventRow(S + 30, "started", "running", {"id": "m2", "generation": 2}),
        EventRow(S + 70, "ended", "done", {"id": "m2", "code": 0, "step": 0, "generation": 2}),
    ]
    found = worlds.standing(machines, events, [], end_s=70.0, steps=None)
    world = replace(found.world, generation=2, reached=0, version=0, peak=0)
    document = final_document("plain", S, world, events, {"g4dn.xlarge": 0.526})
    return replace(found, world=world, document=document, row=replace(found.row, result=document))


def test_what_is_not_known_is_null() -> None:
    found = plain().document
    assert found["steps"] is found["lost_steps"] is found["same_work_on_demand_usd"] is None
    assert found["progress_unknown"] == WHY and found["state"] == "done" and found["exit_code"] == 0
    assert found["breakdown_s"]["recompute"] is found["spent_usd"]["recompute"] is None
    assert found["breakdown_s"]["compute"] == 60.0  # both times
    again = found["restarts"]
    assert (
        again["count"] == again["causes"]["preemption"] == 1 and sum(again["causes"].values()) == 1
    )
    rate = worlds.POOL.usd_per_hour / 3600
    assert again["waiting_s"] == 5.0 and again["waiting_usd"] == pytest.approx(3 * rate, abs=1e-8)
    assert again["uncertain_s"] == 20.0 and again["uncertain_usd"] == pytest.approx(
        20 * rate, abs=1e-8
    )


def test_what_is_unknown_of_lost_steps_is_left_out_where_nothing_restarted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = plain()
    print_text("job", document=job.document, events=())
    assert "lost steps  " in capsys.readouterr().out and "done again" in RunPage(job).render()
    restarts = {**job.document["restarts"], "count": 0}
    job = replace(job, document={**job.document, "restarts": restarts})
    print_text("job", document=job.document, events=())
    assert "lost steps" not in capsys.readouterr().out
    page = RunPage(job).render()
    assert "done again" not in page and "Steps lost" not in page


def test_no_report_calls_it_known(capsys: pytest.CaptureFixture[str]) -> None:
    job = plain()
    print_text("job", document=job.document, events=job.events)
    shown = capsys.readouterr().out
    for text in (shown, RunPage(job).render()):
        assert f"rogress unknown: {WHY}" in text
        assert "1 restart (1 preemption): 5 s and $0.0001 of waiting and loading" in text
        assert "up to 20 s ($0.0009) of training may have been done twice" in text
        for false in (
            "0 steps",
            "done once",
            "done twice.",
            "nothing was done twice",
            "steps that count",
            "step 0",
        ):
            assert false not in text, false
    line = JobLine("plain", "done", OVER, S, None, 1, 0, 0.1)
    print_text("jobs_ls", jobs=[line])
    assert "unknown" in capsys.readouterr().out
    assert "unknown" in JobsPage([line]).render(nonce="x")
    stopped = replace(job.world, job=Job.STOPPED, ending="stopped by the user")
    document = final_document("plain", S, stopped, job.events, {})
    (closing,) = closing_lines(document, stopped.terms, (), job.row.folder, "job-2")
    assert f"stopped by the user; progress unknown: {WHY}; deepvm jobs resume" in closing


def test_while_it_runs() -> None:
    job = plain()
    trains = replace(job.world, job=Job.RUNNING, terms=replace(job.world.terms, steps=400))
    text = " ".join(live_lines("plain", trains, [], 200))
    assert "progress unknown: no steps reported yet" in text and "no checkpoint yet" in text
    assert "step 0" not in text and "lost" not in text and "is safe" not in text
    starts = replace(trains, machines={}, generation=0)
    assert "step 0 of 400" in " ".join(live_lines("plain", starts, [], 200))
    assert (
        event_line(EventRow(S, "ended", "done", {"id": "m2", "code": 0, "step": 0}))
        == "m2: trainers ended with exit code 0"
    )


def test_a_trainer_that_was_killed() -> None:
    """Out of memory, the system kills it, and it prints nothing."""
    killed = EventRow(S, "ended", "running", {"id": "m2", "code": 137, "step": 8})
    assert event_line(killed).endswith("exit code 137 (killed; often: out of memory) after step 8")


def test_steps_that_could_not_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    """``--steps`` says when a training is whole; one that reports no steps says nothing of it."""
    job = plain()
    asked = replace(job, world=replace(job.world, terms=replace(job.world.terms, steps=400)))
    print_text("job", document=job.document, events=(), status=asked)
    assert f"{WHY}; the 400 steps asked for could not be checked; " in capsys.readouterr().out
    print_text("job", document=job.document, events=(), status=job)
    assert "asked for" not in capsys.readouterr().out


def test_steps_after_a_restart_that_say_not_where_they_begin() -> None:
    """``step_context`` without ``latest``: it may have restored a file of its own, or done all of
    it again.
    """
    counted = replace(plain().world, pulse=GenerationProgress(stepped=True), reached=50, peak=30)
    document = final_document("plain", S, counted, plain().events, {})
    assert document["steps"] is document["lost_steps"] is None
    assert (
        document["progress_unknown"] == "this script does not report from which step it continues"
    )
    first = final_document("plain", S, replace(counted, peak=0), plain().events, {})
    assert (first["steps"], first["lost_steps"], first["progress_unknown"]) == (50, 0, "")


def test_a_job_that_waits_for_its_first_machine_has_made_no_steps() -> None:
    waits = replace(plain().world, machines={}, generation=0, job=Job.PENDING, now_s=S + 5)
    document = final_document("plain", S, waits, [EventRow(S + 1, STATE, "pending", {})], {})
    assert (document["steps"], document["lost_steps"]) == (0, 0)


def test_no_saving_is_claimed_where_work_may_have_been_done_twice() -> None:
    """Machines on demand would not have spent that time: without steps it is unknown."""
    document = {"state": "done", "steps": None, "cost_usd": 1.0, "on_demand_cost_usd": 3.0}
    assert "was saved" in sentences("job_words.j2").saving(document, False)
    again = {**document, "restarts": {"count": 1}}
    assert sentences("job_words.j2").saving(again, False) == ""
