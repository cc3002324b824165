"""Traces, the laws fitted to their lifetimes, and what saves would have cost on them: documents, tables, a picture."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.reports.pictures import STYLES, drawing, short
from deepvm.reports.tables import Column, print_items, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepvm.simulator.traces.lifetime_fit import Fitted
    from deepvm.simulator.traces.replay import Cost, Replayed
    from deepvm.simulator.traces.trace import Trace, TraceLives

SHOW_VERSION, FIT_VERSION, REPLAY_VERSION = (
    "deepvm.traces/1",
    "deepvm.traces-fit/1",
    "deepvm.traces-replay/1",
)
FIT_HEADER = ("trace", "law", "parameter", "value", "log_likelihood", "aic")
REPLAY_HEADER = (
    "policy",
    "save_s",
    "trace",
    "machine_s",
    "saves_s",
    "lost_s",
    "preemptions",
    "cost_share",
)
MOST = 40
"""Only the first traces are drawn; more would be too thin to see."""
ALL = "all"
"""In place of a trace's name: all traces together."""


def names(paths: Sequence[str]) -> list[str]:
    """Names relative to their common folder."""
    common = os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
    return [os.path.relpath(os.path.abspath(p), common) for p in paths]


def show_rows(traces: Sequence[Trace], nodes: int | None) -> list[dict[str, Any]]:
    """A row for each trace; None where there is no such thing.

    ``available_share``: ticks with all nodes. The median is that of Kaplan and Meier's curve; there
    is none when more than half of the lifetimes are censored.
    """
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    rows = []
    for name, trace in zip(names([str(t.path) for t in traces]), traces, strict=True):
        own, lives = (trace.nodes if nodes is None else nodes), trace.lives(nodes)
        times, shares = survival_curve([lives])
        rows.append(
            {
                "trace": name,
                "vm_count": own,
                "gap_s": trace.gap_s,
                "ticks": trace.counts.size,
                "available_share": float(np.mean(trace.counts >= max(own, 1))),
                "lives": int(lives.life_s.size),
                "preemptions": lives.preemptions,
                "machine_s": lives.seen_s,
                "mean_s": lives.seen_s / lives.preemptions if lives.preemptions else None,
                "median_s": float(times[shares <= 0.5][0]) if (shares <= 0.5).any() else None,
            }
        )
    return rows


