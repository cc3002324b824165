"""What deadlines cost on traces: rows for programs, a table, a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.units import counted
from deepvm.documents.build import With, document_of
from deepvm.documents.outputs import simulation as outputs
from deepvm.reports.pictures import STYLES, drawing, legend
from deepvm.reports.text import print_text
from deepvm.services.schemas import rows_as
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def csv_rows(rows: Sequence[DeadlineRow]) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each trace, slack and policy; ``all`` are means over the traces."""
    documents = [
        document_of(outputs.DeadlineRow, With(row, trace=row.trace or "all")) for row in rows
    ]
    return rows_as(outputs.DeadlineMean, documents, "trace")


def print_deadlines(rows: Sequence[DeadlineRow], job: DeadlineJob) -> None:
    """The means over all traces, and below them what was replayed."""
    traces = _traces(rows)
    print_text("traces_deadline", also="-o csv", rows=rows, job=job, traces=traces, bound=FORESIGHT)


def deadlines_figure(rows: Sequence[DeadlineRow], job: DeadlineJob) -> Figure:
    """Cost over on-demand by slack: a line for each policy (means), a dot for each trace."""
    slacks = sorted({row.slack for row in rows})
    policies = list(dict.fromkeys(row.policy for row in rows))
    with drawing(8.0, 4.9) as (figure, axes):
        for index, policy in enumerate(policies):
            style = STYLES[index % len(STYLES)]
            # Dots of different policies side by side
            aside = 0.16 * (index - (len(policies) - 1) / 2)
            own = [row for row in rows if row.policy == policy]
            x = np.array([slacks.index(row.slack) + aside for row in own])
            cost = np.array([row.cost for row in own])
            each = np.array([bool(row.trace) for row in own])
            dots = {"color": style.color, "alpha": 0.35, "markersize": 5, "zorder": 1}
            axes.plot(x[each], cost[each], ".", **dots)
            look = style.marked | {"linewidth": 2.0, "markersize": 7.0, "markeredgecolor": "white"}
            axes.plot(x[~each], cost[~each], label=policy, **look)
        levels = {"on-demand alone": 1.0, "spot without a preemption": job.price_ratio}
        for label, level in levels.items():
            axes.axhline(level, color="0.4", linewidth=0.8)
            axes.text(-0.4, level, label, va="bottom", fontsize=8)
        axes.set_xticks(range(len(slacks)), [f"{s:g}" for s in slacks])
        missed = sum(row.missed for row in rows if row.trace)
        axes.set(
            title=f"{job.work_s / 3600:g} h of work on {_traces(rows)}: mean of each (dots) and of"
            f" all (lines); deadlines missed: {missed}",
            xlabel="slack: deadline over work, less 1 (no unit)",
            ylabel="cost over on-demand alone (no unit)",
            xlim=(-0.4, len(slacks) - 0.6),
            ylim=(0, 1.08 * max(1.0, *(r.cost for r in rows))),
        )
        figure.suptitle("What it costs to meet a deadline with spot VMs")
        legend(figure, len(policies))
    return figure


def _traces(rows: Sequence[DeadlineRow]) -> str:
    return counted(len({row.trace for row in rows if row.trace}), "trace")
