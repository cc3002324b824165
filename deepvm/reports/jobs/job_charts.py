"""Steps and money of a job over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from deepvm.core.units import counted
from deepvm.jobs.history.downtime import Downtime
from deepvm.jobs.history.history import EventRow, Sample
from deepvm.jobs.history.timeline import CostPoint, Loss, losses
from deepvm.reports.charts import HEIGHT, Line, LineChart, Mark, Times
from deepvm.reports.jobs.events import words

_RUG = 10
"""Height of the ticks of versions."""
_BUCKETS = 400
"""Places for marks: more versions than that are drawn together."""
_FAR = 3.0
"""A budget of more than so many times what was paid would make the other lines flat."""
_MIN_USD = 0.0001
"""Prices are given so exactly: the axis of a picture ends there, at least."""


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
    lines = [Line("steps", "step", points)]
    keys = [("steps", "steps done")]
    if total is not None:
        ends = [(0.0, float(total)), (times.span_s, float(total))]
        lines.append(Line("goal", "all steps", ends))
        keys.append(("goal", "all steps"))
    saves = [event for event in events if event.kind == "safe"]
    reasons = {save.facts["reason"] for save in saves}
    for reason, text in words().saved.items():
        if reason in reasons:
            keys.append((f"saved {reason}", f"saved {text}"))
    lost = losses(samples)
    if lost:
        keys.append(("loss", "steps lost"))
    if without:
        keys.append(("downtime", "no controller: not known in between"))
    label = (
        f"Steps over time: {counted(samples[-1].step, 'step')},"
        f" {counted(len(saves), 'version')} saved,"
        f" {counted(sum(loss.lost for loss in lost), 'step')} lost."
        " The table below says the same."
    )
    limit = max(float(total or 0), *(step for _, step in points), 1.0)
    chart = LineChart(label, times, lines, keys, limit)
    marks = [*_bands(without, times), *_rug(saves, times), *_falls(lost, chart)]
    return LineChart(label, times, lines, keys, limit, marks)


def _bands(without: Sequence[Downtime], times: Times) -> Iterator[Mark]:
    for one in without:
        tip = f"no controller\nfrom {times.elapsed(one.since_s)} to {times.elapsed(one.until_s)}"
        since = times.share(one.since_s)
        until = times.share(one.until_s)
        yield Mark("bar downtime", since, 0, tip, until - since, HEIGHT)


def _rug(saves: Sequence[EventRow], times: Times) -> Iterator[Mark]:
    """A tick for each version, or for all that are at nearly the same place."""
    groups: dict[tuple[int, str], list[EventRow]] = {}
    for save in saves:
        bucket = round(times.share(save.at_s) * _BUCKETS)
        groups.setdefault((bucket, str(save.facts["reason"])), []).append(save)
    for (_, reason), group in groups.items():
        last = group[-1]
        count = "version"
        if len(group) > 1:
            count = f"{len(group)} versions, the last"
        text = words().saved.get(reason, reason)
        tip = f"{count} {last.facts['version']}\nsaved {text}\nsafe at {times.elapsed(last.at_s)}"
        yield Mark(f"saved {reason}", times.share(last.at_s), HEIGHT - _RUG, tip, 0, _RUG)


def _falls(lost: Sequence[Loss], chart: LineChart) -> Iterator[Mark]:
    for loss in lost:
        at = chart.times.elapsed(loss.at_s)
        tip = f"{counted(loss.lost, 'step')} lost\ncontinues after step {loss.step}\nat {at}"
        peak = chart.y(loss.step + loss.lost)
        yield Mark("loss", chart.times.share(loss.at_s), peak - 3, tip, path="M-5 -9H5L0 0z")


def cost_chart(
    times: Times,
    points: Sequence[CostPoint],
    document: Mapping[str, float | None],
    budget: float | None,
) -> LineChart | None:
    """What was paid over time, what on-demand machines would have cost, and the budget.

    None where nothing was paid. A budget that is far above the rest is left out.
    """
    cost = float(document["cost_usd"] or 0.0)
    on_demand = document["on_demand_cost_usd"]
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
    return LineChart(label, times, lines, keys, limit)
