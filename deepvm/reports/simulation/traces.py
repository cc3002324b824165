"""Traces, the laws fitted to their lives, and what saves would have cost on them: documents, rows and tables."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
    from deepvm.simulator.traces.lifetime_fit import Fitted
    from deepvm.simulator.traces.replay import Cost, Replayed
    from deepvm.simulator.traces.trace import Trace, TraceLives

SHOW_VERSION, FIT_VERSION, REPLAY_VERSION = "deepvm.traces/1", "deepvm.traces-fit/1", "deepvm.traces-replay/1"
SHOW_HEADER = ("trace", "nodes", "gap_s", "ticks", "there", "lives", "preemptions", "seen_s", "mean_s", "median_s")
FIT_HEADER = ("trace", "law", "parameter", "value", "log_likelihood", "aic")
REPLAY_HEADER = ("policy", "save_s", "trace", "machine_s", "saves_s", "lost_s", "preemptions", "cost_share")
ALL = "all"
"""In place of a trace's name: all traces together."""


def names(paths: Sequence[str]) -> list[str]:
    """Names relative to their common folder."""
    common = os.path.commonpath([os.path.dirname(os.path.abspath(p)) for p in paths])
    return [os.path.relpath(os.path.abspath(p), common) for p in paths]


def show_rows(traces: Sequence[Trace], nodes: int | None) -> list[list[Any]]:
    """A row of ``SHOW_HEADER`` for each trace; None where there is no such thing.

    ``there`` is the share of ticks with all nodes. The median is that of Kaplan and Meier's curve.
    """
    rows = []
    for name, trace in zip(names([str(t.path) for t in traces]), traces, strict=True):
        own, lives = (trace.nodes if nodes is None else nodes), trace.lives(nodes)
        there = float(np.mean(trace.counts >= max(own, 1)))
        mean = lives.seen_s / lives.preemptions if lives.preemptions else None
        counts = [int(lives.life_s.size), lives.preemptions]
        rows.append([name, own, trace.gap_s, trace.counts.size, there, *counts, lives.seen_s, mean, median_s([lives])])
    return rows


def show_document(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """JSON of ``deepvm traces show``."""
    return {"schema_version": SHOW_VERSION, "traces": [dict(zip(SHOW_HEADER, row, strict=True)) for row in rows]}


def print_show(rows: Sequence[Sequence[Any]]) -> None:
    """A table of the traces."""
    heads = ("nodes", "gap s", "days", "there", "lives", "ended", "mean h", "median h")
    cells = [
        [
            name,
            str(nodes),
            f"{gap:g}",
            f"{gap * ticks / 86_400:.1f}",
            f"{100 * there:.0f} %",
            str(lives),
            str(ended),
            _hours(mean),
            _hours(median),
        ]
        for name, nodes, gap, ticks, there, lives, ended, _, mean, median in rows
    ]
    drops = dict(zip(heads, (6, 7, 4, 1, 3, 2, 0, 5), strict=True))
    print_table([Column("trace"), *(Column(h, "right", drop) for h, drop in drops.items())], cells, also="-o csv")
    print_lines(
        [
            "",
            "there: share of the time with all nodes. Lives begin and end with that; the one at the beginning is left "
            "out. mean: machine time for each life that ended.",
        ]
    )


def median_s(pools: Sequence[TraceLives]) -> float | None:
    """Median life (Kaplan-Meier); None when more than half of the lives are censored."""
    from deepvm.simulator.traces.lifetime_fit import survival_curve

    curve = survival_curve(pools)
    half = np.flatnonzero(curve.share <= 0.5)
    return float(curve.t_s[half[0]]) if half.size else None


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


def fit_rows(pools: Sequence[TraceLives], fits: Sequence[Fitted], each: Sequence[Sequence[Fitted]]) -> list[list[Any]]:
    """A row of ``FIT_HEADER`` for each parameter."""
    sets = [(ALL, fits), *zip(names([p.name for p in pools]), each, strict=False)]
    return [
        [name, f.law.name, parameter, value, f.log_likelihood, f.aic]
        for name, own in sets
        for f in own
        for parameter, value in zip(f.law.parameters, f.values, strict=True)
    ]


def print_fit(
    pools: Sequence[TraceLives], fits: Sequence[Fitted], each: Sequence[Sequence[Fitted]], *, alone: bool
) -> None:
    """The four laws, the best first, a verdict, and what stands behind it.

    ``alone``: whether the lives are those of single machines.
    """
    print_lines([_about(pools), ""])
    best = fits[0]
    drops = {"log-likelihood": 3, "AIC": 2, "worse by": 0, "mean h": 0}
    columns = [Column("law"), *(Column(h, "right", drop) for h, drop in drops.items())]
    rows = [
        [f.law.name, f"{f.log_likelihood:.1f}", f"{f.aic:.1f}", f"{f.aic - best.aic:.1f}", _hours(f.mean_s), _values(f)]
        for f in fits
    ]
    print_table([*columns, Column("parameters", drop=1)], rows, also="-o json")
    weibull = next(f for f in fits if f.law.name == "weibull").values[1]
    falls = "falls with a machine's age" if weibull < 1 else "does not fall with a machine's age"
    lines = ["", f"Weibull's shape is {weibull:.2f}: the risk of a preemption {falls}."]
    lines += [
        f"Warning: the shape of {f.law.name} is at the edge of what is searched; the lives do not say how far it goes."
        for f in fits
        if f.at_bound
    ]
    print_lines([*lines, *(_to_plan_with(fits) if alone else [])])
    if each:
        print_lines([""])
        drops = {"lives": 2, "ended": 3, "Weibull shape": 1, "mean h": 0}
        heads = [Column("trace"), Column("best law"), *(Column(h, "right", drop) for h, drop in drops.items())]
        print_table(heads, _each(pools, each), also="-o json")


def _to_plan_with(fits: Sequence[Fitted]) -> list[str]:
    """How to use the fit: options for the planner and the simulator."""
    steady = next(f for f in fits if f.law.name == "exponential").mean_s
    lasting = next(f for f in fits if math.isfinite(f.mean_s))
    law = ":".join([lasting.law.name, *(f"{shape:.4g}" for shape in lasting.values[1:])])
    return [
        f"To plan with them: 'deepvm recommend --mttp {steady / 3600:.3g}h', which takes lives for exponential; in a "
        f"job file 'mttp_s: {lasting.mean_s:.0f}' and 'lifetime: {law}'."
    ]


def _each(pools: Sequence[TraceLives], each: Sequence[Sequence[Fitted]]) -> list[list[str]]:
    rows = []
    for name, pool, own in zip(names([p.name for p in pools]), pools, each, strict=True):
        shape = next((f"{f.values[1]:.2f}" for f in own if f.law.name == "weibull"), "-")
        mean = pool.seen_s / pool.preemptions if pool.preemptions else None
        law = own[0].law.name if own else "too few lives"
        rows.append([name, law, str(pool.life_s.size), str(pool.preemptions), shape, _hours(mean)])
    return rows


def replay_document(
    pools: Sequence[TraceLives], found: Sequence[Replayed], *, step_s: float, mttp_s: float
) -> dict[str, Any]:
    """JSON of ``deepvm traces replay``; shares are of the machine time, an interval without saves is null."""
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
                    {"trace": name} | _cost(cost) | interval
                    for name, cost, interval in zip(own, r.pools, _intervals(r), strict=True)
                ]
            }
            for r in found
        ],
    }


