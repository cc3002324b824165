"""An answer as one page for a browser (``recommend -o html``), by templates/plan_page.html.j2."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from deepvm.catalog.signals.signal import age
from deepvm.core.cluster.provenance import Origin
from deepvm.core.units import format_usd
from deepvm.io.times import format_time
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.frontier import TypeOutcome
from deepvm.reports.pages import render
from deepvm.reports.plans import words
from deepvm.reports.plans.frontier_chart import FrontierChart
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.reports.plans.sources import source_lines
from deepvm.reports.text import in_short, short

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
    answer = view.answer
    source = view.catalog.provenance
    frontier = view.answer.frontier
    request = answer.request
    budget = f"{words.plain_usd(answer.request.budget)} $/h"
    chart = FrontierChart.of(frontier, float(request.budget))
    headline = f"Nothing is feasible for {budget}"
    if answer:
        headline = f"{words.cluster_words(view.first.cluster)}, {view.first.usd_per_hour:.2f} $/h"
    deepvm = request.policy is PolicyName.DEEPVM
    return render(
        "plan_page.html.j2",
        view=view,
        answer=answer,
        workload=view.workload,
        frontier=frontier,
        chart=chart,
        w=words,
        format_usd=format_usd,
        in_short=in_short,
        short=short,
        headline=headline,
        request=sentences(view, "request")[0],
        budget=budget,
        measured={m.subject for m in source.measured if m.kind == "eflops"},
        worse=_WORSE[request.objective] if deepvm else "slower",
        regions=sentences(view, "regions") if answer else [],
        steps=[(words.exact_usd(step.budget), step.recommendation) for step in frontier.steps],
        types=sorted(frontier.types, key=_by_gap),
        limits=_limits(view),
        doubts=_doubts(view),
        sources=_sources(view),
        origins=[_origin(origin, view.now) for origin in source.origins],
        command=command,
        version=version,
        now=format_time(view.now),
        data=_data(view, chart),
    )


def _origin(origin: Origin, now: datetime) -> list[str]:
    how_old = age(origin.observed_at, now, origin.dated)
    return [origin.signal, origin.kind, format_time(origin.observed_at), how_old, origin.source]


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


def _data(view: PlanView, chart: FrontierChart) -> dict[str, Any]:
    """What the slider and the tooltips show besides the table of steps."""
    frontier = view.answer.frontier
    steps = [
        {
            "from": float(step.budget),
            "usd": float(step.recommendation.counted_usd_per_hour),
            "speed": step.recommendation.kept_throughput.value,
        }
        for step in frontier.steps
    ]
    return {
        "budget": chart.budget,
        "unit": view.workload.units if view.workload else "eFLOPS",
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
