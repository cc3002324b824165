"""What could be expected of a job before it began, beside what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.jobs import worlds
from support.jobs.runs import Home

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, MachineRecord, Pool
from deepvm.jobs.history.forecast import forecast
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.job_report import final_document
from deepvm.reports.jobs.run_page import RunPage
from deepvm.reports.text import print_text

SPOT, STEADY = (
    Pool("g4dn.xlarge", "here", "spot", 3.6),
    Pool("g4dn.xlarge", "here", "on-demand", 7.2),
)
SPEC: dict[str, Any] = {"cloud": "local", "inject": None}


def done(terms: JobLimits, pool: Pool = SPOT) -> tuple[JobState, list[EventRow]]:
    """100 steps of 2 s from 20 s on, on one machine that lives for 230 s and costs $0.001 a second
    (7.2: $0.002).
    """
    times = {"launched_s": 0.0, "ready_s": 15.0, "trained_s": 20.0, "ended_s": 230.0}
    m1 = MachineRecord("m1", pool, 0.0, Machine.ENDED, **times, end_reason="released")  # type: ignore[arg-type]
    facts = {"id": "m1", "generation": 1}
    events = [
        EventRow(20.0, "started", "running", {**facts, "version": 0}),
        EventRow(220.0, "ended", "done", {**facts, "code": 0, "step": 100}),
    ]
    world = JobState(
        terms,
        230.0,
        Job.DONE,
        {"m1": m1},
        generation=1,
        members=("m1",),
        reached=100,
        pools=(pool,),
    )
    return world, events


def found(
    terms: JobLimits, pool: Pool = SPOT, spec: dict[str, Any] = SPEC, **more: Any
) -> dict[str, Any]:
    world, events = done(terms, pool)
    document = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    known = forecast({**SPEC, **spec}, 0.0, world, events, more.get("machines", ()), document)
    return {**document, "forecast": known}


def test_without_preemptions_it_is_the_start_and_the_steps() -> None:
    document = found(JobLimits(1, 1, steps=100, restart_s=30.0), STEADY)
    known = document["forecast"]
    assert (known["steps"], known["step_s"], known["start_s"], known["mttp_s"]) == (
        100,
        2.0,
        30.0,
        None,
    )
    assert known["total_s"]["mean"] == known["total_s"]["p95"] == pytest.approx(230.0)
    assert known["cost_usd"]["mean"] == pytest.approx(0.46) and known["preemptions"]["mean"] == 0
    assert known["off"] == {"total_s": 0.0, "cost_usd": 0.0}


def test_preemptions_cost_what_is_expected_of_them() -> None:
    terms = JobLimits(1, 1, steps=100, restart_s=40.0, version_s=2.0)
    never, often = (found(replace(terms, mttp_s=life_s))["forecast"] for life_s in (1e9, 120.0))
    assert often["preemptions"]["mean"] > 1 > never["preemptions"]["mean"]
    assert often["total_s"]["p5"] < often["total_s"]["mean"] < often["total_s"]["p95"]
    # The start took 20 s, and 40 s were expected
    assert often["off"]["total_s"] > never["off"]["total_s"] > 0


def test_injected_lives_count_from_training_and_end() -> None:
    terms = JobLimits(
        1, 1, steps=10_000, mttp_s=20.0, restart_s=5.0, policy=parse_policy("static:5")
    )
    known = found(terms, spec={"inject": {"mttp": 20.0, "count": 3, "missed": 1.0}})["forecast"]
    assert (
        known["preemptions"] == {"mean": 3, "sem": 0, "p5": 3, "p50": 3, "p95": 3}
        and known["mttp_s"] == 20.0
    )
    assert not found(terms, spec={"inject": {"mttp": 20.0, "count": 0, "missed": 1.0}})["forecast"][
        "preemptions"
    ]["p95"]


def test_listed_lives_are_foreseen_as_they_are() -> None:
    terms = JobLimits(
        1, 1, steps=10_000, mttp_s=20.0, restart_s=5.0, policy=parse_policy("static:5")
    )
    lives = [30.0, 50.0, 10.0]
    known = found(terms, spec={"inject": {"lives": lives, "missed": 1.0}})["forecast"]
    assert known["preemptions"]["p5"] == known["preemptions"]["p95"] == 3
    assert known["total_s"]["p5"] == known["total_s"]["p95"]  # nothing is drawn
    fewer = found(terms, spec={"inject": {"lives": lives, "count": 1, "missed": 1.0}})["forecast"]
    assert fewer["preemptions"]["p95"] == 1 and fewer["total_s"]["mean"] < known["total_s"]["mean"]


def test_starts_are_expected_as_earlier_ones_took() -> None:
    row = {"instance_type": "g4dn.xlarge", "cloud": "local", "role": "trainer"}
    rows = [
        {**row, "requested_s": -90.0, "trained_s": -80.0},
        {**row, "requested_s": -70.0, "trained_s": -50.0},
    ]
    others = [
        {**row, "requested_s": -90.0, "trained_s": None},
        {**row, "requested_s": -90.0, "trained_s": 10.0},  # later than this job
        {**row, "requested_s": -90.0, "trained_s": -10.0, "cloud": "aws"},
    ]
    assert found(JobLimits(1, 1, steps=100), machines=rows + others)["forecast"]["start_s"] == 15.0


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (
            JobLimits(1, 2, steps=100),
            "no forecast: deepvm cannot simulate a job whose number of machines may change",
        ),
        (
            JobLimits(1, 1, steps=100, bought=(STEADY,), end_s=1e9),
            (
                "no forecast: deepvm cannot simulate a job that may switch to on-demand machines to"
                " meet its deadline"
            ),
        ),
    ],
)
def test_what_nobody_could_know_is_not_invented(
    terms: JobLimits, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = found(terms)
    assert document["forecast"] is None
    print_text("job", document=document, events=())
    assert why in capsys.readouterr().out
    page = RunPage(
        replace(worlds.one_machine(), document={**worlds.one_machine().document, **document})
    ).render()
    assert why in page


def test_a_job_that_is_done_has_a_forecast_for_the_steps_that_it_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``deepvm run plan.json -- COMMAND`` need not say how many there are."""
    document, said = (
        found(JobLimits(1, 1, restart_s=30.0)),
        found(JobLimits(1, 1, restart_s=30.0, steps=100)),
    )
    assert document["forecast"] == {**said["forecast"], "steps_given": False}
    assert document["forecast"]["steps"] == 100 and document["unforeseen"] == ""
    print_text("job", document=document, events=())
    assert "forecast for the 100 steps completed, with a mean lifetime" in capsys.readouterr().out
    world, events = done(JobLimits(1, 1))
    stopped = replace(world, job=Job.STOPPED)
    assert forecast(SPEC, 0.0, stopped, events, (), document) is None
    assert "the number of steps is unknown" in document["unforeseen"]


