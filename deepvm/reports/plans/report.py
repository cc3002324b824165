"""Reports on stdout: ranked clusters with what their figures rest on, and "why not this type?"."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any

from deepvm.core.cluster.instances import INTERRUPTION_BANDS
from deepvm.core.lifetimes import BAND_SHARES, history_words, hits
from deepvm.core.spelling import listed
from deepvm.core.units import format_usd
from deepvm.planner.infeasible import ALLOWED_BY, BY_NAME
from deepvm.reports.plans import words
from deepvm.reports.plans.measuring import measure_command
from deepvm.reports.plans.plan_view import PlanView, by_gpu
from deepvm.reports.plans.sources import (
    doubts,
    known_age,
    quota_needs,
    source_lines,
    speedup_of_one,
)
from deepvm.reports.text import print_text, text_blocks

if TYPE_CHECKING:
    from deepvm.planner.explain import WhyNot

_WORDS: dict[str, Any] = {
    "w": words,
    "ALLOWED_BY": ALLOWED_BY,
    "BANDS": INTERRUPTION_BANDS,
    "BY_NAME": BY_NAME,
    "BAND_SHARES": BAND_SHARES,
    "format_usd": format_usd,
    "history_words": history_words,
    "hits": hits,
    "inf": inf,
    "by_gpu": by_gpu,
    "doubts_of": doubts,
    "known_age": known_age,
    "listed": listed,
    "measure_command": measure_command,
    "quota_needs": quota_needs,
    "speedup_of_one": speedup_of_one,
}


def print_report(view: PlanView, why: WhyNot | None = None, *, wide: bool = False) -> None:
    """Table, reasons, alternatives and sources, for a person."""
    ranked = view.found.ranked
    several = len(view.found.answers) > 1
    print_text(
        "plan_report",
        **_data(view),
        ranked=[placed.recommendation for placed in ranked],
        places=[view.found.place(p.answer.catalog) for p in ranked] if several else [],
        wide=wide,
        units="",
        why=why,
        best=why and why.best,
        sources=[],
    )


def print_why(why: WhyNot, now: datetime) -> None:
    """The answer to "why not this type?", and where the prices come from."""
    print_text(
        "explain",
        **_WORDS,
        why=why,
        best=why.best,
        places=[],
        wide=False,
        known=False,
        sources=source_lines(why.catalog, now),
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
        "known": False,
    }
