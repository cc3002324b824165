"""Sweeps over budgets as rows for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.core.instances import Catalog
from deepvm.core.units import format_usd
from deepvm.planner.sweep import SweepRow
from deepvm.reports.recommendations import expected_cells, format_work
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


EXPECTED = ("makespan_s", "total_cost_usd", "closed_form_holds")
"""Behind the others where there is a job."""


def header(rows: Sequence[SweepRow]) -> tuple[str, ...]:
    """The names of the columns."""
    return HEADER + EXPECTED if _has_job(rows) else HEADER


def outside(rows: Sequence[SweepRow]) -> int:
    """In how many rows the closed form of a job's expected time does not hold."""
    outlooks = [r.recommendation.outlook for r in rows if r.recommendation is not None]
    return sum(o is not None and not o.sound for o in outlooks)


def _has_job(rows: Sequence[SweepRow]) -> bool:
    return any(r.recommendation is not None and r.recommendation.outlook is not None for r in rows)


def _expected(row: SweepRow) -> list[Any]:
    outlook = None if row.recommendation is None else row.recommendation.outlook
    if outlook is None:
        return [None] * len(EXPECTED)
    return [outlook.total_s, outlook.cost_usd, outlook.sound]


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
    job = _has_job(rows)
    return [[f"{row.budget.normalize():f}", *_values(row), *(_expected(row) if job else [])] for row in rows]


def document(rows: Sequence[SweepRow], catalog: Catalog, objective: str) -> dict[str, Any]:
    """The rows as one object; null where nothing is feasible."""
    names, job = header(rows), _has_job(rows)
    return {
        "schema_version": SCHEMA_VERSION,
        "catalog": catalog.name,
        "objective": objective,
        "rows": [
            dict(zip(names, [float(row.budget), *_values(row), *(_expected(row) if job else [])], strict=True))
            for row in rows
        ],
    }


def print_rows(rows: Sequence[SweepRow]) -> None:
    """A table on stdout."""
    right = ("pw", "gpu_count", "memory_count", "usd_per_hour", "throughput")
    titles = {"pw": "$/h allowed", "usd_per_hour": "$/h", "throughput": "throughput (eFLOPS)"}
    columns = [Column(titles.get(h, h.replace("_", " ")), "right" if h in right else "left") for h in HEADER]
    job, cells = _has_job(rows), []
    if job:
        columns += [Column("expected time", "right"), Column("expected cost", "right")]
    for row in rows:
        values = [f"{row.budget.normalize():f}", *_values(row)]
        if row.recommendation is not None:
            values[7:] = [format_usd(row.recommendation.usd_per_hour), format_work(row.recommendation.throughput)]
        if job:
            outlook = None if row.recommendation is None else row.recommendation.outlook
            values += [None, None] if outlook is None else expected_cells(outlook)
        cells.append(["-" if v is None else str(v) for v in values])
    print_table(columns, cells)
