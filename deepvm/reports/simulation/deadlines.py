"""What deadlines cost on traces: rows for programs, a table, a picture."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepvm.io.atomic_write import write_bytes
from deepvm.reports.pictures import STYLES, frame, new_figure, own_settings, picture_format, render
from deepvm.reports.tables import Column, print_lines, print_table
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = "deepvm.traces-deadline/1"
HEADER = (
    "trace",
    "slack",
    "policy",
    "starts",
    "missed",
    "cost",
    "cost_p95",
    "on_demand",
    "preemptions",
    "took",
)
ALL = "all"
"""In place of a trace's name: the mean over all traces."""


def rows_of(found: Sequence[DeadlineRow]) -> list[list[Any]]:
    """Rows of ``HEADER``; None where a figure does not exist."""
    rows = []
    for row in found:
        values = [getattr(row, name) for name in HEADER]
        values[0] = ALL if row.trace is None else str(row.trace)
        rows.append([None if isinstance(v, float) and math.isnan(v) else v for v in values])
    return rows


def document(found: Sequence[DeadlineRow], job: DeadlineJob) -> dict[str, Any]:
    """JSON: the job, the means over the traces, and each trace."""
    rows = [dict(zip(HEADER, row, strict=True)) for row in rows_of(found)]
    return {
        "schema_version": SCHEMA_VERSION,
        "job": dataclasses.asdict(job),
        "means": [{k: v for k, v in row.items() if k != "trace"} for row in rows if row["trace"] == ALL],
        "traces": [row for row in rows if row["trace"] != ALL],
    }


def print_deadlines(found: Sequence[DeadlineRow], job: DeadlineJob) -> None:
    """The means over all traces, and below them what was replayed."""
    drops = {"cost": 0, "p95": 1, "on-demand": 2, "preemptions": 4, "end": 5, "missed": 3, "jobs": 6}
    columns = [Column("slack", "right"), Column("policy"), *(Column(h, "right", drop) for h, drop in drops.items())]
    own = [r for r in found if r.trace is None]
    cells = [
        [
            f"{r.slack:g}",
            r.policy,
            f"{r.cost:.3f}",
            f"{r.cost_p95:.3f}",
            *(["-"] * 3 if r.policy == FORESIGHT else [f"{r.on_demand:.1%}", f"{r.preemptions:.1f}", f"{r.took:.3f}"]),
            str(r.missed),
            str(r.starts),
        ]
        for r in own
    ]
    print_table(columns, cells, also="-o csv")
    lines = [
        "",
        f"Means over {_traces(found)} of a job of {job.work_s / 3600:g} h; deadline = (1 + slack) x that; a "
        f"restart takes {job.restart_s:g} s; spot costs {job.price_ratio:g} of on-demand.",
        "cost: over that of on-demand alone. p95: of the starts on a trace. on-demand: share of the machine time. "
        "end: over the deadline.",
    ]
    if any(r.policy == FORESIGHT for r in own):
        lines.append(f"{FORESIGHT}: the least that any policy could cost that knew the trace beforehand.")
    print_lines(lines)


def draw_deadlines(found: Sequence[DeadlineRow], job: DeadlineJob, path: Path) -> None:
    """Save :func:`deadlines_figure` as PNG or SVG, by the ending of the file's name.

    Raises:
        RequestError: another ending. MissingExtraError: matplotlib is not installed.
        DataError: the file cannot be written.
    """
    form = picture_format(path)
    write_bytes(path, render(deadlines_figure(found, job), form))


def deadlines_figure(found: Sequence[DeadlineRow], job: DeadlineJob) -> Figure:
    """Cost over on-demand by slack: a line for each policy (means over traces), a dot for each trace.

    Args:
        found: from :func:`deepvm.simulator.traces.deadline_replay.replay_traces`.
        job: what was replayed.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    slacks = sorted({r.slack for r in found})
    policies = list(dict.fromkeys(r.policy for r in found))
    with own_settings():
        figure = new_figure(8.0, 4.9)
        axes = figure.add_subplot()
        for index, policy in enumerate(policies):
            style = STYLES[index % len(STYLES)]
            aside = 0.16 * (index - (len(policies) - 1) / 2)  # dots of different policies side by side
            dots = [(slacks.index(r.slack) + aside, r.cost) for r in found if r.policy == policy and r.trace]
            axes.plot(*zip(*dots, strict=True), ".", color=style.color, alpha=0.35, markersize=5, zorder=1)
            means = {r.slack: r.cost for r in found if r.policy == policy and r.trace is None}
            axes.plot(
                [slacks.index(s) + aside for s in means],
                list(means.values()),
                label=policy,
                color=style.color,
                linestyle=style.dashes,
                linewidth=2.0,
                marker=style.marker,
                markersize=7.0,
                markeredgecolor="white",
            )
        axes.set_xlim(-0.4, len(slacks) - 0.6)
        # Each text stands on the side of its line where there are no dots.
        aside_of = ((1.0, "on-demand alone", "bottom", 3), (job.price_ratio, "spot without a preemption", "top", -3))
        for level, label, side, points in aside_of:
            axes.axhline(level, color="0.4", linewidth=0.8)
            at = ("axes fraction", "data")
            axes.annotate(label, (0.0, level), (3, points), at, "offset points", va=side, ha="left", size=8)
        axes.set_xticks(range(len(slacks)), [f"{s:g}" for s in slacks])
        axes.set_ylim(0, 1.08 * max(1.0, *(r.cost for r in found)))
        axes.set_xlabel("slack: deadline over work, less 1 (no unit)")
        axes.set_ylabel("cost over on-demand alone (no unit)")
        figure.suptitle("What it costs to meet a deadline with spot VMs")
        title = f"{job.work_s / 3600:g} h of work on {_traces(found)}: mean of each (dots) and of all (lines)"
        missed = sum(r.missed for r in found if r.trace)
        axes.set_title(f"{title}; {missed or 'no'} deadline{'s' * (missed > 1)} missed", fontsize="small")
        frame(axes)
        figure.legend(loc="outside lower center", ncols=len(policies), frameon=False, handlelength=4.2)
    return figure


def _traces(found: Sequence[DeadlineRow]) -> str:
    count = len({r.trace for r in found if r.trace})
    return f"{count} trace{'s' * (count > 1)}"
