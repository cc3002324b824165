"""An answer as one page for a browser (``recommend -o html``), by templates/plan_page.html.j2."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.provenance import Origin
from deepvm.core.units import format_usd
from deepvm.io.times import format_time
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.frontier import Frontier, TypeOutcome
from deepvm.reports.pages import render
from deepvm.reports.plans import words
from deepvm.reports.plans.frontier_chart import FrontierChart
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.reports.plans.sources import source_lines
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


def plan_page(view: PlanView, command: str, version: str = "") -> str:
    """The whole page, in ASCII; it is about the best region.

    ``command``: the command line that repeats it. ``version``: of deepvm.
    """
    answer, about, frontier = view.answer, view.catalog.provenance, view.answer.frontier
    unit = view.workload.units if view.workload else "eFLOPS"
    chart = FrontierChart.of(frontier, float(answer.request.budget))
    steps = [
        [words.exact_usd(step.budget), *_cells(view, step.recommendation, kept=True)]
        for step in frontier.steps
    ]
    frontier_header = _header(view, f"{unit} less preemptions" if view.workload else unit)
    return render(
        "plan_page.html.j2",
        headline=_headline(answer),
        request=_request(view),
        budget=_budget(answer),
        unit=unit,
        header=_header(view, unit),
        rows=[[label, *_cells(view, r)] for label, r in view.rows],
        regions=sentences(view, "regions") if answer else [],
        infeasible=answer.infeasible.sentence if answer.infeasible else "",
        trained=view.workload is not None,
        less=", less what preemptions cost" if view.workload else "",
        most=words.plain_usd(frontier.most),
        chart=chart if steps else None,
        frontier_header=frontier_header,
        steps=steps,
        types=[_type(view, outcome) for outcome in sorted(frontier.types, key=_by_gap)],
        limits=_limits(view),
        doubts=_doubts(view),
        sources=_sources(view),
        origins=[_origin(origin, view.now) for origin in about.origins],
        source=about.source,
        command=command,
        version=version,
        now=format_time(view.now),
        data=_data(frontier, chart, [row[1:] for row in steps])
        | {"unit": unit, "header": frontier_header},
    )


def _origin(origin: Origin, now: datetime) -> list[str]:
    how_old = age(origin.observed_at, now, origin.dated)
    return [origin.signal, origin.kind, format_time(origin.observed_at), how_old, origin.source]


def _headline(answer: Recommendations) -> str:
    if not answer:
        return f"Nothing is feasible for {_budget(answer)}"
    return f"{words.cluster_words(answer[0].cluster)}, {answer[0].usd_per_hour:.2f} $/h"


def _request(view: PlanView) -> list[str]:
    (request,) = sentences(view, "request")
    asked = f"{request} Catalog {view.catalog.name}."
    return [f"{view.title}.", asked] if view.workload else [asked]


def _budget(answer: Recommendations) -> str:
    return f"{words.plain_usd(answer.request.budget)} $/h"


def _header(view: PlanView, speed: str) -> list[str]:
    """Names of :func:`_cells`."""
    names = ["cluster", "$/h", f"{speed} (80 % interval)" if view.workload else speed]
    if view.answer.request.work is not None:
        names += ["time", "bill"]
    if view.workload is not None:
        names.append("lost to preemption")
    return [*names, "figures"]


def _cells(view: PlanView, r: Recommendation, *, kept: bool = False) -> list[str]:
    """What a plan does; ``kept``: its speed is less what preemptions cost."""
    cells = [words.cluster_words(r.cluster), format_usd(r.usd_per_hour), _speed(r, kept=kept)]
    if view.answer.request.work is not None:
        cells += words.time_and_bill(r.outlook)
    if view.workload is not None:
        cells.append(words.lost_words(r))
    return [*cells, _source(r, view.catalog)]


def _speed(r: Recommendation, *, kept: bool) -> str:
    if r.prediction is None:
        return short(r.throughput)
    return in_short(r.kept_throughput if kept else r.prediction.throughput)


def _type(view: PlanView, outcome: TypeOutcome) -> dict[str, Any]:
    """A GPU type, and its best cluster or why it has none."""
    row = {"name": outcome.instance_type, "gpu": outcome.gpu, "reason": "", "why": "in no cluster"}
    best, rejected = outcome.best, outcome.rejection
    if best is not None:
        cells = [words.cluster_words(best.cluster), format_usd(best.usd_per_hour)]
        why = _gap(view.answer, best, outcome.gap)
        return row | {"why": why, "cells": [*cells, _speed(best, kept=True)]}
    if rejected is not None:
        row |= {"reason": rejected.reason, "why": rejected.detail}
    return row | {"cells": ["-", "-", "-"]}


def _gap(answer: Recommendations, best: Recommendation, gap: float | None) -> str:
    """How far a type's best cluster is from the first choice."""
    if not answer or gap is None:
        return "not compared"
    first, request = answer[0], answer.request
    if str(best.cluster) == str(first.cluster):
        return "it is the answer"
    price = float(best.counted_usd_per_hour / first.counted_usd_per_hour)
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


def _limits(view: PlanView) -> list[str]:
    answer = view.answer
    if answer:
        return [
            *(note.text for note in view.about("limits")),
            *sentences(view, "limits", "others", "quotas", "bill"),
        ]
    lines = [f"Limited by {answer.infeasible.constraint}."] if answer.infeasible else []
    if answer.cheapest is not None:
        price = words.exact_usd(answer.cheapest.usd_per_hour)
        lines.append(f"Cheapest at any budget: {answer.cheapest.cluster}, {price}.")
    return lines


def _doubts(view: PlanView) -> list[str]:
    if not view.answer:
        return list(view.catalog.provenance.doubts)
    hidden = ("limits", "bill", "reserved", "more")
    notes = [note for note in view.notes if note.kind not in hidden]
    lines = [note.text if "--why" in note.action else note.advice for note in notes]
    lines += sentences(view, "measure")
    lines += [doubt for doubt in view.doubts if doubt not in lines]
    return lines + sentences(view, "risk")


def _sources(view: PlanView) -> list[str]:
    lines = [*source_lines(view.catalog, view.now), *sentences(view, "refused")]
    lines += view.catalog.provenance.notes
    return lines + sentences(view, "zone") if view.answer else lines


def _data(frontier: Frontier, chart: FrontierChart, cells: list[list[str]]) -> dict[str, Any]:
    """What the slider and the tooltips show."""
    steps = [
        {
            "from": float(step.budget),
            "usd": float(step.recommendation.counted_usd_per_hour),
            "speed": step.recommendation.kept_throughput.value,
            "cells": row,
        }
        for step, row in zip(frontier.steps, cells, strict=True)
    ]
    return {
        "budget": chart.budget,
        "x": [chart.x.most, chart.x.start, chart.x.end],
        "y": [chart.y.most, chart.y.start, chart.y.end],
        "steps": steps,
        "types": list(frontier.machines.types),
        "machines": [
            [dot.type_index, dot.spot, dot.on_demand, dot.usd, dot.speed]
            for dot in (*chart.machines, *chart.far)
        ],
    }


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
