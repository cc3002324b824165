"""Restarts of a job's trainers, by cause, as its events say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from deepvm.jobs.decisions.states import Job
from deepvm.jobs.decisions.world import LOST, PREEMPTED
from deepvm.jobs.history.history import MACHINE, EventRow

CAUSES = ("resume", "preemption", "hang", "crash", "resize")
"""Causes by priority: an ended job restarts only because the user resumes it."""


@dataclass(frozen=True)
class Restart:
    """When trainers were started again, and why."""

    at_s: float
    cause: str


def restarts(events: Sequence[EventRow]) -> Iterator[Restart]:
    """All restarts of a job, in order; the first start does not count."""
    newest = 0
    causes = {"resize"}
    for event in events:
        generation = event.generation
        if event.kind != "started":
            causes |= _causes(event)
        elif generation > newest:
            if newest:
                yield Restart(event.at_s, next(cause for cause in CAUSES if cause in causes))
            newest = generation
            causes = {"resize"}


def _causes(event: EventRow) -> set[str]:
    """The causes of a restart that an event stands for."""
    if Job(event.state).over:
        return {"resume"}
    gone = event.kind == MACHINE and event.facts.get("why") in (LOST, PREEMPTED)
    if gone or event.kind == "noticed":
        return {"preemption"}
    if event.kind == "hung":
        return {"hang"}
    return {"crash"} if event.kind == "ended" and event.facts.get("code") else set()
