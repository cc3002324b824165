"""How good predictions are, as a table and for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from deepvm.catalog.published.check import (
    LEAST_COVERAGE,
    MOST_COVERAGE,
    MOST_ERROR,
    Group,
    PublishedCheck,
)
from deepvm.reports.tables import Column, print_items, print_lines

SCHEMA_VERSION = "deepvm.performance-check/1"


def print_check(found: PublishedCheck) -> None:
    """Errors by GPU, by model and by source, and whether they are as promised."""
    print_lines(["Each published run predicted from all others (leave one out)", ""])
    for title, groups in (("GPU", found.gpus), ("model", found.models), ("source", found.sources)):
        print_items([_cells(title, group) for group in (*groups, found.total)], also="-o json")
        print_lines([""])
    print_lines(["Each model predicted without any run of it", ""])
    print_items([_cells("model", group) for group in found.unseen], also="-o json")
    print_lines([""])
    promised = (
        f"median error at most {MOST_ERROR:.0%} for each GPU, {LEAST_COVERAGE:.0%} to"
        f" {MOST_COVERAGE:.0%} held"
    )
    print_lines([f"Promised: {promised}. {'Kept.' if found.kept else 'NOT KEPT.'}"])


def _cells(title: str, group: Group) -> dict[Column, str]:
    return {
        Column(title): group.name,
        Column("runs", "right"): str(group.runs),
        Column("median error", "right"): f"{group.median:.1%}",
        Column("90 % below", "right"): f"{group.p90:.1%}",
        Column("80 % interval held", "right"): f"{group.coverage:.0%}",
        Column("its half width", "right", drop=1): f"{group.width:.0%}",
    }


def document(found: PublishedCheck) -> dict[str, Any]:
    """For programs; shares, not per cent."""
    return {
        "schema_version": SCHEMA_VERSION,
        "promised": {
            "median_error": MOST_ERROR,
            "coverage": {"min": LEAST_COVERAGE, "max": MOST_COVERAGE},
        },
        "kept": found.kept,
        **{
            name: list(map(_errors, getattr(found, name)))
            for name in ("gpus", "models", "sources", "unseen")
        },
        "total": _errors(found.total),
    }


def _errors(group: Group) -> dict[str, Any]:
    return dict(zip(_ERRORS, asdict(group).values(), strict=True))


_ERRORS = ("name", "runs", "median_error", "p90_error", "coverage", "half_width")


def csv_rows(found: PublishedCheck) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each group."""
    kinds = {
        "gpu": found.gpus,
        "model": found.models,
        "source": found.sources,
        "unseen model": found.unseen,
    }
    rows = [[kind, *asdict(group).values()] for kind, groups in kinds.items() for group in groups]
    rows.append(["", *asdict(found.total).values()])
    return ["by", *_ERRORS], rows
