"""Sweeps over budgets: rows, and the picture of a job's time and bill for each budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.cluster.cluster import JobEstimate
from deepvm.core.units import format_seconds
from deepvm.planner.columns import FloatArray
from deepvm.planner.job_forecast import Work
from deepvm.planner.sweep import Sweep, SweepRow
from deepvm.reports.pictures import (
    MARK_ALL,
    drawing,
    legend,
    policies_of,
    short,
    show_budgets,
    step_line,
    sweep_figure,
)
from deepvm.reports.plans import words
from deepvm.reports.plans.recommendation_documents import (
    CSV,
    CSV_TRAINED,
    expected_document,
    row_of,
)
from deepvm.reports.text import print_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCHEMA_VERSION = "deepvm.sweep/1"
CLUSTER = {
    "architecture": "architecture",
    "gpu_type": "instance_type",
    "gpu_count": "vm_count",
    "memory_type": "memory_instance_type",
    "memory_count": "memory_vm_count",
    "usd_per_hour": "usd_per_hour",
    "throughput": "throughput",
}
"""Columns that say what a cluster is, and what they are called elsewhere.

Those that differ are there by both names.
"""
PROPER = ("pw_usd_per_hour", *(proper for older, proper in CLUSTER.items() if proper != older))
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


def header(rows: Sequence[SweepRow]) -> list[str]:
    """The names of the columns."""
    outlooks = _outlooks(rows)
    # The older names keep their places: scripts may read columns by number.
    names = ["pw", "policy", *CLUSTER]
    if outlooks:
        names += EXPECTED
    if simulated(outlooks):
        names += SIMULATED
    names += PROPER
    if any(r.recommendation and r.recommendation.prediction for r in rows):
        names += CSV_TRAINED
    return names


def outside(rows: Sequence[SweepRow]) -> int:
    """In how many rows the closed form of a job's expected time does not hold."""
    return sum(map(_doubtful, _outlooks(rows)))


def simulated(outlooks: Sequence[JobEstimate]) -> bool:
    """Whether any of them is the mean of simulated runs."""
    return any(outlook.spread is not None for outlook in outlooks)


def _outlooks(rows: Sequence[SweepRow]) -> list[JobEstimate]:
    plans = (row.recommendation for row in rows)
    return [plan.outlook for plan in plans if plan is not None and plan.outlook is not None]


def _values(rows: Sequence[SweepRow], budget: Callable[[Decimal], Any]) -> list[dict[str, Any]]:
    """The columns of each row; None where nothing is feasible."""
    names = header(rows)
    found = []
    for row in rows:
        best = row.recommendation
        values: dict[str, Any] = {"pw": budget(row.budget), "policy": row.policy.value}
        values["pw_usd_per_hour"] = values["pw"]
        if best is not None:
            values |= expected_document(best.outlook) | row_of(CSV | CSV_TRAINED, best)
            values |= {older: values[proper] for older, proper in CLUSTER.items()}
        found.append({name: values.get(name) for name in names})
    return found


def rows_of(
    rows: Sequence[SweepRow], budget: Callable[[Decimal], Any] = words.plain_usd
) -> tuple[list[str], list[list[Any]]]:
    """Header, and one row for each budget and policy; None where nothing is feasible."""
    return header(rows), [list(values.values()) for values in _values(rows, budget)]


def document(found: Sweep) -> dict[str, Any]:
    """The rows as one object; null where nothing is feasible."""
    catalog = found.catalog
    workload = found.workload
    return {
        "schema_version": SCHEMA_VERSION,
        "catalog": catalog.name,
        "region": catalog.region,
        "model": workload and workload.model.name,
        "unit": _units(found) or catalog.eflops_unit,
        "objective": found.objective.value,
        "rows": _values(found.rows, float),
    }


def print_rows(found: Sweep) -> None:
    """A table on stdout."""
    outlooks = _outlooks(found)
    print_text(
        "sweep",
        also="-o csv",
        rows=found,
        units=_units(found),
        job=bool(outlooks),
        spread=simulated(outlooks),
        w=words,
    )


def _units(found: Sweep) -> str:
    """Of the throughput of a model, such as ``tokens/s``; empty for eFLOPS."""
    if found.workload is None:
        return ""
    return found.workload.units


def figure_of(found: Sweep, work: Work | None) -> Figure:
    """Figure 7, or the time and the bill of a job."""
    name = found.catalog.name
    if work is not None:
        return outlooks_figure(found, work, catalog_name=name)
    unit = found.catalog.eflops_unit
    return sweep_figure(found, catalog_name=name, eflops_unit=unit, units=_units(found))


_TIME = ("total_s", "p5_s", "p95_s")
_BILL = ("cost_usd", "p5_usd", "p95_usd")
_WIDE = 50.0
"""Ratio of the largest to the smallest value above which the axis is logarithmic."""


