"""Sweeps over budgets as rows for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.core.cluster.cluster import Outlook
from deepvm.core.cluster.instances import Catalog
from deepvm.core.units import format_usd
from deepvm.planner.sweep import SweepRow
from deepvm.reports.plans.outlooks import expected_cells, expected_columns, expected_document, simulated
from deepvm.reports.plans.recommendations import format_work
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
"""Appended where there is a job."""
SIMULATED = (
    "runs",
    "makespan_p5_s",
    "makespan_p50_s",
    "makespan_p95_s",
    "total_cost_p5_usd",
    "total_cost_p50_usd",
    "total_cost_p95_usd",
)
"""Appended where it was simulated."""


def header(rows: Sequence[SweepRow]) -> tuple[str, ...]:
    """The names of the columns."""
    if not _has_job(rows):
        return HEADER
    return HEADER + EXPECTED + (SIMULATED if simulated(_outlooks(rows)) else ())


def outside(rows: Sequence[SweepRow]) -> int:
    """In how many rows the closed form of a job's expected time does not hold."""
    return sum(not o.sound and o.spread is None for o in _outlooks(rows))


def _outlooks(rows: Sequence[SweepRow]) -> list[Outlook]:
    found = (r.recommendation.outlook for r in rows if r.recommendation is not None)
    return [outlook for outlook in found if outlook is not None]


def _has_job(rows: Sequence[SweepRow]) -> bool:
    return bool(_outlooks(rows))


def _expected(row: SweepRow) -> dict[str, Any]:
    outlook = None if row.recommendation is None else row.recommendation.outlook
    return {} if outlook is None else expected_document(outlook)


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
    more = header(rows)[len(HEADER) :]
    return [
        [f"{row.budget.normalize():f}", *_values(row), *(_expected(row).get(name) for name in more)] for row in rows
    ]


def document(rows: Sequence[SweepRow], catalog: Catalog, objective: str) -> dict[str, Any]:
    """The rows as one object; null where nothing is feasible."""
    more = header(rows)[len(HEADER) :]
    return {
        "schema_version": SCHEMA_VERSION,
        "catalog": catalog.name,
        "objective": objective,
        "rows": [
            dict(zip(HEADER, [float(row.budget), *_values(row)], strict=True))
            | {name: _expected(row).get(name) for name in more}
            for row in rows
        ],
    }


def print_rows(rows: Sequence[SweepRow]) -> None:
    """A table on stdout."""
    right = ("pw", "gpu_count", "memory_count", "usd_per_hour", "throughput")
    job, cells = _has_job(rows), []
    spread = simulated(_outlooks(rows))
    drops = _DROPS | ({"throughput": 7} if job else {})
    titles = {"pw": "$/h allowed", "usd_per_hour": "$/h", "throughput": "throughput (eFLOPS)"}
    columns = [
        Column(titles.get(h, h.replace("_", " ")), "right" if h in right else "left", drops.get(h, 0)) for h in HEADER
    ]
    if job:
        columns += expected_columns(spread=spread)
    for row in rows:
        values = [f"{row.budget.normalize():f}", *_values(row)]
        if row.recommendation is not None:
            values[7:] = [format_usd(row.recommendation.usd_per_hour), format_work(row.recommendation.throughput)]
        if job:
            outlook = None if row.recommendation is None else row.recommendation.outlook
            values += expected_cells(outlook, spread=spread)
        cells.append(["-" if v is None else str(v) for v in values])
    print_table(columns, cells, also="-o csv")


_DROPS = {"gpu_count": 1, "gpu_type": 2, "usd_per_hour": 3, "memory_count": 9, "memory_type": 10, "architecture": 11}
"""Order in which narrow terminals drop columns, the highest first; a type never stays without its count."""
