"""A sweep over budgets with a job as a picture: what the job takes, and what it costs, for each budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepvm.core.cluster.cluster import Outlook
from deepvm.core.units import format_seconds
from deepvm.io.atomic_write import write_bytes
from deepvm.planner.job_forecast import Work
from deepvm.planner.request import PolicyName
from deepvm.planner.sweep import SweepRow
from deepvm.reports.pictures import (
    MARK_ALL,
    POLICY_LABELS,
    STYLES,
    Style,
    frame,
    new_figure,
    own_settings,
    picture_format,
    render,
    short,
    step_line,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDE = 50.0
"""Ratio of the largest to the smallest value above which the axis is logarithmic."""


def draw_outlooks(rows: Sequence[SweepRow], work: Work, path: Path, *, catalog_name: str) -> None:
    """Save :func:`outlooks_figure` as PNG or SVG, by the ending of the file's name.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    write_bytes(path, render(outlooks_figure(rows, work, catalog_name=catalog_name), form))


def outlooks_figure(rows: Sequence[SweepRow], work: Work, *, catalog_name: str) -> Figure:
    """Expected time above, expected bill below, over the budget; a step line for each policy.

    Bands and bars hold 5 to 95 % of the simulated runs, where there were any. Budgets for which nothing is feasible, or
    on whose cluster the job does not end, are gaps. Limits of the job are thin lines.

    Args:
        rows: from :func:`deepvm.planner.sweep.sweep` with a job, in any order.
        work: the job.
        catalog_name: for the title.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    policies = [p for p in PolicyName if any(r.policy is p for r in rows)]
    ordered = sorted(rows, key=lambda r: r.budget)
    with own_settings():
        figure = new_figure(8.0, 6.6)
        time, bill = figure.subplots(2, 1, sharex=True)
        deadline_h = None if work.deadline_s is None else work.deadline_s / 3600
        most_usd = None if work.total_budget is None else float(work.total_budget)
        _panel(time, ordered, policies, _hours, (deadline_h, "deadline"))
        _panel(bill, ordered, policies, _dollars, (most_usd, "total budget"))
        time.set_ylabel("expected time (h)")
        bill.set_ylabel("expected bill ($)")
        bill.set_xlabel("pricing willingness PW: the most that the cluster may cost an hour ($/h)")
        figure.suptitle("What the job takes, and costs, on the best cluster of each budget")
        time.set_title(_title(ordered, work, catalog_name), fontsize="small")
        if ordered:
            # Budgets with nothing feasible are part of the picture: the axis starts where the sweep does.
            low, high = float(ordered[0].budget), float(ordered[-1].budget)
            margin = 0.02 * (high - low) or 0.5
            bill.set_xlim(low - margin, high + margin)
        if policies:
            handles, labels = time.get_legend_handles_labels()
            figure.legend(
                handles, labels, loc="outside lower center", ncols=len(policies), frameon=False, handlelength=4.2
            )
    return figure


def _panel(
    axes: Axes,
    rows: Sequence[SweepRow],
    policies: Sequence[PolicyName],
    figures: Callable[[Outlook], tuple[float, float, float]],
    limit: tuple[float | None, str],
) -> None:
    """One frame; ``figures``: mean, 5 and 95 % of an outlook."""
    most, name = limit
    seen: list[float] = [] if most is None else [most]
    for place, policy in enumerate(policies):
        style = STYLES[list(PolicyName).index(policy)]
        own = [r for r in rows if r.policy is policy]
        x, outlooks = [float(r.budget) for r in own], [_outlook(r) for r in own]
        y, low, high = zip(*(_NOTHING if o is None else figures(o) for o in outlooks), strict=True)
        step_line(axes, x, y, POLICY_LABELS[policy], style, place=place, places=len(policies))
        _ranges(axes, x, low, high, style.color, share=1 - place / len(policies))
        _mark_doubtful(axes, x, y, outlooks, style)
        seen += [v for v in (*y, *low, *high) if math.isfinite(v)]
    if seen and min(seen) > 0 and max(seen) > _WIDE * min(seen):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(0, 1.06 * max(seen) if seen else 1)
    if most is not None:
        _limit(axes, most, name)
    frame(axes)


def _ranges(
    axes: Axes, x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str, *, share: float
) -> None:
    """The simulated runs: a band, and a bar at each budget, as the band is empty at the last one and before a gap."""
    at = [i for i, value in enumerate(low) if math.isfinite(value)]
    if at:
        axes.fill_between(x, low, high, step="post", color=color, alpha=0.16, linewidth=0)
        # Bars on top are narrower, so that those below stay visible; bars of neighbouring budgets do not touch.
        width = share * min(_BAR, _BARS / len(x))
        axes.vlines([x[i] for i in at], [low[i] for i in at], [high[i] for i in at], color, linewidth=width, alpha=0.5)


_BAR, _BARS = 8.0, 200.0
"""Width of the widest bar, points, and of all bars of a policy together; the axis has twice as many."""


def _outlook(row: SweepRow) -> Outlook | None:
    """None where nothing is to be drawn."""
    found = None if row.recommendation is None else row.recommendation.outlook
    return None if found is None or not math.isfinite(found.total_s) else found


_NOTHING = (math.nan, math.nan, math.nan)


def _hours(outlook: Outlook) -> tuple[float, float, float]:
    own = outlook.spread
    low, high = (math.nan, math.nan) if own is None else (own.p5_s, own.p95_s)
    return outlook.total_s / 3600, low / 3600, high / 3600


def _dollars(outlook: Outlook) -> tuple[float, float, float]:
    own = outlook.spread
    return outlook.cost_usd, *((math.nan, math.nan) if own is None else (own.p5_usd, own.p95_usd))


def _doubtful(outlook: Outlook | None) -> bool:
    return outlook is not None and not outlook.sound and outlook.spread is None


def _mark_doubtful(
    axes: Axes, x: Sequence[float], y: Sequence[float], outlooks: Sequence[Outlook | None], style: Style
) -> None:
    """Hollow markers where the figure may be far off."""
    at = [i for i, o in enumerate(outlooks) if _doubtful(o)][:: max(1, len(x) // MARK_ALL)]
    if at:
        look = {"marker": style.marker, "markersize": style.size, "markerfacecolor": "white"}
        axes.plot(
            [x[i] for i in at],
            [y[i] for i in at],
            linestyle="none",
            markeredgecolor=style.color,
            label="_doubtful",
            zorder=4,
            **look,  # type: ignore[arg-type]
        )


def _limit(axes: Axes, value: float, name: str) -> None:
    """A limit of the job as a thin labelled line."""
    axes.axhline(value, color="0.25", linewidth=1.0, linestyle=(0, (3.0, 2.0)), zorder=1.5)
    axes.annotate(
        name,
        (1, value),
        (0, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize="small",
        color="0.25",
    )


def _title(rows: Sequence[SweepRow], work: Work, catalog_name: str) -> str:
    outlooks = [_outlook(r) for r in rows]
    reference = next((r.reference.name for r in rows if r.reference is not None), "")
    alone = format_seconds(work.job.steps * work.job.step_s.mean)
    job = f"job {short(work.job.name, 20)}, {alone} on one {reference}" if reference else short(work.job.name, 20)
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
