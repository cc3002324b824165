"""Sweeps over budgets: rows, and the picture of a job's time and bill for each budget."""

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.cluster import JobEstimate
from deepvm.core.units import format_seconds
from deepvm.documents.build import ABSENT, With, document_of, ordered
from deepvm.planner.job_forecast import Work
from deepvm.planner.sweep import Sweep, SweepRow
from deepvm.reports import pictures
from deepvm.reports.pictures import Axes, Figure
from deepvm.reports.plans import words
from deepvm.reports.text import print_text


def outside(rows: Sequence[SweepRow]) -> int:
    """In how many rows the closed form of a job's expected time does not hold."""
    plans = [row.recommendation for row in rows if row.recommendation]
    return sum(_doubtful(plan.outlook) for plan in plans)


def _table(found: Sequence[SweepRow]) -> tuple[list[str], list[dict[str, Any]]]:
    rows = []
    for row in found:
        expected = dict.fromkeys(ordered("plans.Expected"), ABSENT)
        if row.recommendation is not None and row.recommendation.outlook is not None:
            expected |= document_of("plans.Expected", row.recommendation.outlook)
        rows.append(document_of("plans.SweepRow", With(row, **expected)))
    columns = [
        key
        for key, schema in ordered("plans.SweepRow").items()
        if not schema.get("optional") or any(key in row for row in rows)
    ]
    return columns, [{key: row.get(key) for key in columns} for row in rows]


def rows_of(
    found: Sequence[SweepRow], budget: Callable[[Decimal], Any] = words.plain_usd
) -> tuple[list[str], list[list[Any]]]:
    """Header, and one row for each budget and policy; None where nothing is feasible."""
    columns, rows = _table(found)
    for row, asked in zip(rows, found, strict=True):
        row["pw"] = row["pw_usd_per_hour"] = budget(asked.budget)
    return columns, [list(row.values()) for row in rows]


def document(found: Sweep) -> dict[str, Any]:
    """The rows as one object; null where nothing is feasible."""
    unit = _units(found) or found.catalog.eflops_unit
    parts = With(found, unit=unit, rows=())
    return document_of("plans.Sweep", parts) | {"rows": _table(found)[1]}


def print_rows(found: Sweep) -> None:
    """A table on stdout."""
    print_text("sweep", also="-o csv", rows=found, units=_units(found), w=words)


def _units(found: Sweep) -> str:
    if found.workload is None:
        return ""
    return found.workload.units


def figure_of(found: Sweep, work: Work | None) -> Figure:
    """Figure 7, or the time and the bill of a job."""
    name = found.catalog.name
    if work is not None:
        return outlooks_figure(found, work, catalog_name=name)
    unit = found.catalog.eflops_unit
    return pictures.sweep_figure(found, catalog_name=name, eflops_unit=unit, units=_units(found))


_TIME = ("total_s", "p5_s", "p95_s")
_BILL = ("cost_usd", "p5_usd", "p95_usd")
_WIDE = 50.0  # Ratio of the largest to the smallest value above which the axis is logarithmic


def outlooks_figure(rows: Sequence[SweepRow], work: Work, *, catalog_name: str) -> Figure:
    """Expected time above, expected bill below, over the budget; a step line for each policy."""
    ordered = sorted(rows, key=lambda r: r.budget)
    with pictures.drawing(8.0, 6.6, 2, sharex=True) as (figure, (time, bill)):
        figure.suptitle("What the job takes, and costs, on the best cluster of each budget")
        _panel(time, ordered, _TIME, 3600.0)
        _panel(bill, ordered, _BILL, 1.0)
        _limit(time, "deadline", work.deadline_s, 3600.0)
        _limit(bill, "total budget", work.total_budget, 1.0)
        time.set(title=_title(ordered, work, catalog_name), ylabel="expected time (h)")
        x = "pricing willingness PW: the most that the cluster may cost an hour ($/h)"
        bill.set(xlabel=x, ylabel="expected bill ($)")
        pictures.show_budgets(bill, ordered)
        if rows:
            lines = time.get_legend_handles_labels()[0]
            pictures.legend(figure, len(pictures.policies_of(rows)), handles=lines)
    return figure


def _figures(rows: Sequence[SweepRow], names: Sequence[str]) -> FloatArray:
    """Mean, 5 and 95 % of each row; not a number where there is none."""
    found = []
    for row in rows:
        outlook = _outlook(row)
        spread = outlook and outlook.spread
        parts = zip((outlook, spread, spread), names, strict=True)
        found.append([getattr(part, name, math.nan) for part, name in parts])
    return np.array(found, dtype=np.float64)


def _panel(axes: Axes, rows: Sequence[SweepRow], names: Sequence[str], unit: float) -> None:
    policies = pictures.policies_of(rows)
    for place, policy in enumerate(policies):
        own = [r for r in rows if r.policy is policy]
        at = np.array([float(r.budget) for r in own])
        mean, low, high = _figures(own, names).T / unit
        style = pictures.step_line(axes, at.tolist(), mean.tolist(), policy, place, len(policies))
        known = np.isfinite(low)
        if known.any():
            axes.fill_between(at, low, high, step="post", color=style.color, alpha=0.16, lw=0)
            # The band is empty at the last budget and before a gap. Bars on top are narrower, so
            # that those below stay visible; bars of neighboring budgets do not touch.
            width = (1 - place / len(policies)) * min(_BAR, _BARS / len(at))
            bars = at[known], low[known], high[known]
            axes.vlines(*bars, style.color, linewidth=width, alpha=0.5)
        doubtful = np.flatnonzero([_doubtful(_outlook(r)) for r in own])
        hollow = doubtful[:: max(1, len(at) // pictures.MARK_ALL)]
        if len(hollow):
            mark = {"linestyle": "none", "markerfacecolor": "white", "label": "_doubtful"}
            axes.plot(at[hollow], mean[hollow], **style.marked | mark, zorder=4)


def _limit(axes: Axes, name: str, limit: Any, unit: float) -> None:
    if limit is not None:
        value = float(limit) / unit
        axes.axhline(value, color="0.25", linewidth=1.0, linestyle="--", zorder=1.5)
        corner = axes.get_yaxis_transform()
        axes.text(1, value, name, transform=corner, ha="right", va="bottom", color="0.25")
    low, high = axes.dataLim.intervaly
    if high > _WIDE * low > 0:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, 1.06 * max(high, 0.0) or 1.0)


# Width of the widest bar, points, and of all bars of a policy together. The axis has twice as many
_BAR, _BARS = 8.0, 200.0


def _outlook(row: SweepRow) -> JobEstimate | None:
    outlook = row.recommendation and row.recommendation.outlook
    if outlook and math.isfinite(outlook.total_s):
        return outlook
    return None


def _doubtful(outlook: JobEstimate | None) -> bool:
    return outlook is not None and not outlook.sound and outlook.spread is None


def _title(rows: Sequence[SweepRow], work: Work, catalog_name: str) -> str:
    outlooks = [_outlook(r) for r in rows]
    reference = next((r.reference.name for r in rows if r.reference is not None), "")
    job = pictures.short(work.job.name, 20)
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
    return f"catalog {pictures.short(catalog_name, 22)}; {job}\n{how}"
