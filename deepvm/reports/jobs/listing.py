"""Jobs, their machines and their events as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.documents.outputs.jobs import iso_time
from deepvm.jobs.history.forecast import rows_of as forecast_figures
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.pools import PoolHistory
from deepvm.jobs.history.validation import rows_of as validation_figures
from deepvm.jobs.orphans import Orphan
from deepvm.jobs.standing import ELSEWHERE, GONE, JobLine
from deepvm.reports.jobs.events import clock
from deepvm.reports.text import print_text

_LAST = 12
FORECAST_COLUMNS = ["forecast", "9 of 10", "fact", "off by", ""]


def print_jobs(jobs: Sequence[JobLine]) -> None:
    """The jobs as a table."""
    print_text("jobs_ls", also="-o csv", jobs=jobs, state=state_words, time=iso_time)


def state_words(job: JobLine) -> str:
    """The state of a job, and what is wrong with its controller and its versions."""
    controller = {GONE: ", no controller", ELSEWHERE: ", controller elsewhere"}
    failed = ", saves failed" if job.failed_saves else ""
    return f"{job.state}{controller.get(job.controller, '')}{failed}"


def print_job(document: Mapping[str, Any], events: Sequence[EventRow]) -> None:
    """One job: in short, its machines, what happened last."""
    print_text(
        "job",
        document=document,
        events=events[-_LAST:],
        clock=clock,
        forecast_columns=FORECAST_COLUMNS,
        forecast_rows=forecast_rows,
        validation_rows=validation_rows,
    )


def forecast_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """What was expected, its range, what came out, and how far that is off."""
    rows = []
    off = document["forecast"]["off"] or {}
    for name, mean, low, high, fact, unit in forecast_figures(document):
        digits = {"s": 1, "$": 4, "": 1}[unit]
        share = off.get({"s": "total_s", "$": "cost_usd"}.get(unit))
        result = f"{fact:.{digits}f}" if unit else f"{fact}"
        shown = [f"{mean:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}", result]
        rows.append([name, *shown, "" if share is None else f"{100 * share:+.1f} %", unit])
    return rows


def validation_rows(validation: Mapping[str, Any]) -> list[list[str]]:
    """Forecast and fact of each figure, and by how much the forecast is off."""
    rows = []
    total_s = validation["fact"]["total_s"]
    for name, forecast, fact, unit in validation_figures(validation):
        digits = {"s": 2, "$": 6}.get(unit, 0)
        off = "" if forecast == fact else "-"
        if fact:
            off = f"{100 * (forecast / fact - 1):+.1f} %"
        # Of a figure next to nothing, the ratio says little
        if unit == "s" and total_s and abs(forecast - fact) < 0.005 * total_s:
            off = f"{forecast - fact:+.2f} s"
        rows.append([name, f"{forecast:.{digits}f}", f"{fact:.{digits}f}", off, unit])
    return rows


def print_plan(document: Mapping[str, Any]) -> None:
    """What a job would rent, where, and how it can be found."""
    print_text("run_plan", plan=document)


def print_orphans(orphans: Sequence[Orphan]) -> None:
    """Machines without a controller, as a table."""
    print_text("jobs_orphans", orphans=orphans, time=iso_time)


def print_pools(pools: Sequence[PoolHistory]) -> None:
    """Pools of machines as a table."""
    print_text("history_pools", also="-o csv", pools=pools)
