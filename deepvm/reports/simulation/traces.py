"""Traces, the laws fitted to their lifetimes, and what saves and deadlines would have cost."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.units import counted
from deepvm.documents.build import ABSENT, With, document_of
from deepvm.reports.pictures import STYLES, Axes, Figure, drawing, legend, short
from deepvm.reports.text import print_text
from deepvm.services.schemas import Table, rows_as
from deepvm.simulator.traces.deadline_replay import FORESIGHT, DeadlineJob, DeadlineRow
from deepvm.simulator.traces.trace import Trace, TraceLives, together

if TYPE_CHECKING:
    from deepvm.simulator.traces.lifetime_fit import FittedLifetimes
    from deepvm.simulator.traces.replay import Cost, ReplayResult

FIT_HEADER = ["trace", "law", "parameter", "value", "log_likelihood", "aic"]
MAX_DRAWN = 40  # Only the first traces are drawn; more would be too thin to see
ALL = "all"  # Stands for the name of a trace: all traces together


def names(paths: Iterable[str | Path]) -> list[str]:
    """Names relative to their common folder."""
    files = [Path(path).absolute() for path in paths]
    common = os.path.commonpath([file.parent for file in files])
    return [os.path.relpath(file, common) for file in files]


def _names_of(pools: Sequence[TraceLives]) -> list[str]:
    return names(pool.name for pool in pools)


def show_rows(traces: Sequence[Trace], nodes: int | None) -> list[With]:
    """A row for each trace; the median is Kaplan and Meier's, None if half are censored."""
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    rows = []
    for name, trace in zip(names(t.path for t in traces), traces, strict=True):
        vms = nodes
        if vms is None:
            vms = trace.nodes
        lives = trace.lives(nodes)
        times, shares = survival_curve([lives])
        row = With(
            lives,
            trace=name,
            vm_count=vms,
            ticks=trace.counts.size,
            available_share=np.mean(trace.counts >= max(vms, 1)),
            median_s=next(iter(times[shares <= 0.5].tolist()), None),
        )
        rows.append(row)
    return rows


def fit_document(
    pools: Sequence[TraceLives],
    fits: Sequence[FittedLifetimes],
    each: Sequence[Sequence[FittedLifetimes]],
) -> JsonDict:
    """JSON of laws fitted to all pools together, and those of ``each``, if asked."""
    own = [
        With(pool, trace=name, fits=laws)
        for name, pool, laws in zip(_names_of(pools), pools, each, strict=False)
    ]
    values = With(together(pools), traces=_names_of(pools), fits=fits, each=own or ABSENT)
    return document_of("simulation.TracesFit", values)


def fit_csv(document: JsonObject) -> Table:
    """Header and a row for each parameter."""
    sets = [{"trace": ALL, "fits": document["fits"]}, *document.get("each", ())]
    return FIT_HEADER, [
        [own["trace"], fit["law"], parameter, value, fit["log_likelihood"], fit["aic"]]
        for own in sets
        for fit in own["fits"]
        for parameter, value in fit["parameters"].items()
    ]


def print_fit(
    pools: Sequence[TraceLives],
    fits: Sequence[FittedLifetimes],
    each: Sequence[Sequence[FittedLifetimes]],
    *,
    alone: bool,
) -> None:
    """The four laws, the best first, a verdict, and what it rests on."""
    print_text(
        "traces_fit",
        names=_names_of(pools),
        pool=together(pools),
        fits=fits,
        by_name={fit.law.name: fit for fit in fits},
        lasting=next(fit for fit in fits if math.isfinite(fit.mean_s)),
        alone=alone,
        each=list(zip(_names_of(pools), pools, each, strict=False)),
    )


def replay_document(
    pools: Sequence[TraceLives], results: Sequence[ReplayResult], *, step_s: float, mttp_s: float
) -> JsonDict:
    """JSON of ``deepvm traces replay``."""
    own = _names_of(pools)
    rows = []
    for row in results:
        costs = [_cost(cost, trace=name) for name, cost in zip(own, row.pools, strict=True)]
        # The figures of all traces stand next to the policy, those of each below it
        rows.append(_cost(row.total, policy=row.policy, save_s=row.save_s, pools=costs))
    values = {"step_s": step_s, "mttp_prior_s": mttp_s, "traces": own, "rows": rows}
    return document_of("simulation.TracesReplay", values)


def _cost(cost: Cost, **more: Any) -> With:
    if cost.interval_s is not None:
        more["interval_s"] = cost.interval_s
    return With(cost, **more)


