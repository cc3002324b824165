"""How good predictions are, as a table and as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from deepvm.catalog.published.check import Group, PublishedCheck
from deepvm.documents.build import document_of
from deepvm.documents.outputs.performance import Errors
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.services.rows import rows_as


def _groups(check: PublishedCheck) -> Iterator[tuple[str, tuple[Group, ...]]]:
    yield "gpu", check.gpus
    yield "model", check.models
    yield "source", check.sources
    yield "unseen model", check.unseen


def print_check(check: PublishedCheck) -> None:
    """Errors by GPU, by model and by source, and whether they are as promised."""
    print_lines(["Each published run predicted from all others (leave one out);"])
    print_lines(["unseen model: without any run of that model.", ""])
    for title, groups in _groups(check):
        print_items([_cells(title, group) for group in (*groups, check.total)], also="-o json")
        print_lines([""])
    promised = check.promised
    held = promised["coverage"]
    print_lines(
        [
            f"Promised: median error at most {promised['median_error']:.0%} for each GPU,"
            f" {held['min']:.0%} to {held['max']:.0%} held."
            f" {'Kept.' if check.kept else 'NOT KEPT.'}"
        ]
    )


def _cells(title: str, group: Group) -> dict[Column, str]:
    return {
        Column(title): group.name,
        Column("runs", "right"): str(group.runs),
        Column("median error", "right"): f"{group.median:.1%}",
        Column("90 % below", "right"): f"{group.p90:.1%}",
        Column("80 % interval held", "right"): f"{group.coverage:.0%}",
        Column("its half width", "right", drop=1): f"{group.width:.0%}",
    }


def csv_rows(check: PublishedCheck) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each group."""
    sets = [*_groups(check), ("", (check.total,))]
    rows = [{"by": by, **document_of(Errors, group)} for by, groups in sets for group in groups]
    return rows_as(Errors, rows, "by")
