"""What a job has cost, what it would have cost on demand, and what was wasted, by cause."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepvm.core.spelling import joined
from deepvm.core.units import format_seconds
from deepvm.jobs.history.downtime import DOWNTIME
from deepvm.reports.tables import Column, print_lines, print_table

_WORDS = {
    "compute": "steps done once",
    "recompute": "steps done again",
    "save": "saving versions",
    "allocation": "waiting for machines",
    "preparation": "loading",
    "hang": "hung trainers",
    "downtime": "no controller",
    "release": "until all were gone",
}


def print_money(document: Mapping[str, Any]) -> None:
    """As a table; nothing where nothing was paid."""
    usd = {DOWNTIME: 0.0, **document["spent_usd"]}
    seconds = {**document["breakdown_s"], DOWNTIME: document.get("downtime_s", 0.0)}
    compute = {"compute": "training, steps unknown"} if document["steps"] is None else {}
    paid = document["cost_usd"]
    if not paid:
        return
    print_lines(["", *_compared(document)])
    rows = []
    for cause, words in (_WORDS | compute).items():
        if cause in usd and usd[cause] is None:
            rows.append([words, "unknown", "unknown", ""])
        elif usd.get(cause) or seconds.get(cause):
            time = "" if cause not in seconds else format_seconds(seconds[cause], digits=3)
            rows.append([words, time, f"{usd[cause]:.4f}", f"{100 * usd[cause] / paid:.1f} %"])
    print_table([Column(""), *(Column(name, "right") for name in ("time", "$", ""))], rows)


def _compared(document: Mapping[str, Any]) -> Iterator[str]:
    """Against on-demand VMs: the same machines, and the same work, which needs fewer of them."""
    paid = document["cost_usd"]
    for key, what in (
        ("on_demand_cost_usd", "the same machines on demand"),
        ("same_work_on_demand_usd", "the same steps on demand, without preemptions"),
    ):
        if other := document.get(key):
            share = 100 * (1 - paid / other)
            verdict = f"{share:.0f} % was saved" if share >= 0 else f"{-share:.0f} % more was paid"
            yield f"{what}: {other:.4f} $, {verdict}"
    if unknown := unpriced_words(document):
        yield f"nothing is compared with on-demand machines: {unknown}"


def unpriced_words(document: Mapping[str, Any]) -> str:
    """Why a job is not compared with on-demand machines; empty if it is.

    Documents of an older deepvm do not say.
    """
    types = document.get("unpriced_types")
    return f"the on-demand price of {joined(types, 'and')} is not known" if types else ""
