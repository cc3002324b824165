"""Traces, the laws fitted to their lifetimes, and what saves would have cost on them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.documents.build import With, document_of
from deepvm.documents.outputs import simulation as outputs
from deepvm.reports.pictures import STYLES, drawing, short
from deepvm.reports.tables import Column, print_items, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from deepvm.simulator.traces.lifetime_fit import Fitted
    from deepvm.simulator.traces.replay import Cost, Replayed
    from deepvm.simulator.traces.trace import Trace, TraceLives

Table = tuple[list[str], list[list[Any]]]
FIT_HEADER = ["trace", "law", "parameter", "value", "log_likelihood", "aic"]
REPLAY_HEADER = ["policy", "save_s", "trace", "machine_s", "saves_s", "lost_s", "preemptions"]
REPLAY_HEADER += ["cost_share"]
MOST = 40
"""Only the first traces are drawn; more would be too thin to see."""
ALL = "all"
"""In place of a trace's name: all traces together."""


def names(paths: Sequence[str]) -> list[str]:
    """Names relative to their common folder."""
    common = os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
    return [os.path.relpath(os.path.abspath(p), common) for p in paths]


def names_of(pools: Sequence[TraceLives]) -> list[str]:
    """The names of pools."""
    return names([pool.name for pool in pools])


def show_rows(traces: Sequence[Trace], nodes: int | None) -> list[dict[str, Any]]:
    """A row for each trace; None where there is no such thing.

    ``available_share``: ticks with all nodes. The median is that of Kaplan and Meier's curve; there
    is none when more than half of the lifetimes are censored.
    """
    own = names([str(trace.path) for trace in traces])
    return [_show_row(name, trace, nodes) for name, trace in zip(own, traces, strict=True)]


def _show_row(name: str, trace: Trace, nodes: int | None) -> dict[str, Any]:
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    vms, lives = (trace.nodes if nodes is None else nodes), trace.lives(nodes)
    times, shares = survival_curve([lives])
    return {
        "trace": name,
        "vm_count": vms,
        "gap_s": trace.gap_s,
        "ticks": trace.counts.size,
        "available_share": float(np.mean(trace.counts >= max(vms, 1))),
        "lives": int(lives.life_s.size),
        "preemptions": lives.preemptions,
        "machine_s": lives.seen_s,
        "mean_s": _mean_s(lives),
        "median_s": float(times[shares <= 0.5][0]) if (shares <= 0.5).any() else None,
    }


def _mean_s(lives: TraceLives) -> float | None:
    return lives.seen_s / lives.preemptions if lives.preemptions else None


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
    note = (
        "there: share of the time with all nodes. Lives begin and end with that; the first is left"
        " out. mean: machine time for each that ended."
    )
    print_lines(["", note])


@dataclass(frozen=True)
class LifetimeFits:
    """Laws fitted to the lifetimes of all pools, the best first, and those of ``each``, if asked."""

    pools: Sequence[TraceLives]
    fits: Sequence[Fitted]
    each: Sequence[Sequence[Fitted]]

    def document(self) -> dict[str, Any]:
        """JSON of ``deepvm traces fit``."""
        own = names_of(self.pools)
        document = {
            "schema_version": "deepvm.traces-fit/1",
            "traces": own,
            "lives": sum(pool.life_s.size for pool in self.pools),
            "preemptions": sum(pool.preemptions for pool in self.pools),
            "machine_s": sum(pool.seen_s for pool in self.pools),
            "fits": _documents(self.fits),
        }
        if self.each:
            document["each"] = [
                {
                    "trace": name,
                    "lives": int(pool.life_s.size),
                    "preemptions": pool.preemptions,
                    "fits": _documents(fits),
                }
                for name, pool, fits in zip(own, self.pools, self.each, strict=True)
            ]
        return document

    def csv_rows(self) -> Table:
        """Header and a row for each parameter."""
        sets = [(ALL, self.fits), *zip(names_of(self.pools), self.each, strict=False)]
        return FIT_HEADER, [
            [name, fit.law.name, parameter, value, fit.log_likelihood, fit.aic]
            for name, fits in sets
            for fit in fits
            for parameter, value in fit.parameters.items()
        ]


