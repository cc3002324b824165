"""What happens to a job, in words: ``templates/job_words.j2``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deepvm.jobs.agent.group_watch import ONE_PROCESS
from deepvm.jobs.decisions.hangs import START_TIMEOUT, STEP_TIMEOUT
from deepvm.jobs.decisions.reconcile import BUDGET, DEADLINE
from deepvm.jobs.decisions.world import JobLimits
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.submission import more_money, more_time
from deepvm.reports.pages import sentences


def words() -> Any:
    """The sentences on jobs, by name."""
    return sentences("job_words.j2")


def event_line(event: EventRow) -> str:
    """The line of an event; empty for one that says nothing new."""
    line: str = words().event(event)
    return line


def closing_lines(
    document: Mapping[str, Any], terms: JobLimits, last: Sequence[str], folder: Path, new_name: str
) -> list[str]:
    """What to know of a job that has not trained to its end, and what to do next.

    ``last``: lines that its trainers printed. ``new_name``: of a new job.
    """
    reason = document["why"]
    more = ""
    # What ended it once ends it again
    if reason.startswith(BUDGET):
        more = more_money(document["cost_usd"], terms)
    elif reason.startswith(DEADLINE):
        more = more_time(terms)
    limits = [key for key in (START_TIMEOUT, STEP_TIMEOUT) if reason.endswith(f"({key})")]
    few = [ONE_PROCESS for line in last if f"{ONE_PROCESS} for one process" in line]
    text: str = words().closing(document, last, folder / "logs", new_name, more, limits, few)
    return text.splitlines()