def show_document(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """JSON of ``deepvm traces show``."""
    return {"schema_version": SHOW_VERSION, "traces": rows}


def print_show(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table of the traces."""
    items = [
        {
            Column("trace"): row["trace"],
            Column("nodes", "right", drop=6): str(row["vm_count"]),
            Column("gap s", "right", drop=7): f"{row['gap_s']:g}",
            Column("days", "right", drop=4): f"{row['gap_s'] * row['ticks'] / 86_400:.1f}",
            Column("there", "right", drop=1): f"{100 * row['available_share']:.0f} %",
            Column("lives", "right", drop=3): str(row["lives"]),
            Column("ended", "right", drop=2): str(row["preemptions"]),
            Column("mean h", "right"): _hours(row["mean_s"]),
            Column("median h", "right", drop=5): _hours(row["median_s"]),
        }
        for row in rows
    ]
    print_items(items, also="-o csv")
    print_lines(
        [
            "",
            (
                "there: share of the time with all nodes. Lives begin and end with that; the one at"
                " the beginning is left out. mean: machine time for each that ended."
            ),
        ]
    )


def fit_document(
    pools: Sequence[TraceLives], fits: Sequence[Fitted], each: Sequence[Sequence[Fitted]]
) -> dict[str, Any]:
    """JSON of ``deepvm traces fit``; ``each`` holds the fits of each pool, empty ones where there are too few lives."""
    found = {
        "schema_version": FIT_VERSION,
        "traces": names([p.name for p in pools]),
        "lives": sum(p.life_s.size for p in pools),
        "preemptions": sum(p.preemptions for p in pools),
        "machine_s": sum(p.seen_s for p in pools),
        "fits": [f.document() for f in fits],
    }
    if each:
        found["each"] = [
            {
                "trace": name,
                "lives": int(pool.life_s.size),
                "preemptions": pool.preemptions,
                "fits": [f.document() for f in own],
            }
            for name, pool, own in zip(names([p.name for p in pools]), pools, each, strict=True)
        ]
    return found


def fit_rows(
    pools: Sequence[TraceLives], fits: Sequence[Fitted], each: Sequence[Sequence[Fitted]]
) -> list[list[Any]]:
    """A row of ``FIT_HEADER`` for each parameter."""
    sets = [(ALL, fits), *zip(names([p.name for p in pools]), each, strict=False)]
    return [
        [name, f.law.name, parameter, value, f.log_likelihood, f.aic]
        for name, own in sets
        for f in own
        for parameter, value in zip(f.law.parameters, f.values, strict=True)
    ]


def print_fit(
    pools: Sequence[TraceLives],
    fits: Sequence[Fitted],
    each: Sequence[Sequence[Fitted]],
    *,
    alone: bool,
) -> None:
    """The four laws, the best first, a verdict, and what it rests on.

    ``alone``: whether the lifetimes are those of single machines.
    """
    print_lines([_about(pools), ""])
    items = [
        {
            Column("law"): f.law.name,
            Column("log-likelihood", "right", drop=3): f"{f.log_likelihood:.1f}",
            Column("AIC", "right", drop=2): f"{f.aic:.1f}",
            Column("worse by", "right"): f"{f.aic - fits[0].aic:.1f}",
            Column("mean h", "right"): _hours(f.mean_s),
            Column("parameters", drop=1): ", ".join(
                f"{name} {value:.4g}"
                for name, value in zip(f.law.parameters, f.values, strict=True)
            ),
        }
        for f in fits
    ]
    print_items(items, also="-o json")
    weibull = next(f for f in fits if f.law.name == "weibull").values[1]
    falls = "falls with a machine's age" if weibull < 1 else "does not fall with a machine's age"
    lines = ["", f"Weibull's shape is {weibull:.2f}: the risk of a preemption {falls}."]
    lines += [
        f"Warning: the shape of {f.law.name} is at the edge of what is searched; the data do not"
        " say how far it goes."
        for f in fits
        if f.at_bound
    ]
    print_lines([*lines, *(_to_plan_with(fits) if alone else [])])
    if each:
        print_lines([""])
        print_items(_each(pools, each), also="-o json")


def _to_plan_with(fits: Sequence[Fitted]) -> list[str]:
    """How to use the fit: options for the planner and the simulator."""
    steady = next(f for f in fits if f.law.name == "exponential").mean_s
    lasting = next(f for f in fits if math.isfinite(f.mean_s))
    law = ":".join([lasting.law.name, *(f"{shape:.4g}" for shape in lasting.values[1:])])
    return [
        f"To plan with them: 'deepvm recommend --mttp {steady / 3600:.3g}h', which assumes"
        f" exponential lifetimes; in a job file 'mttp_s: {lasting.mean_s:.0f}' and 'lifetime:"
        f" {law}'."
    ]


def _each(pools: Sequence[TraceLives], each: Sequence[Sequence[Fitted]]) -> list[dict[Column, str]]:
    return [
        {
            Column("trace"): name,
            Column("best law"): own[0].law.name if own else "too few",
            Column("lives", "right", drop=2): str(pool.life_s.size),
            Column("ended", "right", drop=3): str(pool.preemptions),
            Column("Weibull shape", "right", drop=1): next(
                (f"{f.values[1]:.2f}" for f in own if f.law.name == "weibull"), "-"
            ),
            Column("mean h", "right"): _hours(
                pool.seen_s / pool.preemptions if pool.preemptions else None
            ),
        }
        for name, pool, own in zip(names([p.name for p in pools]), pools, each, strict=True)
    ]


def replay_document(
    pools: Sequence[TraceLives], found: Sequence[Replayed], *, step_s: float, mttp_s: float
) -> dict[str, Any]:
    """JSON of ``deepvm traces replay``.

    Shares are of the machine time, an interval without saves is null.
    """
    own = names([p.name for p in pools])
    return {
        "schema_version": REPLAY_VERSION,
        "step_s": step_s,
        "mttp_prior_s": mttp_s,
        "traces": own,
        "rows": [
            {"policy": r.policy, "save_s": r.save_s}
            | _cost(r.total)
            | {
                "pools": [
                    {"trace": name} | _cost(cost) for name, cost in zip(own, r.pools, strict=True)
                ]
            }
            for r in found
        ],
    }


def replay_rows(pools: Sequence[TraceLives], found: Sequence[Replayed]) -> list[list[Any]]:
    """A row of ``REPLAY_HEADER`` for each policy, latency and trace, and for all traces together."""
    own = names([p.name for p in pools])
    return [
        [r.policy, r.save_s, name, *(_cost(cost)[key] for key in REPLAY_HEADER[3:])]
        for r in found
        for name, cost in [(ALL, r.total), *zip(own, r.pools, strict=True)]
    ]


def print_replay(pools: Sequence[TraceLives], found: Sequence[Replayed]) -> None:
    """A row for each policy, a column for each latency.

    Then what is gained over the first policy.
    """
    policies = list(dict.fromkeys(r.policy for r in found))
    saves = list(dict.fromkeys(r.save_s for r in found))
    share = {(r.policy, r.save_s): r.total.share for r in found}
    print_lines(
        [
            _about(pools),
            "",
            "Saves and lost work over machine time, for the time that a save takes:",
        ]
    )
    rows = [[p, *(f"{100 * share[p, s]:.2f} %" for s in saves)] for p in policies]
    columns = [
        Column("policy"),
        *(Column(f"{s:g} s", "right", drop=place) for place, s in enumerate(saves)),
    ]
    print_table(columns, rows, also="-o csv")
    if len(policies) > 1:
        first = {s: share[policies[0], s] for s in saves}
        print_lines(["", f"Compared with {policies[0]}:"])
        for row, policy in zip(rows, policies, strict=True):
            row[1:] = [
                f"{100 * (share[policy, s] / f - 1):+.1f} %" if f else "-" for s, f in first.items()
            ]
        print_table(columns, rows[1:], also="-o csv")


def _cost(cost: Cost) -> dict[str, Any]:
    plain = ("machine_s", "saves_s", "lost_s", "preemptions")
    found: dict[str, Any] = {name: getattr(cost, name) for name in plain} | {
        "cost_share": cost.share
    }
    if cost.interval_s is not None:
        found["interval_s"] = cost.interval_s if math.isfinite(cost.interval_s) else None
    return found


def _about(pools: Sequence[TraceLives]) -> str:
    own = names([p.name for p in pools])
    what = own[0] if len(own) == 1 else f"{len(own)} traces"
    ended, seen = sum(p.preemptions for p in pools), sum(p.seen_s for p in pools)
    lives = sum(p.life_s.size for p in pools)
    return (
        f"{what}: {lives} lifetimes, {ended} of them ended, {seen / 86_400:.1f} days of machine"
        " time"
    )


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds / 3600:.2f}" if math.isfinite(seconds) else "infinite"


def traces_figure(
    traces: Sequence[Trace], pools: Sequence[TraceLives], fits: Sequence[Fitted]
) -> Figure:
    """Availability of the first ``MOST`` traces over time, above the survival curve of all lifetimes with the fits.

    ``fits`` are in order, the best first; empty when there are too few lifetimes.
    """
    shown = traces[:MOST]
    upper = 0.9 + 0.2 * max(len(shown), 3)
    with drawing(8.6, upper + 4.4, 2, height_ratios=[upper, 4.0]) as (figure, (above, below)):
        _availability(above, shown)
        _survival(below, pools, fits)
        more = "" if len(shown) == len(traces) else f", the first {MOST} of {len(traces)} traces"
        figure.suptitle(f"When the machines were there{more}, and how long they lived")
    return figure


def _availability(axes: Axes, traces: Sequence[Trace]) -> None:
    for row, trace in enumerate(traces):
        # Only ticks at which something changes: a trace has tens of thousands.
        change = np.flatnonzero(np.diff(trace.counts, prepend=-1))
        day = np.append(change, trace.counts.size) * trace.gap_s / 86_400
        height = trace.counts[change] / max(trace.nodes, 1)
        bottom, colour = row + 0.4, STYLES[0].color
        axes.fill_between(
            day,
            bottom,
            bottom - 0.8 * np.append(height, height[-1]),
            step="post",
            color=colour,
            lw=0,
        )
        axes.plot([0, day[-1]], [bottom, bottom], color="0.75", linewidth=0.6)
    unlike = len({t.path.stem for t in traces}) == len(traces)
    own = [
        t.path.stem if unlike else f"{t.path.absolute().parent.name}/{t.path.stem}" for t in traces
    ]
    labels = [f"{short(name)} ({t.nodes})" for name, t in zip(own, traces, strict=True)]
    axes.set_yticks(range(len(traces)), labels, fontsize="small")
    axes.set_ylim(len(traces) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("days from the beginning of each trace")
    axes.set_title(
        "machines that were there; in brackets, how many a full bar is", fontsize="small"
    )
    axes.grid(visible=False, axis="y")


def _survival(axes: Axes, pools: Sequence[TraceLives], fits: Sequence[Fitted]) -> None:
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    times, shares = survival_curve(pools)
    life = np.concatenate([pool.life_s for pool in pools])
    t = np.geomspace(life.min() / 2, life.max() * 1.5, 400)
    for fit, style in zip(fits, STYLES, strict=False):
        label = f"{fit.law.name} (AIC {fit.aic:,.0f})"
        axes.plot(t / 3600, fit.survival(t), label=label, **style.line)
    seen = np.append(times, life.max())
    lasting = np.concatenate([[1.0], shares])
    x, y = np.concatenate([[t[0]], seen]), np.append(lasting, lasting[-1])
    axes.step(
        x / 3600,
        y,
        where="post",
        color="black",
        linewidth=1.3,
        label="seen (Kaplan-Meier)",
        zorder=5,
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("hours")
    axes.set_ylabel("share of lifetimes that last longer")
    axes.set_title(
        f"{life.size} lifetimes, {sum(p.preemptions for p in pools)} of them ended",
        fontsize="small",
    )
    axes.legend(loc="upper right", frameon=False, handlelength=4.2, fontsize="small")
