"""What deadlines cost on traces: rows for programs, a table, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from deepvm.core.units import counted
from deepvm.documents.build import document_of
from deepvm.documents.outputs.simulation import DeadlineMean
from deepvm.reports.pictures import STYLES, drawing, legend
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.services.rows import rows_as
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def csv_rows(rows: Sequence[DeadlineRow]) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each trace, slack and policy; ``all`` are means over the traces."""
    documents = [{"trace": str(r.trace or "all"), **document_of(DeadlineMean, r)} for r in rows]
    return rows_as(DeadlineMean, documents, "trace")


def print_deadlines(rows: Sequence[DeadlineRow], job: DeadlineJob) -> None:
    """The means over all traces, and below them what was replayed."""
    print_items([_cells(row) for row in rows if row.trace is None], also="-o csv")
    print_lines(["", *_notes(rows, job)])


def _cells(row: DeadlineRow) -> dict[Column, str]:
    cells = {
        Column("slack", "right"): f"{row.slack:g}",
        Column("policy"): row.policy,
        Column("cost", "right"): f"{row.cost:.3f}",
        Column("p95", "right", drop=1): f"{row.cost_p95:.3f}",
        Column("missed", "right", drop=3): str(row.missed),
        Column("jobs", "right", drop=6): str(row.starts),
    }
    if row.policy != FORESIGHT:  # of the bound only the cost is known
        cells[Column("on-demand", "right", drop=2)] = f"{row.on_demand:.1%}"
        cells[Column("preemptions", "right", drop=4)] = f"{row.preemptions:.1f}"
        cells[Column("end", "right", drop=5)] = f"{row.took:.3f}"
    return cells


def _notes(rows: Sequence[DeadlineRow], job: DeadlineJob) -> Iterator[str]:
    yield (
        f"Means over {_traces(rows)} of a job of {job.work_s / 3600:g} h; deadline = (1 + slack) x"
        f" that; a restart takes {job.restart_s:g} s; spot costs {job.price_ratio:g} of on-demand."
    )
    yield (
        "cost: over that of on-demand alone. p95: of the starts on a trace. on-demand: share of"
        " the machine time. end: over the deadline."
    )
    if any(row.policy == FORESIGHT for row in rows):
        yield f"{FORESIGHT}: the lower bound of a policy that knows the trace beforehand."


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
            points = {
                alone: [
                    (slacks.index(r.slack) + aside, r.cost) for r in own if bool(r.trace) is alone
                ]
                for alone in (True, False)
            }
            dots = {"color": style.color, "alpha": 0.35, "markersize": 5, "zorder": 1}
            axes.plot(*zip(*points[True], strict=True), ".", **dots)
            look = style.marked | {"linewidth": 2.0, "markersize": 7.0, "markeredgecolor": "white"}
            axes.plot(*zip(*points[False], strict=True), label=policy, **look)
        axes.set_xlim(-0.4, len(slacks) - 0.6)
        levels = {"on-demand alone": 1.0, "spot without a preemption": job.price_ratio}
        for label, level in levels.items():
            axes.axhline(level, color="0.4", linewidth=0.8)
            axes.text(-0.4, level, label, va="bottom", fontsize=8)
        axes.set_xticks(range(len(slacks)), [f"{s:g}" for s in slacks])
        axes.set_ylim(0, 1.08 * max(1.0, *(r.cost for r in rows)))
        axes.set_xlabel("slack: deadline over work, less 1 (no unit)")
        axes.set_ylabel("cost over on-demand alone (no unit)")
        figure.suptitle("What it costs to meet a deadline with spot VMs")
        missed = sum(row.missed for row in rows if row.trace)
        axes.set_title(
            f"{job.work_s / 3600:g} h of work on {_traces(rows)}: mean of each (dots) and of all"
            f" (lines); deadlines missed: {missed}",
            fontsize="small",
        )
        legend(figure, len(policies))
    return figure


def _traces(rows: Sequence[DeadlineRow]) -> str:
    return counted(len({row.trace for row in rows if row.trace}), "trace")