def replay_rows(pools: Sequence[TraceLives], found: Sequence[Replayed]) -> list[list[Any]]:
    """A row of ``REPLAY_HEADER`` for each policy, latency and trace, and for all traces together."""
    own = names([p.name for p in pools])
    return [
        [r.policy, r.save_s, name, *_cost(cost).values()]
        for r in found
        for name, cost in [(ALL, r.total), *zip(own, r.pools, strict=True)]
    ]


def print_replay(pools: Sequence[TraceLives], found: Sequence[Replayed]) -> None:
    """A row for each policy, a column for each latency; then what is gained over the first policy."""
    policies = list(dict.fromkeys(r.policy for r in found))
    saves = list(dict.fromkeys(r.save_s for r in found))
    share = {(r.policy, r.save_s): r.total.share for r in found}
    print_lines([_about(pools), "", "Saves and lost work over machine time, for the time that a save takes:"])
    rows = [[p, *(f"{100 * share[p, s]:.2f} %" for s in saves)] for p in policies]
    columns = [Column("policy"), *(Column(f"{s:g} s", "right", drop=place) for place, s in enumerate(saves))]
    print_table(columns, rows, also="-o csv")
    if len(policies) > 1:
        first = policies[0]
        print_lines(["", f"Compared with {first}:"])
        rows = [[p, *(_gain(share[p, s], share[first, s]) for s in saves)] for p in policies[1:]]
        print_table(columns, rows, also="-o csv")


def _gain(share: float, first: float) -> str:
    return f"{100 * (share / first - 1):+.1f} %" if first else "-"


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "machine_s": cost.machine_s,
        "saves_s": cost.saves_s,
        "lost_s": cost.lost_s,
        "preemptions": cost.preemptions,
        "cost_share": cost.share,
    }


def _intervals(found: Replayed) -> list[dict[str, Any]]:
    if not found.intervals_s:
        return [{} for _ in found.pools]
    return [{"interval_s": i if math.isfinite(i) else None} for i in found.intervals_s]


def _about(pools: Sequence[TraceLives]) -> str:
    own = names([p.name for p in pools])
    what = own[0] if len(own) == 1 else f"{len(own)} traces"
    ended, seen = sum(p.preemptions for p in pools), sum(p.seen_s for p in pools)
    lives = sum(p.life_s.size for p in pools)
    return f"{what}: {lives} lives, {ended} of them ended, {seen / 86_400:.1f} days of machine time"


def _values(fit: Fitted) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(fit.law.parameters, fit.values, strict=True))


def _hours(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds / 3600:.2f}" if math.isfinite(seconds) else "infinite"
