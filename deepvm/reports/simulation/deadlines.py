"""What deadlines cost on traces: rows for programs, a table, a picture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from deepvm.core.units import counted
from deepvm.reports.pictures import STYLES, drawing, legend
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = "deepvm.traces-deadline/1"
NAMES = {
    "cost": "cost_ratio",
    "cost_p95": "cost_ratio_p95",
    "on_demand": "on_demand_share",
    "took": "end_ratio",
}
"""What documents call figures whose names do not say that they are ratios."""
FIELDS = tuple(f.name for f in dataclasses.fields(DeadlineRow))
HEADER = tuple(NAMES.get(name, name) for name in FIELDS)
ALL = "all"
"""In place of a trace's name: the mean over all traces."""


def rows_of(found: Sequence[DeadlineRow]) -> list[list[Any]]:
    """Rows of ``HEADER``; None where a figure does not exist."""
    rows = []
    for row in found:
        values = [getattr(row, name) for name in FIELDS]
        values[0] = ALL if row.trace is None else str(row.trace)
        rows.append([None if isinstance(v, float) and math.isnan(v) else v for v in values])
    return rows


def document(found: Sequence[DeadlineRow], job: DeadlineJob) -> dict[str, Any]:
    """JSON: the job, the means over the traces, and each trace."""
    rows = [dict(zip(HEADER, row, strict=True)) for row in rows_of(found)]
    return {
        "schema_version": SCHEMA_VERSION,
        "job": dataclasses.asdict(job),
        "means": [
            {k: v for k, v in row.items() if k != "trace"} for row in rows if row["trace"] == ALL
        ],
        "traces": [row for row in rows if row["trace"] != ALL],
    }


def print_deadlines(found: Sequence[DeadlineRow], job: DeadlineJob) -> None:
    """The means over all traces, and below them what was replayed."""
    own = [r for r in found if r.trace is None]
    items = []
    for r in own:
        known = r.policy != FORESIGHT  # of the bound only the cost is known
        items.append(
            {
                Column("slack", "right"): f"{r.slack:g}",
                Column("policy"): r.policy,
                Column("cost", "right"): f"{r.cost:.3f}",
                Column("p95", "right", drop=1): f"{r.cost_p95:.3f}",
                Column("on-demand", "right", drop=2): f"{r.on_demand:.1%}" if known else "-",
                Column("preemptions", "right", drop=4): f"{r.preemptions:.1f}" if known else "-",
                Column("end", "right", drop=5): f"{r.took:.3f}" if known else "-",
                Column("missed", "right", drop=3): str(r.missed),
                Column("jobs", "right", drop=6): str(r.starts),
            }
        )
    print_items(items, also="-o csv")
    lines = [
        "",
        (
            f"Means over {_traces(found)} of a job of {job.work_s / 3600:g} h; deadline = (1 +"
            f" slack) x that; a restart takes {job.restart_s:g} s; spot costs {job.price_ratio:g}"
            " of on-demand."
        ),
        (
            "cost: over that of on-demand alone. p95: of the starts on a trace. on-demand: share of"
            " the machine time. end: over the deadline."
        ),
    ]
    if any(r.policy == FORESIGHT for r in own):
        lines.append(
            f"{FORESIGHT}: the least that any policy could cost that knew the trace beforehand."
        )
    print_lines(lines)


def deadlines_figure(found: Sequence[DeadlineRow], job: DeadlineJob) -> Figure:
    """Cost over on-demand by slack: a line for each policy (means over traces), a dot for each trace."""
    slacks = sorted({r.slack for r in found})
    policies = list(dict.fromkeys(r.policy for r in found))
    with drawing(8.0, 4.9) as (figure, axes):
        for index, policy in enumerate(policies):
            style = STYLES[index % len(STYLES)]
            # Dots of different policies side by side
            aside = 0.16 * (index - (len(policies) - 1) / 2)
            dots = [
                (slacks.index(r.slack) + aside, r.cost)
                for r in found
                if r.policy == policy and r.trace
            ]
            axes.plot(
                *zip(*dots, strict=True), ".", color=style.color, alpha=0.35, markersize=5, zorder=1
            )
            means = {r.slack: r.cost for r in found if r.policy == policy and r.trace is None}
            look = style.marked | {"linewidth": 2.0, "markersize": 7.0, "markeredgecolor": "white"}
            axes.plot(
                [slacks.index(s) + aside for s in means], list(means.values()), label=policy, **look
            )
        axes.set_xlim(-0.4, len(slacks) - 0.6)
        # Each text stands on the side of its line where there are no dots.
        aside_of = (
            (1.0, "on-demand alone", "bottom", 3),
            (job.price_ratio, "spot without a preemption", "top", -3),
        )
        for level, label, side, points in aside_of:
            axes.axhline(level, color="0.4", linewidth=0.8)
            at = ("axes fraction", "data")
            axes.annotate(
                label, (0.0, level), (3, points), at, "offset points", va=side, ha="left", size=8
            )
        axes.set_xticks(range(len(slacks)), [f"{s:g}" for s in slacks])
        axes.set_ylim(0, 1.08 * max(1.0, *(r.cost for r in found)))
        axes.set_xlabel("slack: deadline over work, less 1 (no unit)")
        axes.set_ylabel("cost over on-demand alone (no unit)")
        figure.suptitle("What it costs to meet a deadline with spot VMs")
        title = (
            f"{job.work_s / 3600:g} h of work on {_traces(found)}: mean of each (dots) and of all"
            " (lines)"
        )
        missed = sum(r.missed for r in found if r.trace)
        axes.set_title(
            f"{title}; {missed or 'no'} deadline{'s' * (missed > 1)} missed", fontsize="small"
        )
        legend(figure, len(policies))
    return figure


def _traces(found: Sequence[DeadlineRow]) -> str:
    return counted(len({r.trace for r in found if r.trace}), "trace")