def _documents(fits: Sequence[Fitted]) -> list[dict[str, Any]]:
    return [document_of(outputs.FittedLaw, fit) for fit in fits]


def print_fit(found: LifetimeFits, *, alone: bool) -> None:
    """The four laws, the best first, a verdict, and what it rests on.

    ``alone``: whether the lifetimes are those of single machines.
    """
    print_lines([_about(found.pools), ""])
    best = found.fits[0]
    items = [
        {
            Column("law"): fit.law.name,
            Column("log-likelihood", "right", drop=3): f"{fit.log_likelihood:.1f}",
            Column("AIC", "right", drop=2): f"{fit.aic:.1f}",
            Column("worse by", "right"): f"{fit.aic - best.aic:.1f}",
            Column("mean h", "right"): _hours(fit.mean_s),
            Column("parameters", drop=1): _parameters(fit),
        }
        for fit in found.fits
    ]
    print_items(items, also="-o json")
    print_lines(["", *_verdict(found.fits)])
    if alone:
        print_lines([_to_plan_with(found.fits)])
    if found.each:
        print_lines([""])
        rows = zip(names_of(found.pools), found.pools, found.each, strict=True)
        print_items([_each(*row) for row in rows], also="-o json")


def _parameters(fit: Fitted) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in fit.parameters.items())


def _verdict(fits: Sequence[Fitted]) -> Iterator[str]:
    shape = next(fit for fit in fits if fit.law.name == "weibull").values[1]
    falls = "falls" if shape < 1 else "does not fall"
    yield (
        f"Weibull's shape is {shape:.2f}: the risk of a preemption {falls} with a machine's age."
    )
    for fit in fits:
        if fit.at_bound:
            yield (
                f"Warning: the shape of {fit.law.name} is at the edge of what is searched; the data"
                " do not bound it."
            )


def _to_plan_with(fits: Sequence[Fitted]) -> str:
    """How to use the fit: options for the planner and the simulator."""
    steady = next(fit for fit in fits if fit.law.name == "exponential").mean_s
    lasting = next(fit for fit in fits if math.isfinite(fit.mean_s))
    law = ":".join([lasting.law.name, *(f"{shape:.4g}" for shape in lasting.values[1:])])
    return (
        f"To plan with them: 'deepvm recommend --mttp {steady / 3600:.3g}h', which assumes"
        f" exponential lifetimes; in a job file 'mttp_s: {lasting.mean_s:.0f}' and 'lifetime:"
        f" {law}'."
    )


def _each(name: str, pool: TraceLives, fits: Sequence[Fitted]) -> dict[Column, str]:
    shapes = [f"{fit.values[1]:.2f}" for fit in fits if fit.law.name == "weibull"]
    return {
        Column("trace"): name,
        Column("best law"): fits[0].law.name if fits else "too few",
        Column("lives", "right", drop=2): str(pool.life_s.size),
        Column("ended", "right", drop=3): str(pool.preemptions),
        Column("Weibull shape", "right", drop=1): "".join(shapes) or "-",
        Column("mean h", "right"): _hours(_mean_s(pool)),
    }


def replay_document(
    pools: Sequence[TraceLives], found: Sequence[Replayed], *, step_s: float, mttp_s: float
) -> dict[str, Any]:
    """JSON of ``deepvm traces replay``."""
    own = names_of(pools)
    return {
        "schema_version": "deepvm.traces-replay/1",
        "step_s": step_s,
        "mttp_prior_s": mttp_s,
        "traces": own,
        "rows": [_replay_row(row, own) for row in found],
    }


