"""Replay of jobs with a deadline on traces of spot machines, decided at each tick."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.preemption.deadlines import (
    DEADLINE_POLICIES,
    ON_DEMAND,
    SPOT,
    WAIT,
    DeadlinePolicy,
    DeadlineProgress,
    parse_deadline_policy,
)
from deepvm.core.preemption.offline_optimum import least_cost
from deepvm.core.progress import Say
from deepvm.core.units import format_seconds, refuse_no_time, refuse_outside
from deepvm.errors import RequestError
from deepvm.records import dataclass
from deepvm.simulator.traces.trace import Trace, check_nodes

LATE_S = 1e-6  # Tolerance: sums of a million ticks are not exact


@dataclass(frozen=True)
class DeadlineJob:
    """What is replayed."""

    work_s: float  # on one machine without saves or restarts
    restart_s: float = 300.0  # from the request for a machine until training continues
    save_every_s: float = 0.0  # work between two versions; 0: every moment is durable
    save_s: float = 0.0  # how long training stalls for a version
    backup_s: float = 0.0  # from then until it is durable
    price_ratio: float = 0.33  # of spot over on-demand

    def __post_init__(self) -> None:
        refuse_no_time("work", self.work_s)
        for option in ("restart", "save_every", "save", "backup"):
            refuse_no_time(option, getattr(self, f"{option}_s"), zero=True)
        if not self.save_every_s and (self.save_s or self.backup_s):
            allowed = "a time above 0 s with --save or --backup"
            raise RequestError("save_every", self.save_every_s, allowed)
        if not 0 < self.price_ratio <= 1:
            allowed = "above 0, at most 1: the spot over the on-demand price"
            raise RequestError("price_ratio", self.price_ratio, allowed)

    @property
    def cycle_s(self) -> float:
        if self.save_every_s:
            return self.save_every_s + self.save_s
        return 0.0

    @property
    def total_s(self) -> float:
        if not self.save_every_s:
            return self.work_s
        saves = math.ceil(self.work_s / self.save_every_s - 1e-9) - 1
        return self.work_s + saves * self.save_s

    @property
    def on_demand_s(self) -> float:
        return self.restart_s + self.work_s

    def deadline_s(self, slack: float) -> float:
        """``(1 + slack) work``. Raises RequestError: on-demand, with the saves, would be late."""
        deadline = (1 + slack) * self.work_s
        least = self.restart_s + self.total_s
        if not math.isfinite(slack):
            allowed = "numbers from 0, separated by commas, such as 0.1,0.5"
            raise RequestError("slack", slack, allowed)
        if not least <= deadline:
            needed = math.ceil(1e4 * (least / self.work_s - 1)) / 1e4
            allowed = f"from {needed:g}: on-demand needs that much for restart and saves"
            raise RequestError("slack", slack, allowed)
        return deadline


@dataclass(frozen=True)
class DeadlineOutcomes:
    """Outcomes of N jobs, arrays (N,)."""

    took_s: FloatArray
    cost: FloatArray  # relative to on-demand alone
    late: BoolArray
    spot_s: FloatArray  # paid machine time
    on_demand_s: FloatArray
    preemptions: IntArray  # spot VMs lost


def replay(
    policy: DeadlinePolicy,
    up: BoolArray,
    gap_s: float,
    job: DeadlineJob,
    starts: IntArray,
    deadline_s: FloatArray,
    ends: IntArray | None = None,
) -> DeadlineOutcomes:
    """Run N jobs on a trace, or on several with the same gap, one after the other.

    ``up``: (ticks,) whether there is a spot VM. ``starts``, ``deadline_s``: (N,) tick, and seconds
    from there. ``ends``: (N,) the end of each trace, by default of ``up``.
    """
    count = len(starts)
    total_s = job.total_s
    cycle_s = job.cycle_s
    restart_s = job.restart_s
    version_s = cycle_s + job.backup_s
    if ends is None:
        ends = np.full(count, len(up))
    took = np.full(count, np.nan)
    paid = {SPOT: np.zeros(count), ON_DEMAND: np.zeros(count)}
    preemptions = np.zeros(count, dtype=np.int64)
    on = np.full(count, WAIT)
    done = np.zeros(count)
    kept = np.zeros(count)
    starting = np.zeros(count)
    open_ = np.ones(count, dtype=bool)
    tick = 0
    while open_.any():
        there = up[np.minimum(starts + tick, ends - 1)] & (starts + tick < ends)
        lost = (on == SPOT) & ~there & open_
        preemptions += lost
        on = np.where(lost, WAIT, on)
        standing = DeadlineProgress(
            work_s=total_s - kept,
            left_s=deadline_s - tick * gap_s,
            total_s=total_s,
            deadline_s=deadline_s,
            restart_s=restart_s,
            version_s=version_s,
            horizon_s=gap_s,
            on=on,
            spot_up=there,
        )
        chosen = policy.choose(standing)
        changed = chosen != on
        done = np.where(changed, kept, done)
        starting = np.where(changed, restart_s, starting)
        on = chosen
        before = np.minimum(starting, gap_s)
        run = np.where(on == WAIT, 0.0, gap_s - before)
        starting = starting - before
        finished = open_ & (on != WAIT) & (total_s - done <= run)
        used = np.where(finished, before + total_s - done, gap_s)
        for market, seconds in paid.items():
            seconds += np.where(open_ & (on == market), used, 0.0)
        took = np.where(finished, tick * gap_s + used, took)
        open_ &= ~finished
        done = done + run
        if cycle_s:
            kept = np.maximum(kept, np.floor((done - job.backup_s) / cycle_s) * cycle_s)
        else:
            kept = done
        tick += 1
    spot_s, on_demand_s = paid.values()
    cost = (job.price_ratio * spot_s + on_demand_s) / job.on_demand_s
    return DeadlineOutcomes(
        took, cost, took > deadline_s + LATE_S, spot_s, on_demand_s, preemptions
    )


@dataclass(frozen=True)
class DeadlineRow:
    """One trace, slack and policy (or :data:`FORESIGHT`), over all starts."""

    trace: Path | None  # None: means over all of them
    slack: float
    policy: str
    starts: int
    missed: int  # how many were late
    cost: float  # relative to on-demand alone
    cost_p95: float
    on_demand: float = math.nan  # share of the machine time
    preemptions: float = math.nan
    took: float = math.nan  # mean time from start to end over the deadline


# Instead of a policy: the offline optimum, see :mod:`deepvm.core.preemption.offline_optimum`
FORESIGHT = "foresight"


def replay_traces(
    traces: Sequence[Trace],
    job: DeadlineJob,
    slacks: Sequence[float],
    policies: Sequence[str],
    *,
    nodes: int | None = None,
    starts: int = 100,
    foresight: bool = False,
    note: Say | None = None,
    say: Say | None = None,
    progress: Callable[..., object] | None = None,
) -> tuple[DeadlineRow, ...]:
    """Replay a job on traces: rows by trace, slack and policy, then the means over the traces.

    Traces shorter than the longest deadline are left out with a ``note``. ``nodes``: machines
    that the job needs at once; by default the largest count in each trace. ``starts``: moments,
    evenly spread. ``foresight``: also the bound, which is slow; ``progress`` gets the number of
    further starts for which it is known, and the total. Raises RequestError.
    """
    if not policies:
        raise RequestError("policies", "", f"one or more of {', '.join(DEADLINE_POLICIES)}")
    chosen = {name: parse_deadline_policy(name) for name in policies}
    refuse_outside("starts", starts, 1)
    check_nodes(nodes)
    if not slacks:
        raise RequestError("slack", slacks, "one number or more")
    deadlines = {slack: job.deadline_s(slack) for slack in slacks}
    longest = max(deadlines.values())
    pools: dict[float, list[_Pool]] = {}
    for trace in traces:
        length = len(trace.counts) * trace.gap_s
        if length >= longest:
            up = trace.counts >= max(trace.nodes if nodes is None else nodes, 1)
            last = len(up) - math.ceil(longest / trace.gap_s - 1e-9)
            # The same starts for every slack, so that rows can be compared.
            begin = np.unique(np.linspace(0, last, starts).astype(np.int64))
            pools.setdefault(trace.gap_s, []).append(_Pool(trace.path, trace.gap_s, up, begin))
        elif note:
            note(
                f"{trace.path} is left out: {length / 3600:.1f} h, the longest deadline is"
                f" {longest / 3600:.1f} h"
            )
    if not pools:
        raise RequestError(
            "work",
            format_seconds(job.work_s),
            f"less: no trace is as long as the longest deadline, {format_seconds(longest)}",
        )
    rows: list[DeadlineRow] = []
    bounds = len(slacks) * sum(len(p.begin) for own in pools.values() for p in own)
    tell = progress and partial(progress, total=bounds)
    for number, (gap_s, own) in enumerate(pools.items(), start=1):
        if say:
            say(f"[{number}/{len(pools)}] {len(own)} traces with a tick each {gap_s:g} s")
        for name, policy in chosen.items():
            rows += _rows(own, job, deadlines, name, policy)
        for pool in own if foresight else ():
            rows += _bounds(pool, job, deadlines, tell)
    order = {trace.path: number for number, trace in enumerate(traces)}
    rows.sort(key=lambda r: (order[r.trace] if r.trace else -1, slacks.index(r.slack)))
    means = []
    for slack, name in dict.fromkeys((r.slack, r.policy) for r in rows):
        alike = [r for r in rows if (r.slack, r.policy) == (slack, name)]
        counts = sum(r.starts for r in alike), sum(r.missed for r in alike)
        averages = (fmean(getattr(r, key) for r in alike) for key in _AVERAGED)
        means.append(DeadlineRow(None, slack, name, *counts, *averages))
    return (*rows, *means)


_AVERAGED = ("cost", "cost_p95", "on_demand", "preemptions", "took")


@dataclass(frozen=True)
class _Pool:
    path: Path
    gap_s: float
    up: BoolArray  # per tick
    begin: IntArray  # ticks at which jobs start


def _rows(
    pools: Sequence[_Pool],
    job: DeadlineJob,
    deadlines: Mapping[float, float],
    name: str,
    policy: DeadlinePolicy,
) -> list[DeadlineRow]:
    ends = np.cumsum([len(p.up) for p in pools])
    starts = np.concatenate([p.begin + end - len(p.up) for p, end in zip(pools, ends, strict=True)])
    ends = np.tile(np.repeat(ends, [len(p.begin) for p in pools]), len(deadlines))
    deadline_s = np.repeat(list(deadlines.values()), len(starts))
    up = np.concatenate([p.up for p in pools])
    run = replay(policy, up, pools[0].gap_s, job, np.tile(starts, len(deadlines)), deadline_s, ends)
    shares = (
        run.on_demand_s / (run.spot_s + run.on_demand_s),
        run.preemptions,
        run.took_s / deadline_s,
    )
    found = []
    at = 0
    for slack in deadlines:
        for pool in pools:
            own = slice(at, at := at + len(pool.begin))
            late = int(run.late[own].sum())
            means = (float(each[own].mean()) for each in shares)
            found.append(
                DeadlineRow(
                    pool.path, slack, name, len(pool.begin), late, *_cost(run.cost[own]), *means
                )
            )
    return found


def _cost(cost: FloatArray) -> tuple[float, float]:
    return float(cost.mean()), float(np.percentile(cost, 95))


def _bounds(
    pool: _Pool,
    job: DeadlineJob,
    deadlines: Mapping[float, float],
    progress: Callable[[int], object] | None,
) -> list[DeadlineRow]:
    found = []
    for slack, deadline_s in deadlines.items():
        windows = pool.up[
            pool.begin[:, None] + np.arange(math.ceil(deadline_s / pool.gap_s - 1e-9))
        ]
        cost = least_cost(
            windows,
            pool.gap_s,
            work_s=job.work_s,  # it knows when to save, and that costs it nothing
            deadline_s=deadline_s,
            restart_s=job.restart_s,
            spot_price=job.price_ratio,
            progress=progress,
        )
        found.append(
            DeadlineRow(pool.path, slack, FORESIGHT, len(cost), 0, *_cost(cost / job.on_demand_s))
        )
    return found
