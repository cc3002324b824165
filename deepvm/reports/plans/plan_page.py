"""An answer as one page for a browser (``recommend -o html``), by templates/plan_page.html.j2."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.units import format_seconds, format_usd
from deepvm.io.times import format_time
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import Comparison
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.frontier import Frontier, TypeOutcome
from deepvm.reports.pages import render
from deepvm.reports.plans import answer as answers
from deepvm.reports.plans.bills import bill_lines
from deepvm.reports.plans.frontier_chart import FrontierChart
from deepvm.reports.plans.recommendations import other_regions, request_words, sentence
from deepvm.reports.plans.sources import (
    doubts,
    quota_lines,
    refused_lines,
    risk_lines,
    source_lines,
    zone_lines,
)
from deepvm.reports.text import in_short, short

ABOUT_EQUAL = 0.01
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
    """The page of a comparison; it is about the best region.

    Attributes:
        frontier: of the best region's answer. command: the command line that repeats it.
        now: when it is written, UTC. version: of deepvm. assumed: the model is the default.
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
    def trained(self) -> bool:
        """Whether a model is trained."""
        return self.answer.request.training is not None

    def render(self) -> str:
        """The whole page, in ASCII."""
        answer, about = self.answer, self.answer.catalog.provenance
        chart = FrontierChart.of(self.frontier, float(answer.request.budget))
        steps = [
            [f"{format_usd(step.budget)} $/h", *self._cells(step.recommendation, kept=True)]
            for step in self.frontier.steps
        ]
        unit = answer.request.training.workload.units if answer.request.training else "eFLOPS"
        shown: dict[str, Any] = {
            "unit": unit,
            "frontier_header": self._header(f"{unit} less preemptions" if self.trained else unit),
            "steps": steps,
        }
        return render(
            "plan_page.html.j2",
            **shown,
            headline=self._headline(),
            request=list(self._request()),
            budget=_per_hour(answer),
            header=self._header(unit),
            rows=[[label, *self._cells(r)] for label, r in self._rows()],
            regions=other_regions(self.found) if answer else [],
            infeasible=sentence(answer.infeasible) if answer.infeasible else "",
            trained=self.trained,
            less=", less what preemptions cost" if self.trained else "",
            most=f"{self.frontier.most.normalize():f}",
            chart=chart if steps else None,
            types=[self._type(outcome) for outcome in sorted(self.frontier.types, key=_by_gap)],
            limits=self._limits(),
            doubts=self._doubts(),
            sources=self._sources(),
            origins=[
                [
                    o.signal,
                    o.kind,
                    format_time(o.observed_at),
                    age(o.observed_at, self.now, o.dated),
                    o.source,
                ]
                for o in about.origins
            ],
            source=about.source,
            command=self.command,
            version=self.version,
            now=format_time(self.now),
            data=self._data(chart, unit, shown),
        )

    def _headline(self) -> str:
        best = next(iter(self.answer), None)
        if best is None:
            return f"Nothing is feasible for {_per_hour(self.answer)}"
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

    def _header(self, speed: str) -> list[str]:
        """Names of :meth:`_cells`."""
        names = ["cluster", "$/h", f"{speed} (80 % interval)" if self.trained else speed]
        if self.answer.request.work is not None:
            names += ["time", "bill"]
        if self.trained:
            names.append("lost to preemption")
        return [*names, "figures"]

    def _cells(self, r: Recommendation, *, kept: bool = False) -> list[str]:
        """What a plan does; ``kept``: its speed is less what preemptions cost."""
        cells = [answers.cluster_words(r.cluster), format_usd(r.usd_per_hour), _speed(r, kept=kept)]
        if self.answer.request.work is not None:
            cells += _time_and_bill(r)
        if self.trained:
            cells.append(answers.lost_words(r))
        return [*cells, _source(r, self.answer.catalog)]

    def _type(self, outcome: TypeOutcome) -> dict[str, Any]:
        """A GPU type, and its best cluster or why it has none."""
        row: dict[str, Any] = {"name": outcome.instance_type, "gpu": outcome.gpu, "reason": ""}
        best, rejected = outcome.best, outcome.rejection
        if best is not None:
            cells = [answers.cluster_words(best.cluster), format_usd(best.usd_per_hour)]
            cells.append(_speed(best, kept=True))
            return row | {"why": self._gap(best, outcome.gap), "cells": cells}
        if rejected is not None:
            row |= {"reason": rejected.reason, "why": rejected.detail}
        return {"why": "in no cluster"} | row | {"cells": ["-", "-", "-"]}

    def _gap(self, best: Recommendation, gap: float | None) -> str:
        """How far a type's best cluster is from the first choice."""
        first = self.answer[0] if self.answer else None
        if first is None or gap is None:
            return "not compared"
        if str(best.cluster) == str(first.cluster):
            return "it is the answer"
        price = float(best.counted_usd_per_hour / first.counted_usd_per_hour)
        request = self.answer.request
        worse = _WORSE[request.objective] if request.policy is PolicyName.DEEPVM else "slower"
        if abs(gap) < ABOUT_EQUAL:
            text = f"about as good, for {price:.2g} times the price"
        elif gap < 0:
            text = f"{-gap:.0%} better, for {price:.2g} times the price"
        else:
            text = f"{gap:.1%} {worse}" if gap < 0.9995 else f"more than 99.9% {worse}"
        if best.prediction is not None and best.kept_throughput.agrees_with(first.kept_throughput):
            text += "; their intervals cannot tell them apart"
        return text

    def _limits(self) -> list[str]:
        answer = self.answer
        if not answer:
            lines = [f"Limited by {answer.infeasible.constraint}."] if answer.infeasible else []
            if answer.cheapest is not None:
                price = format_usd(answer.cheapest.usd_per_hour)
                lines.append(f"Cheapest at any budget: {answer.cheapest.cluster}, {price} $/h.")
            return lines
        lines = [
            *answers.limits(answer, self._rows()),
            *(f"{b.reason}." for b in answer[0].binding),
        ]
        if answer.nearly is not None:
            share = answer.nearly.kept_throughput.value / answer[0].kept_throughput.value
            plan = answers.cluster_words(answer.nearly.cluster)
            price = format_usd(answer.nearly.usd_per_hour)
            lines.append(f"Less money: {plan} for {price} $/h has {share:.0%} of the speed.")
        return [*lines, *quota_lines(answer, self.now), *bill_lines(answer[0])]

    def _doubts(self) -> list[str]:
        if not self.answer:
            return list(self.answer.catalog.provenance.doubts)
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
        lines += answers.measurement_lines(self.answer) if self.trained else []
        lines += [d for d in doubts(self.answer) if d not in lines]
        lines += risk_lines(self.answer[0], self.answer.catalog, known=known)
        return [*lines, *([self.answer.doubt] if self.answer.doubt else [])]

    def _sources(self) -> list[str]:
        catalog = self.answer.catalog
        notes = catalog.provenance.notes
        lines = [*source_lines(catalog, self.now), *refused_lines(catalog), *notes]
        return [*lines, *zone_lines(self.answer[0], catalog)] if self.answer else lines

    def _data(self, chart: FrontierChart, unit: str, shown: dict[str, Any]) -> dict[str, Any]:
        """What the slider and the tooltips show, as texts."""
        steps = [
            {
                "from": float(step.budget),
                "usd": float(step.recommendation.counted_usd_per_hour),
                "speed": step.recommendation.kept_throughput.value,
                "cells": row[1:],
            }
            for step, row in zip(self.frontier.steps, shown["steps"], strict=True)
        ]
        return {
            "budget": chart.budget,
            "unit": unit,
            "x": [chart.x.most, chart.x.start, chart.x.end],
            "y": [chart.y.most, chart.y.start, chart.y.end],
            "header": shown["frontier_header"],
            "steps": steps,
            "types": list(self.frontier.machines.types),
            "machines": [
                [dot.type_index, dot.spot, dot.on_demand, dot.usd, dot.speed]
                for dot in (*chart.machines, *chart.far)
            ],
        }


def _per_hour(answer: Recommendations) -> str:
    return f"{answer.request.budget.normalize():f} $/h"


def _speed(r: Recommendation, *, kept: bool) -> str:
    if r.prediction is None:
        return short(r.throughput)
    return in_short(r.kept_throughput if kept else r.prediction.throughput)


def _time_and_bill(r: Recommendation) -> Sequence[str]:
    if r.outlook is None or r.outlook.total_s == float("inf"):
        return "never", "-"
    return format_seconds(r.outlook.total_s, digits=3), answers.bill_words(r.outlook)


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
