"""Steps and money of a job over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from deepvm.core.units import counted
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.downtime import Downtime
from deepvm.jobs.history.history import EventRow, Sample
from deepvm.reports.jobs.charts import Line, LineChart, Mark, Times, percent
from deepvm.reports.jobs.events import SAVED

HEIGHT, _RUG = 220, 10
_BUCKETS = 400
"""Places for marks: more versions than that are drawn together."""
_FAR = 3.0
"""A budget of more than so many times what was paid would make the other lines flat."""
_MIN_USD = 0.0001
"""Prices are given so exactly: the axis of a picture ends there, at least."""
_DOWN = "M-5 -9H5L0 0z"


@dataclass(frozen=True)
class Loss:
    """Steps that were done, and had to be done again."""

    at_s: float
    step: int
    lost: int


def losses(samples: Sequence[Sample]) -> list[Loss]:
    """Where a job fell back."""
    return [Loss(b.at_s, b.step, a.step - b.step) for a, b in pairwise(samples) if b.step < a.step]


def versions(events: Sequence[EventRow]) -> list[tuple[float, int, str]]:
    """When which version was safe, and why it was saved."""
    return [
        (event.at_s, int(event.facts["version"]), str(event.facts["reason"]))
        for event in events
        if event.kind == "safe"
    ]


def steps_chart(
    times: Times,
    samples: Sequence[Sample],
    events: Sequence[EventRow],
    total: int | None,
    without: Sequence[Downtime] = (),
) -> LineChart | None:
    """Steps over time; versions as ticks below, losses as marks; None before the first step.

    A band where there was no controller.
    """
    if not samples:
        return None
    points = [(s.at_s - times.start_s, float(s.step)) for s in samples]
    lines, keys = [Line("steps", "step", points)], [("steps", "steps done")]
    if total is not None:
        ends = [(0.0, float(total)), (times.span_s, float(total))]
        lines.append(Line("goal", "all steps", ends))
        keys.append(("goal", "all steps"))
    saved, lost = versions(events), losses(samples)
    reasons = {reason for *_, reason in saved}
    keys += [(f"saved {kind}", f"saved {SAVED[kind]}") for kind in SAVED if kind in reasons]
    if lost:
        keys.append(("loss", "steps lost"))
    if without:
        keys.append(("downtime", "no controller: not known in between"))
    label = (
        f"Steps over time: {counted(samples[-1].step, 'step')},"
        f" {counted(len(saved), 'version')} saved, {counted(sum(x.lost for x in lost), 'step')}"
        " lost. The table below says the same."
    )
    limit = max(float(total or 0), *(step for _, step in points), 1.0)
    chart = LineChart(label, times, lines, keys, limit, height=HEIGHT)
    marks = [*_bands(without, times), *_rug(saved, times)]
    marks += [_loss_mark(loss, chart) for loss in lost]
    return LineChart(label, times, lines, keys, limit, marks, HEIGHT)


def _bands(without: Sequence[Downtime], times: Times) -> Iterator[Mark]:
    for one in without:
        since, until = times.elapsed(one.since_s), times.elapsed(one.until_s)
        tip = f"no controller\nfrom {since} to {until}"
        width = times.width(one.since_s, one.until_s)
        yield Mark("bar downtime", times.x(one.since_s), 0, tip, width, HEIGHT)


def _rug(saved: Sequence[tuple[float, int, str]], times: Times) -> Iterator[Mark]:
    """A tick for each version, or for all that are at nearly the same place."""
    groups: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for at_s, version, reason in saved:
        bucket = round(times.share(at_s) * _BUCKETS)
        groups.setdefault((bucket, reason), []).append((at_s, version))
    for (_, reason), group in groups.items():
        at_s, version = group[-1]
        count = "version"
        if len(group) > 1:
            count = f"{len(group)} versions, the last"
        tip = f"{count} {version}\nsaved {SAVED.get(reason, reason)}\nsafe at {times.elapsed(at_s)}"
        x = percent(times.share(at_s))
        yield Mark(f"saved {reason}", x, HEIGHT - _RUG, tip, "2", _RUG)


def _loss_mark(loss: Loss, chart: LineChart) -> Mark:
    at = chart.times.elapsed(loss.at_s)
    tip = f"{counted(loss.lost, 'step')} lost\ncontinues after step {loss.step}\nat {at}"
    peak = chart.y(loss.step + loss.lost)
    return Mark("loss", chart.times.x(loss.at_s), peak - 3, tip, path=_DOWN)


class CostPoint(NamedTuple):
    """Where the line of money bends: seconds after the start, and what had been paid by then.

    Of that, for heads; and hours of machines that train or keep versions.
    """

    x_s: float
    usd: float
    head_usd: float
    hours: float


def paid(world: JobState, times: Times) -> list[CostPoint]:
    """What was paid over time; at its end what the job has cost."""
    lives = [
        (m.launched_s, _end_s(m.ended_s, world), np.array((m.pool.usd_per_hour, 0.0, 1.0)))
        for m in world.machines.values()
        if m.launched_s is not None
    ]
    for head in world.heads:
        rate = np.array((head.usd_per_hour, head.usd_per_hour, 0.0))
        lives.append((head.launched_s, min(_end_s(head.ended_s, world), world.now_s), rate))
    changes = {times.start_s: np.zeros(3), times.end_s: np.zeros(3)}
    for start_s, end_s, rate in lives:
        if end_s > start_s:
            changes[start_s] = changes.get(start_s, 0.0) + rate
            changes[end_s] = changes.get(end_s, 0.0) - rate
    points, total, now, before_s = list[CostPoint](), np.zeros(3), np.zeros(3), min(changes)
    for at_s in sorted(changes):
        total = total + now * (at_s - before_s) / 3600
        points.append(CostPoint(at_s - times.start_s, *map(float, total)))
        now, before_s = now + changes[at_s], at_s
    return points


def _end_s(ended_s: float | None, world: JobState) -> float:
    return world.now_s if ended_s is None else ended_s


def cost_chart(
    times: Times, world: JobState, document: Mapping[str, float | None], budget: float | None
) -> LineChart | None:
    """What was paid over time, what on-demand machines would have cost, and the budget.

    None where nothing was paid. A budget that is far above the rest is left out.
    """
    points = paid(world, times)
    cost, on_demand = float(document["cost_usd"] or 0.0), document["on_demand_cost_usd"]
    last = points[-1]
    if not last.usd:
        return None
    lines = [Line("paid", "paid", [(p.x_s, p.usd) for p in points], 4, "$")]
    keys = [("paid", "paid")]
    if on_demand and last.hours:
        # The report's figure, shared out by machine hours
        rate = (on_demand - last.head_usd) / last.hours
        ends = [(p.x_s, p.head_usd + p.hours * rate) for p in points]
        lines.append(Line("demand", "on demand", ends, 4, "$"))
        keys.append(("demand", "the same machines on demand"))
    limit = max(cost, on_demand or 0.0, _MIN_USD)
    if budget is not None and budget <= _FAR * limit:
        limit = max(limit, budget)
        lines.append(Line("budget", "budget", [(0.0, budget), (times.span_s, budget)], 4, "$"))
        keys.append(("budget", f"budget, {budget:g} $"))
    label = f"Money over time: {cost:.4f} $ paid. The table below says the same."
    return LineChart(label, times, lines, keys, limit, height=HEIGHT)
