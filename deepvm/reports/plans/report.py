"""Reports on stdout: ranked clusters with what their figures rest on, and "why not this type?"."""

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any

from deepvm.core import lifetimes
from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.core.spelling import listed
from deepvm.planner import infeasible
from deepvm.planner.ranking import MAX_BILL_SPREAD
from deepvm.reports.plans import sources, words
from deepvm.reports.plans.plan_view import PlanView, by_gpu
from deepvm.reports.text import print_text, text_blocks

if TYPE_CHECKING:
    from deepvm.planner.explain import WhyNot

_WORDS: dict[str, Any] = {
    "w": words,
    "src": sources,
    "infeasible": infeasible,
    "lifetimes": lifetimes,
    "BANDS": INTERRUPTION_BANDS,
    "MAX_BILL_SPREAD": MAX_BILL_SPREAD,
    "inf": inf,
    "by_gpu": by_gpu,
    "listed": listed,
}


def print_report(
    view: PlanView, why: "WhyNot | None" = None, *, wide: bool = False, all_types: bool = False
) -> None:
    """Table, reasons, what could go wrong, what else, and sources, for a person."""
    ranked = view.found.ranked
    several = len(view.found.answers) > 1
    print_text(
        "plan_report",
        **_data(view),
        ranked=[placed.recommendation for placed in ranked],
        places=[view.found.place(p.answer.catalog) for p in ranked] if several else [],
        wide=wide,
        all=all_types,
        why=why,
        sources=[],
    )


def print_why(why: "WhyNot", now: datetime) -> None:
    """The answer to "why not this type?", and where the prices come from."""
    print_text(
        "explain",
        **_WORDS,
        why=why,
        places=[],
        wide=False,
        sources=sources.source_lines(why.catalog, now),
    )


def sentences(view: PlanView, *subjects: str) -> list[str]:
    """The sentences of plan_report.txt.j2 on some subjects."""
    return text_blocks("plan_report", subjects, **_data(view))


def _data(view: PlanView) -> dict[str, Any]:
    answer = view.answer
    return {
        **_WORDS,
        "view": view,
        "answer": answer,
        "first": answer[0] if answer else None,
        "catalog": answer.catalog,
        "workload": view.workload,
    }
