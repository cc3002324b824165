"""A job as a page for a browser: ``run.html`` once it is over, and the same live from ``deepvm jobs serve``.

The page is complete without scripts; the script shows what the pointer is on, filters events and,
where the page is served, replaces parts by newer ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

from deepvm.core.units import counted, format_seconds
from deepvm.documents.outputs.jobs import iso_time
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.history.downtime import DOWNTIME
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.standing import GONE, JobStatus
from deepvm.reports.documents import to_yaml
from deepvm.reports.jobs import validation
from deepvm.reports.jobs.charts import Times, elapsed
from deepvm.reports.jobs.events import event_group, event_line
from deepvm.reports.jobs.job_charts import cost_chart, losses, paid, steps_chart
from deepvm.reports.jobs.money import unpriced_words
from deepvm.reports.jobs.phases import slow_parts
from deepvm.reports.jobs.progress import restart_words, steps_words, unsaved_words
from deepvm.reports.jobs.timeline import Timeline, Trained
from deepvm.reports.pages import format_count, format_paid, render, render_blocks

TEMPLATE = "run_page.html.j2"
PARTS = (
    "head",
    "time",
    "machines",
    "machine_table",
    "steps",
    "step_table",
    "money",
    "money_table",
    "file",
    "foot",
)
"""Blocks of the template that may change while the job runs; :meth:`RunPage.event_rows` may, too."""
MAX_EVENTS = 4000
"""The newest, which a page shows; ``deepvm jobs show -o json`` has all."""
_ROWS = 24
"""Of a table with the figures of a line."""
_BADGES = {Job.DONE.value: "good", Job.FAILED.value: "bad", Job.STOPPED.value: "fair"}
_CAUSES = {
    "compute": ("training", "steps that count"),
    "recompute": ("lost steps", "done again"),
    "save": ("saves", "training stood still"),
    "allocation": ("allocation", "no machine yet"),
    "preparation": ("preparation", "booting, loading, joining"),
    "hang": ("hang", "until it was noticed"),
    DOWNTIME: ("no controller", "unwatched; machines may have trained on"),
}
_UNKNOWN_STEPS = ("training", "an unknown number of steps")
GROUPS = {
    "machines": "Machines",
    "versions": "Versions",
    "training": "Training",
    "trouble": "Trouble",
}
"""Kinds of events to choose from, with their names on the page."""
_MACHINE_HEADER = ("machine", "type", "zone", "market", "asked for", "ready", "notice", "end")


def badge_of(state: str) -> str:
    """The style of a job's state."""
    return _BADGES.get(state, "busy")


@dataclass(frozen=True)
class Share:
    """A part of the time of a job."""

    style: str
    name: str
    meaning: str
    seconds: float
    share: float

    @property
    def time(self) -> str:
        return format_seconds(self.seconds, digits=3)

    @property
    def percent(self) -> str:
        return f"{self.share:.1%}"

    @property
    def tip(self) -> str:
        return f"{self.name}: {self.time}, {self.percent}"