def test_a_job_that_was_stopped_has_no_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    world, events = done(JobLimits(1, 1, steps=300))
    world = replace(world, job=Job.STOPPED)
    document = final_document("one", 0.0, world, events, {"g4dn.xlarge": 7.2})
    known = forecast(SPEC, 0.0, world, events, (), document)
    assert known is not None and known["off"] is None and known["steps"] == 300
    print_text("job", document={**document, "forecast": known}, events=())
    out = capsys.readouterr().out
    assert (
        "forecast for 300 steps, with a mean lifetime of 60 min and starts of 5 min on average:"
        in out
    ), out


def test_what_costs_nothing_has_no_deviation_of_its_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Hosts of one's own need no price."""
    document = found(
        JobLimits(1, 1, steps=100, restart_s=20.0), Pool("host", "ssh", "on-demand", 0.0)
    )
    known = document["forecast"]
    assert known["fact"]["cost_usd"] == 0 and known["off"]["cost_usd"] is None
    assert known["off"]["total_s"] == pytest.approx(220 / 230 - 1, abs=1e-3)
    print_text("job", document=document, events=())
    out = capsys.readouterr().out
    assert "forecast for 100 steps" in out and "220.0" in out
    assert " to " not in out  # nothing is random where nothing is preempted
    failed = {**document, "state": "failed"}
    print_text("job", document=failed, events=())
    assert "forecast" not in capsys.readouterr().out
    page = RunPage(
        replace(worlds.one_machine(), document={**worlds.one_machine().document, **failed})
    ).render()
    assert "Forecast and fact" not in page


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.mark.slow
def test_a_whole_job(home: Home) -> None:
    job = home.job("first", "exec python own.py 200 0.02;", steps=200)
    done = home.run("run", str(job))
    assert (
        "forecast for 200 steps, with a mean lifetime of" in done.stdout
        and "90 % of runs" in done.stdout
    ), done
    known = home.document("jobs", "show", "first")
    assert known["forecast"]["start_s"] == 15.0 and known["validation"] is None
    page = (home.jobs / "first" / "run.html").read_text()
    assert "Forecast and fact" in page and "forecast for 200 steps" in page
    again = home.document("run", str(job), "--name", "second")
    assert again["forecast"]["start_s"] < 15.0 and abs(again["forecast"]["off"]["total_s"]) < 0.5
    third = home.document("run", str(home.job("third", "exec python own.py 20 0.02;")))["forecast"]
    assert (third["steps"], third["steps_given"]) == (20, False)
