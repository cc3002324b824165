"""The orchestrator's promises, checked for runs that were jobs in addition to the gates.

Promises about versions hold for strategies that the orchestrator can ask to save, those of deepvm's
own Checkpointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deepvm.lab.audit.job_leftovers import STATE, left_by
from deepvm.lab.records import EVENTS, Records, read_lines
from deepvm.lab.strategies.strategy_registry import heeds_orchestrator

_INSURANCE = "insurance"


def promises(run: Records) -> Iterator[str]:
    """What a job has not kept. Raises DataError."""
    attempts = run.supervisor["attempts"]
    events = list(read_lines(run.folder / EVENTS))
    formed = max((int(row["generation"]) for row in events), default=0)
    if formed != len(attempts):
        yield f"{len(attempts)} attempts are recorded of {formed} generations"
    if run.config["strategy"] is None or not heeds_orchestrator(run.config["strategy"]):
        return
    yield from _newest(run)
    for attempt, later in zip(attempts, attempts[1:], strict=False):
        lost = attempt["reached_step"] - (later["resumed_step"] or 0)
        if attempt["state"] == "preempted" and later["state"] != "superseded" and lost:
            yield f"{', '.join(attempt['causes'])} was told in time, and {lost} steps were lost"
    yield from _insured(attempts, events)


def _insured(
    attempts: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """A checkpoint was requested after each recommendation, unless earlier ones were in flight."""
    told = {
        key: at
        for one in attempts
        for key, at in one["struck"].items()
        if key.startswith("rebalance-")
    }
    asked = [
        row["time"]
        for row in events
        if row["event"] in ("safe", "unsaved") and row.get("reason") == _INSURANCE
    ]
    for key, struck in told.items():
        if not any(at > struck for at in asked):
            yield f"{key} was told, and no version was asked for"


def _newest(run: Records) -> Iterator[str]:
    """Each generation resumes from the newest safe checkpoint that was not damaged on purpose."""
    if (
        any(strike["fault"] in ("torn", "flip") for strike in run.config["strikes"])
        or run.config["disk"]
    ):
        return
    anchor_lost = any(strike["fault"] == "node" for strike in run.config["strikes"])
    newest = 0
    for attempt in run.supervisor["attempts"]:
        resumed = attempt["resumed_step"]
        if resumed is not None and resumed < newest:
            yield (
                f"attempt {attempt['attempt']} went on from step {resumed}, though version {newest}"
                " was safe"
            )
        newest = max([newest, *(row[0] for row in attempt["safe"] if row[2] or not anchor_lost)])


def safe_steps(attempt: Mapping[str, Any]) -> set[int]:
    """Checkpoints the orchestrator called safe: a notice may kill a rank before it records one."""
    return {row[0] for row in attempt.get("safe", ())}


def left_of_job(run: Records) -> Iterator[str]:
    """What a job has left on this computer."""
    if run.supervisor.get("left"):
        yield f"the job was over, and processes {run.supervisor['left']} lived"
    if (run.folder / STATE).exists():
        yield f"{STATE} is left"
    for pid in left_by(run.folder):
        yield f"process {pid} of the job lives"