@dataclass(frozen=True)
class RunPage:
    """The page of a job. ``version``: of deepvm."""

    job: JobStatus
    version: str = ""

    def render(self, *, nonce: str = "") -> str:
        """The whole page; with a ``nonce`` it is served, and keeps itself up to date."""
        return render(TEMPLATE, nonce=nonce, **self._data, events=self._events(0))

    @cached_property
    def parts(self) -> dict[str, str]:
        """What of the page may change while the job runs, by name."""
        parts = render_blocks(TEMPLATE, PARTS, **self._data)
        return {name.replace("_", "-"): text for name, text in parts.items()}

    def event_rows(self, after: int) -> str:
        """Rows of the events with larger numbers than ``after``, the newest first."""
        data = {"events": self._events(after), "groups": GROUPS}
        return render_blocks(TEMPLATE, ["events"], **data)["events"]

    @property
    def last_event(self) -> int:
        """The number of the newest event."""
        return self.job.events[-1].number if self.job.events else 0

    @property
    def times(self) -> Times:
        """From the submission to the end, or to now."""
        world = self.job.world
        ends = [m.ended_s for m in world.machines.values() if m.ended_s is not None]
        return Times(self.job.row.created_s, max([world.now_s, *ends]))

    @property
    def trained(self) -> Trained:
        """When which machines trained."""
        return Trained.of(self.job.events, self.times.end_s, self.job.without)

    @cached_property
    def _data(self) -> dict[str, Any]:
        job, document, spec = self.job, self.job.document, self.job.row.spec
        budget = (spec.get("budget") or {}).get("total_usd")
        shares, unknown_shares = self._shares()
        return {
            "job": job,
            "document": document,
            "version": self.version,
            "last_event": self.last_event,
            "badge_of": badge_of,
            "alarms": list(self._alarms()),
            "rented": self._rented(),
            "cards": list(self.cards()),
            "shares": shares,
            "unknown_shares": unknown_shares,
            "time_notes": [*restart_words(document), *slow_parts(document)],
            "forecast_words": validation.forecast_words,
            "forecast_header": ["", *validation.FORECAST_COLUMNS],
            "forecast_cells": validation.forecast_cells,
            "unforeseen_words": validation.unforeseen_words,
            "timeline": Timeline(list(job.world.machines.values()), self.times, self.trained),
            "machine_header": [*_MACHINE_HEADER, "why", "$"],
            "machine_rows": self._machine_rows(),
            "unknown_steps": f"P{steps_words(document)[1:]}.",
            "steps_chart": steps_chart(
                self.times, job.samples, job.events, _steps_of(spec), job.without
            ),
            "step_rows": self._step_rows(),
            "budget": budget,
            "cost_chart": cost_chart(self.times, job.world, document, budget),
            "money_rows": self._money_rows(),
            "groups": GROUPS,
            "max_events": MAX_EVENTS,
            "events_left_out": len(job.events) - MAX_EVENTS,
            "job_file": to_yaml(without_secrets(spec)),
        }

    def _alarms(self) -> Iterator[str]:
        job, document = self.job, self.job.document
        if document["why"]:
            yield f"{document['why']}"
        if job.controller == GONE:
            yield (
                "It has no controller; trainers continue without one. deepvm jobs resume"
                f" {job.row.name} starts another."
            )
        failed = document.get("failed_saves", {})
        if failed.get("in_a_row"):
            since = ""
            if document["version"]:
                since = f" since version {document['version']}, the newest that is safe"
            yield f"{counted(failed['in_a_row'], 'save')} failed{since}: {failed['why']}"

    def _rented(self) -> str:
        terms, pool = self.job.world.terms, self.job.world.pools[0]
        count = f"{terms.least} to {terms.most}"
        if terms.least == terms.most:
            count = f"{terms.most}"
        anchors = f", {counted(terms.anchors, 'anchor')}" if terms.anchors else ""
        cloud = self.job.row.spec.get("cloud", "-")
        return f"{count} x {pool.instance_type} {pool.market}{anchors}, cloud {cloud}"

    def cards(self) -> Iterator[tuple[str, str, str]]:
        """Figures with their names, and what else is known of them."""
        document = self.job.document
        steps, unknown = document["steps"], document.get("progress_unknown", "")
        yield "Steps", format_count(steps), ", ".join(self._step_facts(steps, unknown))
        away_s = document.get("downtime_s", 0.0)
        facts = [counted(document["generations"], "generation")]
        if away_s:
            facts.append(f"{elapsed(away_s)} of it without a controller")
        yield "Time", elapsed(float(document["total_s"])), ", ".join(facts)
        yield "Paid", format_paid(float(document["cost_usd"])), _compared(document)
        lost, unsaved = document["lost_steps"], unsaved_words(document)
        if lost or not unsaved:
            again = "nothing was done twice"
            if lost:
                again = f"{lost / max(steps or 0, 1):.1%} of the steps"
            yield "Steps lost", format_count(lost), unknown or again
        if unsaved:
            yield "Steps not saved", format_count(document["unsaved_steps"]), unsaved
        if restarts := document.get("restarts"):
            yield "Restarts", format_count(restarts["count"]), _counts(restarts["causes"])
        notices = "no machine was preempted"
        if document["preemptions"]:
            notices = f"{document['notices']} with a notice"
        yield "Preemptions", format_count(document["preemptions"]), notices
        saves = document["saves"]
        yield "Versions saved", format_count(sum(saves.values())), _counts(saves) or "none yet"

    def _step_facts(self, steps: int | None, unknown: str) -> Iterator[str]:
        total, step_s = _steps_of(self.job.row.spec), float(self.job.world.facts.step_s)
        if unknown:
            yield unknown
        elif total and steps is not None:
            yield f"of {format_count(total)}, {steps / total:.0%}"
        if step_s:
            yield f"{1 / step_s:.3g} steps/s"

    def _shares(self) -> tuple[list[Share], list[Share]]:
        """Parts of the time, and those that are unknown."""
        document = self.job.document
        times = {**document["breakdown_s"], DOWNTIME: document.get("downtime_s", 0.0)}
        whole = sum(float(times.get(cause) or 0.0) for cause in _CAUSES)
        known, unknown = list[Share](), list[Share]()
        for cause, words in _CAUSES.items():
            if cause == "compute" and document["steps"] is None:
                words = _UNKNOWN_STEPS
            if cause in times and times[cause] is None:
                unknown.append(Share(cause, *words, 0.0, 0.0))
            elif times.get(cause) or cause not in (DOWNTIME, "hang"):
                seconds = float(times.get(cause) or 0.0)
                known.append(Share(cause, *words, seconds, seconds / (whole or 1.0)))
        return (known if whole else []), unknown

    def _machine_rows(self) -> list[list[str]]:
        return [
            [
                *(m[key] for key in ("id", "type", "zone", "market")),
                *(self._after(m[key]) for key in ("requested", "ready", "notice", "end")),
                m["end_reason"] or "-",
                f"{m['usd']:.4f}",
            ]
            for m in self.job.document["machines"]
        ]

    def _after(self, text: str | None) -> str:
        if text is None:
            return "-"
        return self.times.elapsed(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())

    def _step_rows(self) -> list[list[str]]:
        samples = self.job.samples
        lost = {loss.at_s: loss.lost for loss in losses(samples)}
        shown_losses = list(lost)[-_ROWS:]
        every = max(len(samples) // _ROWS, 1)
        return [
            [
                self.times.elapsed(s.at_s),
                format_count(s.step),
                f"{s.generation}",
                format_count(lost.get(s.at_s, 0)),
            ]
            for i, s in enumerate(samples)
            if i % every == 0 or s is samples[-1] or s.at_s in shown_losses
        ]

    def _money_rows(self) -> list[list[str]]:
        points = paid(self.job.world, self.times)
        every = max(len(points) // _ROWS, 1)
        return [
            [elapsed(p.x_s), f"{p.usd:.4f}", f"{p.hours:.4f}"]
            for i, p in enumerate(points)
            if i % every == 0 or p is points[-1]
        ]

    def _events(self, after: int) -> list[dict[str, Any]]:
        newest = reversed(self.job.events[-MAX_EVENTS:])
        rows = (self._event(event) for event in newest if event.number > after)
        return [row for row in rows if row["text"]]

    def _event(self, event: EventRow) -> dict[str, Any]:
        lines = ()
        if event.facts.get("code") or event.kind == "failed":
            lines = event.facts.get("lines") or ()
        return {
            "after": self.times.elapsed(event.at_s),
            "time": iso_time(int(event.at_s)),
            "group": event_group(event),
            "text": event_line(event),
            "lines": lines,
        }


def _steps_of(spec: Mapping[str, Any]) -> int | None:
    """The number of steps, if the job file gives one."""
    steps = spec.get("steps")
    return steps if isinstance(steps, int) else None


def _compared(document: Mapping[str, Any]) -> str:
    """What was paid, compared with on-demand machines."""
    cost, on_demand = float(document["cost_usd"]), document["on_demand_cost_usd"]
    if not on_demand:
        return unpriced_words(document)
    if cost <= on_demand:
        share = 1 - cost / on_demand
        return f"{share:.0%} less than on demand, {format_paid(on_demand)}"
    return f"on demand {format_paid(on_demand)}"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def without_secrets(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A job file without what is not set, and without secrets: a page is sent to others."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None and v not in ({}, [])}
        if isinstance(value, list):
            return [plain(v) for v in value]
        if isinstance(value, str):
            return re.sub(r"(?<=://)[^/@\s]+@", "...@", value)
        return value

    shown: dict[str, Any] = plain({**spec, "env": dict.fromkeys(spec.get("env") or {}, "...")})
    return shown