def outlooks_figure(rows: Sequence[SweepRow], work: Work, *, catalog_name: str) -> Figure:
    """Expected time above, expected bill below, over the budget; a step line for each policy.

    Bands and bars hold 5 to 95 % of the simulated runs, where there were any. Budgets for which
    nothing is feasible, or on whose cluster the job does not end, are gaps. Limits of the job are
    thin lines. ``rows`` may come in any order.
    """
    policies = policies_of(rows)
    ordered = sorted(rows, key=lambda r: r.budget)
    deadline_h = None if work.deadline_s is None else work.deadline_s / 3600
    limit_usd = None if work.total_budget is None else float(work.total_budget)
    with drawing(8.0, 6.6, 2, sharex=True) as (figure, (time, bill)):
        figure.suptitle("What the job takes, and costs, on the best cluster of each budget")
        _panel(time, ordered, _figures(ordered, _TIME) / 3600, deadline_h, "deadline")
        _panel(bill, ordered, _figures(ordered, _BILL), limit_usd, "total budget")
        time.set(title=_title(ordered, work, catalog_name), ylabel="expected time (h)")
        x = "pricing willingness PW: the most that the cluster may cost an hour ($/h)"
        bill.set(xlabel=x, ylabel="expected bill ($)")
        show_budgets(bill, ordered)
        if policies:
            legend(figure, len(policies), handles=time.get_legend_handles_labels()[0])
    return figure


def _figures(rows: Sequence[SweepRow], names: Sequence[str]) -> FloatArray:
    """Mean, 5 and 95 % of each row; not a number where there is none."""
    found = []
    for row in rows:
        outlook = _outlook(row)
        spread = outlook.spread if outlook else None
        parts = zip((outlook, spread, spread), names, strict=True)
        found.append([getattr(part, name, math.nan) for part, name in parts])
    return np.array(found, dtype=np.float64).reshape(len(rows), len(names))


def _panel(
    axes: Axes,
    rows: Sequence[SweepRow],
    figures: FloatArray,
    limit: float | None,
    limit_name: str,
) -> None:
    """One panel; ``limit``: of the job, a thin labelled line."""
    policies = policies_of(rows)
    x = np.array([float(r.budget) for r in rows])
    doubtful = np.array([_doubtful(_outlook(r)) for r in rows])
    for place, policy in enumerate(policies):
        own = np.array([r.policy is policy for r in rows])
        at = x[own]
        mean, low, high = figures[own].T
        style = step_line(axes, at.tolist(), mean.tolist(), policy, place, len(policies))
        known = np.isfinite(low)
        if known.any():
            look: dict[str, Any] = {"color": style.color, "alpha": 0.16, "linewidth": 0}
            axes.fill_between(at, low, high, step="post", **look)
            # The band is empty at the last budget and before a gap. Bars on top are narrower, so
            # that those below stay visible; bars of neighbouring budgets do not touch.
            width = (1 - place / len(policies)) * min(_BAR, _BARS / len(at))
            bars = at[known], low[known], high[known]
            axes.vlines(*bars, style.color, linewidth=width, alpha=0.5)
        hollow = np.flatnonzero(doubtful[own])[:: max(1, len(at) // MARK_ALL)]
        if len(hollow):
            mark = {"linestyle": "none", "markerfacecolor": "white", "label": "_doubtful"}
            axes.plot(at[hollow], mean[hollow], **style.marked | mark, zorder=4)
    seen = figures[np.isfinite(figures)]
    if limit is not None:
        seen = np.append(seen, limit)
        axes.axhline(limit, color="0.25", linewidth=1.0, linestyle="--", zorder=1.5)
        corner = axes.get_yaxis_transform()
        axes.text(1, limit, limit_name, transform=corner, ha="right", va="bottom", color="0.25")
    if len(seen) and seen.max() > _WIDE * seen.min() > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, 1.06 * seen.max(initial=0.0) or 1.0)


_BAR, _BARS = 8.0, 200.0
"""Width of the widest bar, points, and of all bars of a policy together.

The axis has twice as many.
"""


def _outlook(row: SweepRow) -> JobEstimate | None:
    """None where nothing is to be drawn."""
    outlook = row.recommendation.outlook if row.recommendation else None
    if outlook and math.isfinite(outlook.total_s):
        return outlook
    return None


def _doubtful(outlook: JobEstimate | None) -> bool:
    return outlook is not None and not outlook.sound and outlook.spread is None


def _title(rows: Sequence[SweepRow], work: Work, catalog_name: str) -> str:
    outlooks = [_outlook(r) for r in rows]
    reference = next((r.reference.name for r in rows if r.reference is not None), "")
    job = short(work.job.name, 20)
    if reference:
        alone = format_seconds(work.job.steps * work.job.step_s.mean)
        job = f"job {job}, {alone} on one {reference}"
    runs = {o.spread.runs for o in outlooks if o is not None and o.spread is not None}
    how = "means by the closed form"
    if runs:
        how = f"means, and 5 to 95 % (shaded), of {max(runs)} simulated runs"
    if not any(outlooks):
        how = "no policy has a feasible cluster at any of these budgets"
    if any(map(_doubtful, outlooks)):
        how += "; hollow: it does not hold there, and may be far off"
    if any(outlooks) and None in outlooks:
        how += "\nno line: nothing is feasible, or the job does not end"
    return f"catalog {short(catalog_name, 22)}; {job}\n{how}"
