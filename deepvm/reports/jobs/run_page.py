"""A job as a page for a browser: ``run.html`` once it is over, and the same live from ``deepvm jobs serve``.

The page is complete without scripts; the script shows what the pointer is on, filters events and,
where the page is served, puts newer parts in their places. Every text of the user is escaped, and
no script but the page's own can run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from deepvm.core.units import counted, format_seconds
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.history.downtime import DOWNTIME
from deepvm.jobs.history.history import EventRow
from deepvm.jobs.standing import ELSEWHERE, GONE, JobStatus
from deepvm.reports import pages
from deepvm.reports.documents import to_yaml
from deepvm.reports.jobs.charts import Times, elapsed, stacked
from deepvm.reports.jobs.events import event_group, event_line
from deepvm.reports.jobs.job_charts import cost_chart, losses, paid, steps_chart
from deepvm.reports.jobs.money import unpriced_words
from deepvm.reports.jobs.phases import slow_parts
from deepvm.reports.jobs.progress import restart_words, steps_words, unsaved_words
from deepvm.reports.jobs.timeline import Trained, timeline
from deepvm.reports.jobs.validation import (
    FORECAST_COLUMNS,
    forecast_cells,
    forecast_said,
    unforeseen_said,
)
from deepvm.reports.markup import Html, joined, table, tag
from deepvm.reports.page_frame import PageTemplate, beside
from deepvm.reports.pages import format_count as count
from deepvm.reports.pages import format_paid as money
from deepvm.reports.pages import format_utc as utc
from deepvm.reports.plans.page_parts import section, wide
from deepvm.reports.terminal import visible

MOST_EVENTS = 4000
"""The newest, which a page shows; ``deepvm jobs show -o json`` has all."""
_ROWS = 24
"""Of a table that says what a line says."""
_BADGES = {Job.DONE.value: "good", Job.FAILED.value: "bad", Job.STOPPED.value: "fair"}
_CAUSES = {
    "compute": ("training", "steps that count"),
    "recompute": ("lost steps", "done again"),
    "save": ("saves", "training stood still"),
    "allocation": ("allocation", "no machine yet"),
    "preparation": ("preparation", "booting, loading, joining"),
    "hang": ("hang", "until it was noticed"),
    DOWNTIME: ("no controller", "nobody watched; machines may have trained on"),
}
_UNKNOWN_CAUSES = {"compute": ("training", "an unknown number of steps")}
"""Where no steps were reported."""
GROUPS = {
    "machines": "Machines",
    "versions": "Versions",
    "training": "Training",
    "trouble": "Trouble",
}
"""Kinds of events to choose from, with their names on the page."""


def badge_of(state: str) -> str:
    """The style of a job's state."""
    return _BADGES.get(state, "busy")


