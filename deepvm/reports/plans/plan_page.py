"""An answer as one page for a browser: no network, no scripts needed, everything escaped (``recommend -o html``)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.interval import Interval
from deepvm.core.units import counted, format_seconds, format_usd
from deepvm.io.times import format_time
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.frontier import Frontier, TypeOutcome
from deepvm.reports.markup import Html, data_block, joined, table, tag
from deepvm.reports.page_frame import PageTemplate, beside
from deepvm.reports.performance.predictions import in_short, short
from deepvm.reports.plans import answer as answers
from deepvm.reports.plans.bills import bill_lines
from deepvm.reports.plans.frontier_chart import Chart
from deepvm.reports.plans.page_parts import badged, legend, listing, section, slider, wide
from deepvm.reports.plans.recommendations import other_regions, request_words, sentence
from deepvm.reports.plans.sources import (
    doubts,
    quota_lines,
    refused_lines,
    risk_lines,
    source_lines,
    zone_lines,
)

_SAME = 0.01
"""Within this share two speeds are about the same, as the ranking has it."""
_WORSE = {
    Objective.THROUGHPUT: "slower",
    Objective.FLOPP: "lower Z",
    Objective.COST_PER_WORK: "dearer for the same work",
    Objective.MAKESPAN: "less of the job in the same time",
    Objective.TOTAL_COST: "higher bill",
}


@dataclass(frozen=True)
class PlanPage:
    """What the page shows.

    Attributes:
        found: the answers, the best region first; the page is about that one. frontier: of the same
            answer.
        command: the command line that repeats it. now: when it is written, UTC. version: of deepvm.
        assumed: whether the model is not the user's own choice.
    """

    found: Comparison
    frontier: Frontier
    command: str
    now: datetime
    version: str = ""
    assumed: bool = False

    @property
    def answer(self) -> Recommendations:
        """The answer of the best region."""
        return self.found.answers[0]

    @property
    def unit(self) -> str:
        """What a speed counts: the workload's units a second, or eFLOPS."""
        training = self.answer.request.training
        return "eFLOPS" if training is None else training.workload.units

    def render(self) -> str:
        """The whole page, in ASCII."""
        less = ", less what preemptions cost" if self._has_model else ""
        chart = Chart.of(self.frontier, self.answer.request.budget, f"{self.unit}{less}")
        frame = PageTemplate(beside(__file__, "plan_page.css"), beside(__file__, "plan_page.js"))
        content = [
            tag("a", "Skip to the answer", class_="skip", href="#answer"),
            tag(
                "header", tag("h1", self._headline()), *(tag("p", line) for line in self._request())
            ),
            tag("main", *self._sections(chart)),
            tag(
                "footer", tag("p", f"Written by deepvm {self.version} at {format_time(self.now)}.")
            ),
            tag("script", data_block(self._data(chart)), id="data", type="application/json"),
        ]
        return frame.page(f"{self._headline()} - deepvm", content)

    def _sections(self, chart: Chart) -> Iterator[Html]:
        yield section("answer", "The answer", *self._answer())
        if self.frontier.steps:
            yield section("frontier", "Price against speed", *self._frontier(chart))
        yield section("types", "Why not another GPU type?", *self._types())
        yield section("limits", "Limits", listing(self._limits()))
        yield section("doubts", "Doubts", listing(self._doubts()))
        yield section("sources", "Where the prices come from", *self._sources())
        yield section("repeat", "Ask again", tag("pre", tag("code", self.command)))

    def _headline(self) -> str:
        best = next(iter(self.answer), None)
        if best is None:
            return f"Nothing is feasible for {self.answer.request.budget.normalize():f} $/h"
        return f"{answers.cluster_words(best.cluster)}, {best.usd_per_hour:.2f} $/h"

    def _request(self) -> Iterator[str]:
        training = self.answer.request.training
        first = next(iter(self.answer), None)
        if training is not None and first is not None:
            yield f"{answers.title(training, [first], assumed=self.assumed)}."
        elif training is not None:
            assumed = " (assumed; --model names yours)" if self.assumed else ""
            yield f"{training.workload.model.name}{assumed}, {training.workload.method.value}."
        yield f"{request_words(self.answer)}. Catalog {self.answer.catalog.name}."

    def _rows(self) -> list[tuple[str, Recommendation]]:
        return answers.rows_of(self.answer) if self.answer else []

    def _answer(self) -> Iterator[Html]:
        rows = self._rows()
        if not rows:
            why = self.answer.infeasible
            yield tag("p", sentence(why) if why else "Nothing is feasible.", class_="alarm")
            return
        header, cells = (
            ["plan", *self._header()],
            [[label, *badged(self._cells(r))] for label, r in rows],
        )
        yield wide(
            table(f"Plans for {self._budget()} and what they do", header, cells, class_="answer"),
            "The answer",
        )
        regions = other_regions(self.found)
        if regions:
            yield listing(regions)

    def _budget(self) -> str:
        return f"{self.answer.request.budget.normalize():f} $/h"

    @property
    def _has_job(self) -> bool:
        return self.answer.request.work is not None

    @property
    def _has_model(self) -> bool:
        return self.answer.request.training is not None

    def _header(self, *, less: bool = False) -> list[str]:
        """Names of :meth:`_cells`."""
        speed = (
            f"{self.unit}{' less preemptions' if less else ''} (80 % interval)"
            if self._has_model
            else self.unit
        )
        names = ["cluster", "$/h", speed]
        names += ["time", "bill"] if self._has_job else []
        return [*names, *(["lost to preemption"] if self._has_model else []), "figures"]

    def _cells(self, r: Recommendation, *, less: bool = False) -> list[str]:
        """What a plan does; ``less``: its speed is less what preemptions cost."""
        predicted, outlook = r.prediction, r.outlook
        speed = r.kept_throughput if less or predicted is None else predicted.throughput
        value = in_short(speed) if predicted else short(speed.value)
        cells = [answers.cluster_words(r.cluster), format_usd(r.usd_per_hour), value]
        if self._has_job:
            ends = outlook is not None and outlook.total_s != float("inf")
            cells += (
                [format_seconds(outlook.total_s, digits=3), answers.bill_words(outlook)]
                if outlook and ends
                else ["never", "-"]
            )
        if self._has_model:
            cells.append(
                answers.lost_words(predicted.kept) if predicted and r.cluster.spot_count else "-"
            )
        return [*cells, _source(r, self.answer.catalog)]

    def _frontier(self, chart: Chart) -> Iterator[Html]:
        doubt, less = (
            (", with its 80 % interval", ", less what preemptions usually cost")
            if self._has_model
            else ("", "")
        )
        said = (
            f"The best plan of every budget up to {self.frontier.most.normalize():f} $/h{doubt};"
            " each dot is a cluster "
        )
        yield tag("p", f"{said}that could be rented. Speed is in {self.unit}{less}.")
        yield tag(
            "figure",
            wide(chart.svg(), "Price against speed"),
            legend(intervals=self._has_model),
            tag("div", id="tip", hidden=True),
        )
        yield slider(chart.x.most, float(self.answer.request.budget))
        rows = [
            [f"{format_usd(s.budget)} $/h", *badged(self._cells(s.recommendation, less=True))]
            for s in self.frontier.steps
        ]
        header = ["from a budget of", *self._header(less=True)]
        yield wide(
            table("The best plan of each budget", header, rows),
            "The best plan of each budget",
            tall=True,
        )

    def _types(self) -> Iterator[Html]:
        label = tag(
            "label", "Search types, GPUs and reasons ", tag("input", id="search", type="search")
        )
        yield tag("p", label, tag("span", id="matches", role="status"), id="searching", hidden=True)
        rows = [
            [t.instance_type, t.gpu, *self._fate(t)]
            for t in sorted(self.frontier.types, key=_by_gap)
        ]
        header = [
            "type",
            "GPUs",
            "why not",
            "its best cluster",
            "$/h",
            f"{self.unit}{' less preemptions' if self._has_model else ''}",
        ]
        caption = f"{counted(len(rows), 'GPU type')} within {self._budget()}"
        yield wide(table(caption, header, rows, id="fates"), "Why not another GPU type?", tall=True)

    def _fate(self, outcome: TypeOutcome) -> list[str]:
        best, rejected = outcome.best, outcome.rejection
        if best is None:
            why = (
                joined(tag("span", rejected.reason, class_="badge reason"), f" {rejected.detail}")
                if rejected
                else "in no cluster"
            )
            return [why, "-", "-", "-"]
        speed = best.kept_throughput
        value = in_short(speed) if best.prediction else short(speed.value)
        return [
            self._gap(best, outcome.gap),
            answers.cluster_words(best.cluster),
            format_usd(best.usd_per_hour),
            value,
        ]

    def _gap(self, best: Recommendation, gap: float | None) -> str:
        """How far a type's best cluster is from the first choice."""
        first = self.answer[0] if self.answer else None
        if first is None or gap is None:
            return "not compared"
        if str(best.cluster) == str(first.cluster):
            return "it is the answer"
        price = float(best.counted_usd_per_hour / first.counted_usd_per_hour)
        what = (
            _WORSE[self.answer.request.objective]
            if self.answer.request.policy is PolicyName.DEEPVM
            else "slower"
        )
        if abs(gap) < _SAME:
            text = f"about as good, for {price:.2g} times the price"
        elif gap < 0:
            text = f"{-gap:.0%} better, for {price:.2g} times the price"
        else:
            text = f"{gap:.1%} {what}" if gap < 0.9995 else f"more than 99.9% {what}"
        if best.prediction is not None and _within(best.kept_throughput, first.kept_throughput):
            text += "; their intervals cannot tell them apart"
        return text

    def _limits(self) -> list[str]:
        if not self.answer:
            why, cheapest = self.answer.infeasible, self.answer.cheapest
            named = (
                f"Cheapest at any budget: {cheapest.cluster}, {format_usd(cheapest.usd_per_hour)}"
                " $/h."
                if cheapest
                else ""
            )
            return [
                text for text in (f"Limited by {why.constraint}." if why else "", named) if text
            ]
        lines = [
            *answers.limits(self.answer, self._rows()),
            *(f"{b.reason}." for b in self.answer[0].binding),
        ]
        nearly = self.answer.nearly
        if nearly is not None:
            share = nearly.kept_throughput.value / self.answer[0].kept_throughput.value
            words = (
                f"{answers.cluster_words(nearly.cluster)} for {format_usd(nearly.usd_per_hour)} $/h"
            )
            lines.append(f"Less money: {words} has {share:.0%} of the speed.")
        return [*lines, *quota_lines(self.answer, self.now), *bill_lines(self.answer[0])]

    def _doubts(self) -> list[str]:
        if not self.answer:
            return list(self.answer.catalog.provenance.doubts) or ["None."]
        request = self.answer.request
        known = request.life_s is not None or (
            request.work is not None and request.work.mttp_s is not None
        )
        said = [
            *answers.simulated_line(self.answer[0]),
            *answers.deadline_line(self.answer),
            *answers.bill_line(self.answer),
            *answers.few_steps(self.answer),
            *answers.apart(self.answer),
            *answers.bad_time(self._rows()),
            *answers.warnings_of(self.answer, self.now),
        ]
        lines = [
            re.sub("^[!~] |; what is worth measuring: --why$", "", line)
            for line in said
            if "-> --why" not in line
        ]
        lines += answers.measurement_lines(self.answer) if self._has_model else []
        lines += [d for d in doubts(self.answer) if d not in lines]
        lines += risk_lines(self.answer[0], self.answer.catalog, known=known)
        return [*lines, *([self.answer.doubt] if self.answer.doubt else [])] or ["None."]

    def _sources(self) -> Iterator[Html]:
        catalog = self.answer.catalog
        about = catalog.provenance
        lines = [*source_lines(catalog, self.now), *refused_lines(catalog), *about.notes]
        if self.answer:
            lines += zone_lines(self.answer[0], catalog)
        yield listing(lines)
        rows = [
            [
                o.signal,
                o.kind,
                format_time(o.observed_at),
                age(o.observed_at, self.now, o.dated),
                o.source,
            ]
            for o in about.origins
        ]
        if rows:
            header = ["figures", "kind", "true at", "age", "source"]
            yield wide(table("Sources", header, rows, class_="sources"), "Sources")
        elif about.source:
            yield tag("p", about.source)

    def _data(self, chart: Chart) -> dict[str, Any]:
        """What the slider and the tooltips show, as texts."""
        return {
            "budget": float(self.answer.request.budget),
            "unit": self.unit,
            "x": chart.x.as_document(),
            "y": chart.y.as_document(),
            "header": self._header(less=True),
            "steps": [
                {
                    "from": float(s.budget),
                    "usd": float(s.recommendation.counted_usd_per_hour),
                    "speed": s.recommendation.kept_throughput.value,
                    "cells": self._cells(s.recommendation, less=True),
                }
                for s in self.frontier.steps
            ],
            "types": list(self.frontier.machines.types),
            "machines": chart.machines_document(),
        }


def _within(one: Interval, other: Interval) -> bool:
    """Whether each value is in the other's interval."""
    return one.low <= other.value <= one.high and other.low <= one.value <= other.high


def _by_gap(outcome: TypeOutcome) -> tuple[bool, float, str]:
    """The best types first, then those that are in no cluster, by name."""
    return (outcome.best is None, outcome.gap or 0.0, outcome.instance_type)


def _source(r: Recommendation, catalog: Catalog) -> str:
    """Where a speed comes from, in a word."""
    if r.prediction is not None:
        return r.prediction.source
    if r.estimated:
        return "estimated"
    own = (m.subject for m in catalog.provenance.measured if m.kind == "eflops")
    return "measured" if r.cluster.gpu.name in own else "published"