def _replay_row(row: Replayed, own: Sequence[str]) -> dict[str, Any]:
    costs = [_cost(cost) for cost in (row.total, *row.pools)]
    pools = [{"trace": name, **cost} for name, cost in zip(own, costs[1:], strict=True)]
    return {"policy": row.policy, "save_s": row.save_s, **costs[0], "pools": pools}


def _cost(cost: Cost) -> dict[str, Any]:
    fixed = {} if cost.interval_s is None else {"interval_s": cost.interval_s}
    return document_of(outputs.Cost, With(cost, **fixed))


def replay_csv(document: Mapping[str, Any]) -> Table:
    """Header and a row for each policy, latency and trace, and for all traces together."""
    return REPLAY_HEADER, [
        [row["policy"], row["save_s"], cost.get("trace", ALL)]
        + [cost[key] for key in REPLAY_HEADER[3:]]
        for row in document["rows"]
        for cost in (row, *row["pools"])
    ]


def print_replay(pools: Sequence[TraceLives], found: Sequence[Replayed]) -> None:
    """A row for each policy, a column for each latency; then the gain over the first policy."""
    policies = list(dict.fromkeys(row.policy for row in found))
    saves = list(dict.fromkeys(row.save_s for row in found))
    share = {(row.policy, row.save_s): row.total.share for row in found}
    about = "Saves and lost work over machine time, for the time that a save takes:"
    print_lines([_about(pools), "", about])
    columns = [Column("policy")]
    columns += [Column(f"{s:g} s", "right", drop=place) for place, s in enumerate(saves)]
    rows = [[p, *(f"{100 * share[p, s]:.2f} %" for s in saves)] for p in policies]
    print_table(columns, rows, also="-o csv")
    if len(policies) > 1:
        print_lines(["", f"Compared with {policies[0]}:"])
        gains = [[_gain(share[p, s], share[policies[0], s]) for s in saves] for p in policies[1:]]
        rows = [[p, *gain] for p, gain in zip(policies[1:], gains, strict=True)]
        print_table(columns, rows, also="-o csv")


def _gain(share: float, first: float) -> str:
    return f"{100 * (share / first - 1):+.1f} %" if first else "-"


def _about(pools: Sequence[TraceLives]) -> str:
    own = names_of(pools)
    about = own[0] if len(own) == 1 else f"{len(own)} traces"
    ended, seen_s = sum(p.preemptions for p in pools), sum(p.seen_s for p in pools)
    lives = sum(p.life_s.size for p in pools)
    days = f"{seen_s / 86_400:.1f} days of machine time"
    return f"{about}: {lives} lifetimes, {ended} of them ended, {days}"


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds / 3600:.2f}" if math.isfinite(seconds) else "infinite"


def traces_figure(
    traces: Sequence[Trace], pools: Sequence[TraceLives], fits: Sequence[Fitted]
) -> Figure:
    """Availability of the first ``MOST`` traces, above the survival curve of all lifetimes with fits.

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
        top = bottom - 0.8 * np.append(height, height[-1])
        axes.fill_between(day, bottom, top, step="post", color=colour, lw=0)
        axes.plot([0, day[-1]], [bottom, bottom], color="0.75", linewidth=0.6)
    own = names([str(trace.path) for trace in traces])
    labels = [
        f"{short(name.removesuffix('.json'))} ({trace.nodes})"
        for name, trace in zip(own, traces, strict=True)
    ]
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
    look: dict[str, Any] = {"color": "black", "linewidth": 1.3, "zorder": 5}
    axes.step(x / 3600, y, where="post", label="seen (Kaplan-Meier)", **look)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 1.03)
    axes.set_xlabel("hours")
    axes.set_ylabel("share of lifetimes that last longer")
    ended = sum(pool.preemptions for pool in pools)
    axes.set_title(f"{life.size} lifetimes, {ended} of them ended", fontsize="small")
    axes.legend(loc="upper right", frameon=False, handlelength=4.2, fontsize="small")
