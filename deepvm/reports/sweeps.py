"""Sweeps over budgets as rows for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.core.instances import Catalog
from deepvm.core.units import format_usd
from deepvm.planner.sweep import SweepRow
from deepvm.reports.recommendations import format_work
from deepvm.reports.tables import Column, print_table

SCHEMA_VERSION = "deepvm.sweep/1"
HEADER = (
    "pw",
    "policy",
    "architecture",
    "gpu_type",
    "gpu_count",
    "memory_type",
    "memory_count",
    "usd_per_hour",
    "throughput",
)


def _values(row: SweepRow) -> list[Any]:
    found = row.recommendation
    if found is None:
        return [row.policy.value, *[None] * 7]
    memory = found.cluster.memory
    return [
        row.policy.value,
        found.cluster.architecture,
        found.cluster.gpu.name,
        found.cluster.gpu_count,
        memory.instance.name if memory else None,
        memory.count if memory else 0,
        float(found.usd_per_hour),
        found.throughput,
    ]


def csv_rows(rows: Sequence[SweepRow]) -> list[list[Any]]:
    """One row for each budget and policy; empty fields where nothing is feasible."""
    return [[f"{row.budget.normalize():f}", *_values(row)] for row in rows]


def document(rows: Sequence[SweepRow], catalog: Catalog, objective: str) -> dict[str, Any]:
    """The rows as one object; null where nothing is feasible."""
    return {
        "schema_version": SCHEMA_VERSION,
        "catalog": catalog.name,
        "objective": objective,
        "rows": [dict(zip(HEADER, [float(row.budget), *_values(row)], strict=True)) for row in rows],
    }


def print_rows(rows: Sequence[SweepRow]) -> None:
    """A table on stdout."""
    right = ("pw", "gpu_count", "memory_count", "usd_per_hour", "throughput")
    titles = {"pw": "$/h allowed", "usd_per_hour": "$/h", "throughput": "throughput (eFLOPS)"}
    columns = [Column(titles.get(h, h.replace("_", " ")), "right" if h in right else "left") for h in HEADER]
    cells = []
    for row in rows:
        values = [f"{row.budget.normalize():f}", *_values(row)]
        if row.recommendation is not None:
            values[7:] = [format_usd(row.recommendation.usd_per_hour), format_work(row.recommendation.throughput)]
        cells.append(["-" if v is None else str(v) for v in values])
    print_table(columns, cells)