@dataclass(frozen=True)
class RunPage:
    """The page of a job. ``version``: of deepvm."""

    job: JobStatus
    version: str = ""

    def render(self, *, nonce: str = "") -> str:
        """The whole page; with a ``nonce`` it is served, and keeps itself up to date."""
        live = bool(nonce)
        frame = PageTemplate(
            beside(pages.__file__, "templates/jobs.css"),
            beside(pages.__file__, "templates/jobs.js"),
            nonce,
            live,
        )
        content = [
            tag("a", "Skip to the job", class_="skip", href="#machines"),
            *self._content(live),
        ]
        return frame.page(f"{visible(self.job.row.name)} - deepvm", content)

    def _content(self, live: bool) -> Iterator[Html]:
        if live:
            home = tag("a", "All jobs", href="/")
            status = tag("span", "connecting ...", id="connection", role="status", class_="badge")
            place = f"/jobs/{self.job.row.name}/events"
            yield tag("nav", home, status, id="live", data_stream=place, data_after=self.last_event)
        parts = self.parts
        yield tag("header", parts["head"], id="part-head")
        yield tag("main", *self._sections(parts))
        yield tag("div", id="tip", hidden=True)
        yield tag("footer", parts["foot"], id="part-foot")

    def _sections(self, parts: Mapping[str, Html]) -> Iterator[Html]:
        def part(name: str) -> Html:
            return tag("div", parts[name], id=f"part-{name}")

        def more(summary: str, name: str) -> Html:
            return tag("details", tag("summary", summary), part(name))

        yield section("time", "Where the time went", part("time"))
        yield section(
            "machines", "Machines", part("machines"), more("Machines as a table", "machine-table")
        )
        yield section("steps", "Steps", part("steps"), more("Steps as a table", "step-table"))
        yield section("money", "Money", part("money"), more("Money as a table", "money-table"))
        yield section("events", "Events", self._filter(), self._events())
        yield section("file", "Job file", part("file"))

    @cached_property
    def parts(self) -> dict[str, Html]:
        """What of the page may change while the job runs, by name; :meth:`event_rows` does, too."""
        job, machines = self.job, list(self.job.world.machines.values())
        document, spec = job.document, job.row.spec
        budget = (spec.get("budget") or {}).get("total_usd")
        total, known = spec.get("steps"), document["steps"] is not None
        unknown = tag("p", f"P{steps_words(document)[1:]}.")
        return {
            "head": joined(*self._head()),
            "time": joined(
                self._breakdown(),
                *(tag("p", s) for s in (*restart_words(document), *slow_parts(document))),
                *self._forecast(),
            ),
            "machines": timeline(machines, self.times, self.trained),
            "machine-table": self._machine_table(),
            "steps": (
                steps_chart(
                    self.times,
                    job.samples,
                    job.events,
                    total if isinstance(total, int) else None,
                    job.without,
                )
                if known
                else unknown
            ),
            "step-table": self._step_table() if known else unknown,
            "money": cost_chart(self.times, job.world, document, budget),
            "money-table": self._money_table(),
            "file": self._file(),
            "foot": tag(
                "p", f"Written by deepvm {self.version} at {utc(job.now_s)}; all times are UTC."
            ),
        }

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

    # --- the head ---------------------------------------------------------------------------------

    def _head(self) -> Iterator[Html]:
        job, document = self.job, self.job.document
        state = str(document["state"])
        badge = tag("span", state, class_=f"badge {badge_of(state)}")
        yield tag("h1", visible(job.row.name), " ", badge)
        if document["why"]:
            yield tag("p", visible(f"{document['why']}"), class_="alarm")
        if job.controller == GONE:
            why = (
                "It has no controller; trainers go on without one. deepvm jobs resume"
                f" {job.row.name} starts another."
            )
            yield tag("p", why, class_="alarm")
        elif job.controller == ELSEWHERE:
            yield tag(
                "p", "Its controller runs elsewhere, or its folder was removed.", class_="quiet"
            )
        failed = document.get("failed_saves", {})
        if failed.get("in_a_row"):
            since = (
                f" since version {document['version']}, the newest that is safe"
                if document["version"]
                else ""
            )
            text = f"{counted(failed['in_a_row'], 'save')} failed{since}: {failed['why']}"
            yield tag("p", visible(text), class_="alarm")
        yield tag("p", self._rented(), class_="quiet")
        yield tag("dl", *(self._card(*card) for card in self._cards()), class_="cards")

    def _rented(self) -> str:
        spec, world = self.job.row.spec, self.job.world
        terms, pool = world.terms, world.pools[0]
        count = f"{terms.most}" if terms.least == terms.most else f"{terms.least} to {terms.most}"
        anchors = f", {counted(terms.anchors, 'anchor')}" if terms.anchors else ""
        what = (
            f"{count} x {pool.instance_type} {pool.market}{anchors}, cloud {spec.get('cloud', '-')}"
        )
        return visible(f"{what}; submitted {utc(self.job.row.created_s)}")

    @staticmethod
    def _card(name: str, value: str, more: str) -> Html:
        return tag("div", tag("dt", name), tag("dd", tag("b", value), tag("span", more)))

    def _cards(self) -> Iterator[tuple[str, str, str]]:
        job, document = self.job, self.job.document
        total = job.row.spec.get("steps")
        step_s = float(job.world.facts.step_s)
        steps, unknown = document["steps"], document.get("progress_unknown", "")
        of = (
            f"of {count(total)}, {steps / total:.0%}"
            if isinstance(total, int) and total and not unknown
            else ""
        )
        speed = f"{1 / step_s:.3g} steps/s" if step_s else ""
        yield "Steps", count(steps), ", ".join(t for t in (unknown, of, speed) if t)
        time = elapsed(float(document["total_s"]))
        without = document.get("downtime_s", 0.0)
        away = f"{elapsed(without)} of it without a controller" if without else ""
        yield (
            "Time",
            time,
            ", ".join(t for t in (counted(document["generations"], "generation"), away) if t),
        )
        cost, on_demand = float(document["cost_usd"]), document["on_demand_cost_usd"]
        beside = visible(unpriced_words(document))
        if on_demand:
            less = f"{1 - cost / on_demand:.0%} less than on demand, {money(on_demand)}"
            beside = less if cost <= on_demand else f"on demand {money(on_demand)}"
        yield "Paid", money(cost), beside
        lost = document["lost_steps"]
        again = (
            f"{lost / max(steps or 0, 1):.1%} of the steps" if lost else "nothing was done twice"
        )
        unsaved = unsaved_words(document)
        if lost or not unsaved:
            yield "Steps lost", count(lost), unknown or again
        if unsaved:
            yield "Steps not saved", count(document["unsaved_steps"]), unsaved
        if restarts := document.get("restarts"):
            causes = ", ".join(
                f"{count} {cause}" for cause, count in restarts["causes"].items() if count
            )
            yield "Restarts", count(restarts["count"]), causes
        notices = (
            f"{document['notices']} with a notice"
            if document["preemptions"]
            else "no machine was taken back"
        )
        yield "Preemptions", count(document["preemptions"]), notices
        reasons = ", ".join(
            f"{count} {reason}" for reason, count in document["saves"].items() if count
        )
        yield "Versions saved", count(sum(document["saves"].values())), reasons or "none yet"

    def _breakdown(self) -> Html:
        known = {
            **self.job.document["breakdown_s"],
            DOWNTIME: self.job.document.get("downtime_s", 0.0),
        }
        causes = _CAUSES | ({} if self.job.document["steps"] is not None else _UNKNOWN_CAUSES)
        unknown = [cause for cause in causes if cause in known and known[cause] is None]
        spent = {
            c: float(known.get(c) or 0.0)
            for c in causes
            if known.get(c) or c not in (DOWNTIME, "hang", *unknown)
        }
        whole = sum(spent.values())
        if not whole:
            return tag("p", "Nothing yet.")
        shown = {
            c: f"{causes[c][0]}: {format_seconds(s, digits=3)}, {s / whole:.1%}"
            for c, s in spent.items()
        }
        bar = stacked(
            [(cause, seconds / whole, shown[cause]) for cause, seconds in spent.items()],
            f"Where the time went: {'; '.join(shown.values())}",
        )
        rows = [
            [
                joined(tag("i", class_=f"key share {cause}", aria_hidden="true"), causes[cause][0]),
                format_seconds(seconds, digits=3),
                f"{seconds / whole:.1%}",
                causes[cause][1],
            ]
            for cause, seconds in spent.items()
        ]
        rows += [[causes[cause][0], "unknown", "unknown", causes[cause][1]] for cause in unknown]
        made = table(
            "All of the time, by what it went into", ["cause", "time", "share", "what it is"], rows
        )
        return joined(bar, wide(made, "Where the time went"))

    def _forecast(self) -> Iterator[Html]:
        """What was to be expected before the job began, beside what came out."""
        document = self.job.document
        if document.get("forecast"):
            yield tag("h3", "Forecast and fact")
            made = table(forecast_said(document), ["", *FORECAST_COLUMNS], forecast_cells(document))
            yield wide(made, "Forecast and fact")
        elif document.get("unforeseen"):
            yield tag("p", visible(unforeseen_said(document)), class_="quiet")

    # --- tables -----------------------------------------------------------------------------------

    def _machine_table(self) -> Html:
        header = [
            "machine",
            "type",
            "zone",
            "market",
            "asked for",
            "ready",
            "notice",
            "end",
            "why",
            "$",
        ]
        rows = [
            [
                visible(m["id"]),
                visible(m["type"]),
                visible(m["zone"]),
                m["market"],
                *(self._moment(m[key]) for key in ("requested", "ready", "notice", "end")),
                m["end_reason"] or "-",
                f"{m['usd']:.4f}",
            ]
            for m in self.job.document["machines"]
        ]
        made = table("Machines; times after the start of the job", header, rows)
        return wide(made, "Machines as a table", tall=len(rows) > 20)

    def _moment(self, text: str | None) -> str:
        if text is None:
            return "-"
        return self.times.elapsed(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())

    def _step_table(self) -> Html:
        samples, fallen = self.job.samples, losses(self.job.samples)
        edge = {loss.at_s for loss in fallen[-_ROWS:]}
        every = max(len(samples) // _ROWS, 1)
        chosen = [
            s for i, s in enumerate(samples) if i % every == 0 or s is samples[-1] or s.at_s in edge
        ]
        lost = {loss.at_s: loss.lost for loss in fallen}
        rows = [
            [
                self.times.elapsed(s.at_s),
                count(s.step),
                f"{s.generation}",
                count(lost.get(s.at_s, 0)),
            ]
            for s in chosen
        ]
        made = table(
            "Steps at some times", ["after", "step", "generation", "steps lost here"], rows
        )
        return wide(made, "Steps as a table", tall=True)

    def _money_table(self) -> Html:
        bends = paid(self.job.world, self.times)
        every = max(len(bends) // _ROWS, 1)
        chosen = [b for i, b in enumerate(bends) if i % every == 0 or b is bends[-1]]
        rows = [[elapsed(b.x_s), f"{b.usd:.4f}", f"{b.hours:.4f}"] for b in chosen]
        made = table(
            "Money where the number of machines changes",
            ["after", "paid, $", "machine hours"],
            rows,
        )
        return wide(made, "Money as a table", tall=True)

    # --- events -----------------------------------------------------------------------------------

    @staticmethod
    def _filter() -> Html:
        options = (
            tag("option", name, value=group) for group, name in {"": "All events", **GROUPS}.items()
        )
        choice = tag("label", "Show ", tag("select", *options, id="group"))
        search = tag("label", "Search ", tag("input", id="search", type="search"))
        return tag(
            "p", choice, search, tag("span", id="matches", role="status"), id="filter", hidden=True
        )

    def _events(self) -> Html:
        head = tag(
            "tr", *(tag("th", name, scope="col") for name in ("after", "time", "what happened"))
        )
        rows = joined(*self.event_rows(0))
        left_out = len(self.job.events) - MOST_EVENTS
        caption = "The newest first" + (
            f"; {left_out} older ones are left out" if left_out > 0 else ""
        )
        body = tag("tbody", rows, id="event-rows", data_most=MOST_EVENTS)
        made = tag("table", tag("caption", caption), tag("thead", head), body, class_="events")
        return wide(made, "Events", tall=True)

    def event_rows(self, after: int) -> Iterator[Html]:
        """Rows of the events with larger numbers than ``after``, the newest first."""
        for event in reversed([e for e in self.job.events[-MOST_EVENTS:] if e.number > after]):
            text = event_line(event)
            if text:
                yield self._event_row(event, text)

    def _event_row(self, event: EventRow, text: str) -> Html:
        group = event_group(event)
        what: list[str] = [tag("span", GROUPS[group], class_=f"badge {group}"), " ", visible(text)]
        lines = event.facts.get("lines")
        if lines and (event.facts.get("code") or event.kind == "failed"):
            printed = "\n".join(visible(str(line)) for line in lines)
            what.append(tag("details", tag("summary", "last lines"), tag("pre", printed)))
        stamp = datetime.fromtimestamp(event.at_s, timezone.utc)
        moment = tag("time", stamp.strftime("%H:%M:%S"), datetime=f"{stamp:%Y-%m-%dT%H:%M:%S}Z")
        cells = (
            tag("th", self.times.elapsed(event.at_s), scope="row"),
            tag("td", moment),
            tag("td", *what),
        )
        return tag("tr", *cells, data_group=group)

    @property
    def last_event(self) -> int:
        """The number of the newest event."""
        return self.job.events[-1].number if self.job.events else 0

    # --- the job file -----------------------------------------------------------------------------

    def _file(self) -> Html:
        text = to_yaml(_shown(self.job.row.spec))
        said = "Values of variables and passwords in URLs are not shown."
        return joined(tag("p", said, class_="quiet"), tag("pre", tag("code", visible(text))))


def _shown(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A job file without what is not set, and without secrets: a page is sent to others."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: plain(v) for k, v in value.items() if v is not None and v not in ({}, [])}
        if isinstance(value, list):
            return [plain(v) for v in value]
        return re.sub(r"(?<=://)[^/@\s]+@", "...@", value) if isinstance(value, str) else value

    found = {**spec, "env": dict.fromkeys(spec.get("env") or {}, "...")}
    shown: dict[str, Any] = plain(found)
    return shown