def replay_csv(document: JsonObject) -> Table:
    """Header and a row for each policy, latency and trace, and for all traces together."""
    rows = [
        {"trace": ALL, **cost, "policy": row["policy"], "save_s": row["save_s"]}
        for row in document["rows"]
        for cost in (row, *row["pools"])
    ]
    return rows_as("simulation.ReplayCost", rows)


def print_replay(pools: Sequence[TraceLives], results: Sequence[ReplayResult]) -> None:
    """A row for each policy, a column for each latency; then the gain over the first policy."""
    table = defaultdict(list)
    for row in results:
        table[row.policy].append(row.total.share)
    saves = list(dict.fromkeys(row.save_s for row in results))
    print_text(
        "traces_replay",
        also="-o csv",
        table=table,
        saves=saves,
        names=_names_of(pools),
        pool=together(pools),
    )


def traces_figure(
    traces: Sequence[Trace], pools: Sequence[TraceLives], fits: Sequence[FittedLifetimes]
) -> Figure:
    """Availability of the first ``MAX_DRAWN`` traces, above the survival curve with the fits."""
    drawn = traces[:MAX_DRAWN]
    upper = 0.9 + 0.2 * max(len(drawn), 3)
    with drawing(8.6, upper + 4.4, 2, height_ratios=[upper, 4.0]) as (figure, (above, below)):
        _availability(above, drawn)
        _survival(below, pools, fits)
        more = ""
        if len(traces) > MAX_DRAWN:
            more = f", the first {MAX_DRAWN} of {len(traces)} traces"
        figure.suptitle(f"When the machines were there{more}, and how long they lived")
    return figure


def _availability(axes: Axes, traces: Sequence[Trace]) -> None:
    for row, trace in enumerate(traces):
        # Only ticks at which something changes: a trace has tens of thousands.
        change = np.flatnonzero(np.diff(trace.counts, prepend=-1))
        day = np.append(change, trace.counts.size) * trace.gap_s / 86_400
        height = trace.counts[change] / max(trace.nodes, 1)
        bottom = row + 0.4
        color = STYLES[0].color
        top = bottom - 0.8 * np.append(height, height[-1])
        axes.fill_between(day, bottom, top, step="post", color=color, lw=0)
        axes.plot([0, day[-1]], [bottom, bottom], color="0.75", linewidth=0.6)
    own = [short(name.removesuffix(".json")) for name in names(t.path for t in traces)]
    labels = [f"{name} ({trace.nodes})" for name, trace in zip(own, traces, strict=True)]
    axes.set_yticks(range(len(traces)), labels, fontsize="small")
    axes.grid(visible=False, axis="y")
    axes.set(
        title="machines that were there; in brackets, how many a full bar is",
        xlabel="days from the beginning of each trace",
        xlim=(0, None),
        ylim=(len(traces) - 0.4, -0.6),
    )


def _survival(axes: Axes, pools: Sequence[TraceLives], fits: Sequence[FittedLifetimes]) -> None:
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    times, shares = survival_curve(pools)
    pool = together(pools)
    life = pool.life_s
    t = np.geomspace(life.min() / 2, life.max() * 1.5, 400)
    for fit, style in zip(fits, STYLES, strict=False):
        label = f"{fit.law.name} (AIC {fit.aic:,.0f})"
        axes.plot(t / 3600, fit.survival(t), label=label, **style.line)
    # The curve starts at 1, and ends with the longest lifetime, which may not have ended
    x = np.concatenate([t[:1], times, [life.max()]])
    y = np.concatenate([[1.0], shares, [1.0, *shares][-1:]])
    label = "seen (Kaplan-Meier)"
    axes.step(x / 3600, y, where="post", label=label, color="black", linewidth=1.3, zorder=5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(
        title=f"{life.size} lifetimes, {pool.preemptions} of them ended",
        xlabel="hours",
        ylabel="share of lifetimes that last longer",
        ylim=(0, 1.03),
    )
    axes.legend(loc="upper right")


def deadline_rows(rows: Sequence[DeadlineRow]) -> Table:
    """Header and a row for each trace, slack and policy; ``all`` are means over the traces."""
    documents = [
        document_of("simulation.DeadlineRow", With(row, trace=row.trace or "all")) for row in rows
    ]
    return rows_as("simulation.DeadlineMean", documents, "trace")


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
            dots = x[each], cost[each], "."
            axes.plot(*dots, color=style.color, alpha=0.35, markersize=5, zorder=1)
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
