"""Jobs, their machines and their events as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deepvm.io.times import utc_text
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.history.pools import PoolHistory
from deepvm.jobs.orphans import Orphan
from deepvm.jobs.standing import ELSEWHERE, GONE, JobLine
from deepvm.reports.jobs.events import clock
from deepvm.reports.text import print_text

_LAST = 12


def print_jobs(jobs: Sequence[JobLine]) -> None:
    """The jobs as a table."""
    print_text("jobs_ls", also="-o csv", jobs=jobs, state=state_words, time=utc_text)


def state_words(job: JobLine) -> str:
    """The state of a job, and what is wrong with its controller and its versions."""
    controller = {GONE: ", no controller", ELSEWHERE: ", controller elsewhere"}
    failed = ", saves failed" if job.failed_saves else ""
    return f"{job.state}{controller.get(job.controller, '')}{failed}"


def print_job(document: Mapping[str, Any], events: Sequence[EventRow]) -> None:
    """One job: in short, its machines, what happened last."""
    print_text("job", document=document, events=events[-_LAST:], clock=clock)


def print_plan(document: Mapping[str, Any]) -> None:
    """What a job would rent, where, and how it can be found."""
    print_text("run_plan", plan=document)


def print_orphans(orphans: Sequence[Orphan]) -> None:
    """Machines without a controller, as a table."""
    print_text("jobs_orphans", orphans=orphans, time=utc_text)


def print_pools(pools: Sequence[PoolHistory]) -> None:
    """Pools of machines as a table."""
    print_text("history_pools", also="-o csv", pools=pools)
