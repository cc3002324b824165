"""An answer as one page for a browser (``recommend -o html``), by templates/plan_page.html.j2."""

from __future__ import annotations

from functools import partial

from deepvm.catalog.signals.signal import age
from deepvm.core.units import format_short, format_time, format_usd
from deepvm.planner.search.frontier import TypeOutcome
from deepvm.reports.pages import render
from deepvm.reports.plans import words
from deepvm.reports.plans.frontier_chart import FrontierChart
from deepvm.reports.plans.plan_view import PlanView
from deepvm.reports.plans.report import sentences
from deepvm.reports.plans.sources import doubts, source_lines


def plan_page(view: PlanView, command: str, version: str = "") -> str:
    """The whole page, in ASCII; it is about the best region.

    ``command``: the command line that repeats it. ``version``: of deepvm.
    """
    answer = view.answer
    return render(
        "plan_page.html.j2",
        view=view,
        answer=answer,
        workload=view.workload,
        frontier=answer.frontier,
        chart=FrontierChart.of(answer.frontier, float(answer.request.budget)),
        all_doubts=doubts(answer),
        w=words,
        age=age,
        format_usd=format_usd,
        say=partial(sentences, view),
        short=format_short,
        sources=source_lines(answer.catalog, view.now),
        time=format_time,
        types=sorted(answer.frontier.types, key=_by_gap),
        command=command,
        version=version,
    )


def _by_gap(outcome: TypeOutcome) -> tuple[bool, float, str]:
    """The best types first, then those that are in no cluster, by name."""
    return (outcome.best is None, outcome.gap or 0.0, outcome.instance_type)
