"""What happens to a job, in words: one line for each event that people want to know of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepvm.core.units import counted, format_seconds
from deepvm.jobs.agent.group_watch import ONE_PROCESS
from deepvm.jobs.controller.injector import INJECTED
from deepvm.jobs.decisions.hangs import START_TIMEOUT, STEP_TIMEOUT
from deepvm.jobs.decisions.injection import Injection
from deepvm.jobs.decisions.reconcile import BUDGET, DEADLINE, NEVER_READY
from deepvm.jobs.decisions.world import RELEASED, UNREADY, JobLimits
from deepvm.jobs.history.downtime import DOWNTIME
from deepvm.jobs.history.history import MACHINE, MARKET, STATE, EventRow
from deepvm.jobs.submission import more_money, more_time
from deepvm.reports.jobs.progress import steps_words

SAVED = {
    "emergency": "before a preemption",
    "insurance": "by the save policy",
    "periodic": "as asked for",
    "resize": "before machines join",
    "stop": "before the end",
}
_ENDS = {
    "suspect": "has gone silent",
    "lost": "was given up as lost",
    UNREADY: "ended before it could train",
}
_JOBS = {
    "pending": "the job is waiting for machines",
    "running": "the job is training",
    "saving": "the job is saving a version",
    "done": "the job is done",
    "failed": "the job failed",
    "stopped": "the job stopped",
}


def event_line(event: EventRow) -> str:
    """The line of an event; empty for one that says nothing new."""
    facts, kind = event.facts, event.kind
    who = str(facts.get("id", ""))
    lines: dict[str, Callable[[], str]] = {
        "launched": lambda: f"{who} was launched",
        "refused": lambda: f"{who} was refused: {facts['why']}",
        MACHINE: lambda: (
            f"{who} {_ENDS.get(facts['state']) or _ENDS.get(facts['why']) or 'was ' + facts['why']}"
        ),
        "noticed": lambda: f"{who} will be taken back in {_left(facts['taken_s'] - event.at_s)}",
        "rebalanced": lambda: f"{who} may be taken back sooner than the others",
        "deaf": lambda: f"{who} hears no notices of its cloud: {facts['why']}",
        "started": lambda: _started(facts),
        "ended": lambda: (
            f"{who}: trainers ended with exit code {facts['code']}{_after(facts['step'])}"
        ),
        "safe": lambda: f"version {facts['version']} is safe, {SAVED[facts['reason']]}",
        "lasts": lambda: f"version {facts['version']} is safe without an anchor, too",
        "alone": lambda: (
            facts["why"]
            and f"version {facts['version']} is in the anchor's memory alone: {facts['why']}"
        ),
        "unsaved": lambda: f"no version was saved: {facts['why']}",
        "hung": lambda: _hung(facts),
        "stop": lambda: f"the job {_stops(facts)}: {facts['why']}",
        "savenow": lambda: "a version was asked for",
        "failed": lambda: f"{who}: {facts['why']}",
        DOWNTIME: lambda: f"there was no controller for {_left(event.at_s - facts['since_s'])}",
        INJECTED: lambda: _injected(Injection.written(facts)),
        MARKET: lambda: f"machines are asked for {facts['market']}: {facts['why']}",
    }
    if kind != STATE:
        return lines[kind]() if kind in lines else ""
    return _JOBS.get(event.state) or f"generation {facts['generation']} is forming"


_TROUBLE = {DOWNTIME, "refused", "noticed", "deaf", MACHINE, "alone", "unsaved", "failed", "hung"}
_GROUPS = {
    "launched": "machines",
    "safe": "versions",
    "lasts": "versions",
    "alone": "versions",
    "savenow": "versions",
}


def event_group(event: EventRow) -> str:
    """What an event is about: machines, versions, training or trouble."""
    kind, facts = event.kind, event.facts
    if kind == MACHINE and facts.get("why") == RELEASED:
        return "machines"
    if (
        kind in _TROUBLE
        or (kind == "ended" and facts.get("code"))
        or (kind == STATE and event.state == "failed")
    ):
        return "trouble"
    return _GROUPS.get(kind, "training")


def _left(seconds: float) -> str:
    return format_seconds(max(seconds, 0.0), digits=2)


def _after(step: int) -> str:
    return f" after step {step}" if step else ""


def _hung(facts: Mapping[str, Any]) -> str:
    again = f"; its trainers are restarted{_after(facts['version'])}" if facts["again"] else ""
    return f"{facts['why']}{again}"


def _injected(injection: Injection) -> str:
    limit = (
        ""
        if injection.count is None
        else f", {counted(injection.count, 'preemption')} of this job at most"
    )
    return (
        f"machines are preempted on purpose, after {_left(injection.mean_s)} of training on"
        f" average{limit}"
    )


def _stops(facts: Mapping[str, Any]) -> str:
    return "stops without another checkpoint" if facts.get("at_once") else "will stop"


def _started(facts: Mapping[str, Any]) -> str:
    if facts.get("version") is None:
        return ""
    generation, version = facts["generation"], facts["version"]
    return (
        f"generation {generation} goes on after {counted(version, 'step')}"
        if version
        else (f"generation {generation} starts at step 0")
    )


def closing_lines(
    document: Mapping[str, Any], terms: JobLimits, last: Sequence[str], folder: Path, new_name: str
) -> Iterator[str]:
    """What to know of a job that has not trained to its end, and what to do next; ``new_name``: of a new job."""
    name, state = document["name"], document["state"]
    is_one_process_enough = any(f"{ONE_PROCESS} for one process" in line for line in last)
    if last and document["why"].endswith(last[-1]):
        last = last[:-1]  # it is the reason, which follows
    if state == "failed":
        yield from last
        why = document["why"] or "training failed"
        yield f"{name}: {why}; all that it printed: deepvm jobs logs {name} ({folder / 'logs'})"
        resume = f"deepvm jobs resume {name}"
        limit = next(
            (key for key in (START_TIMEOUT, STEP_TIMEOUT) if why.endswith(f"({key})")), None
        )
        again = (
            f"with other code or options, start a new job: the same command with --name {new_name}"
        )
        if is_one_process_enough:
            yield (
                f"for a script that uses one GPU: the same command with {ONE_PROCESS} --name"
                f" {new_name}"
            )
        if limit is None:
            yield f"{again}; where something else was wrong, {resume} continues it"
        else:
            option = f"--{limit.replace('_', '-')} none"
            yield f"{again}; if it only takes longer, {resume} {option} continues it"
    elif state == "stopped":
        if document["why"].startswith(NEVER_READY):
            yield from last
        steps, version = document["steps"], document["version"]
        done = f"; {steps_words(document)}"
        if steps is not None:
            safe = f", {version or 'none'} of them safe" if version < steps else ""
            done = f", after {steps_words(document)}{safe}"
        more = _more(document, terms)
        yield (
            f"{name}: {document['why']}{done}; deepvm jobs resume {name}{more and ' '}{more}"
            " goes on"
        )


def _more(document: Mapping[str, Any], terms: JobLimits) -> str:
    """What a job needs to go on, as options: what ended it once ends it again."""
    if document["why"].startswith(BUDGET):
        return more_money(document["cost_usd"], terms)
    return more_time(terms) if document["why"].startswith(DEADLINE) else ""


def clock(at_s: float) -> str:
    """The time of day, here."""
    return time.strftime("%H:%M:%S", time.localtime(at_s))
