"""Steps and money of a job over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from deepvm.core.units import counted
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.downtime import Downtime
from deepvm.jobs.history.history import EventRow, Sample
from deepvm.reports.jobs.charts import (
    Line,
    Times,
    amounts,
    format_amount,
    height_of,
    legend,
    lines_chart,
    percent,
    shape,
)
from deepvm.reports.jobs.events import SAVED
from deepvm.reports.markup import Html, joined, tag

HEIGHT, _RUG = 220, 10
_BUCKETS = 400
"""Places for marks: more versions than that are drawn together."""
_FAR = 3.0
"""A budget of more than so many times what was paid would make the other lines flat."""
_LEAST_USD = 0.0001
"""That the axis of a picture ends at, at least: prices are given so exactly."""
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


def versions(events: Sequence[EventRow]) -> Iterator[tuple[float, int, str]]:
    """When which version was safe, and why it was saved."""
    for event in events:
        if event.kind == "safe":
            yield event.at_s, int(event.facts["version"]), str(event.facts["reason"])


def steps_chart(
    times: Times,
    samples: Sequence[Sample],
    events: Sequence[EventRow],
    total: int | None,
    without: Sequence[Downtime] = (),
) -> Html:
    """Steps over time; versions as ticks below, losses as marks.

    A band where there was no controller.
    """
    points = [(s.at_s - times.start_s, float(s.step)) for s in samples]
    if not points:
        return tag("p", "No step has been seen yet.")
    most = max(float(total or 0), *(step for _, step in points), 1.0)
    saved, lost = list(versions(events)), losses(samples)
    marks = [*_bands(without, times), *_rug(saved, times), *_lost(lost, times, most)]
    lines = [Line("steps", "step", points)]
    if total is not None:
        lines.append(Line("goal", "all steps", [(0.0, float(total)), (times.span_s, float(total))]))
    said = (
        f"Steps over time: {counted(int(points[-1][1]), 'step')}, {counted(len(saved), 'version')}"
        " saved"
    )
    label = (
        f"{said}, {counted(sum(x.lost for x in lost), 'step')} lost. The table below says the same."
    )
    chart = lines_chart(
        label, times, lines, marks, most=most, height=HEIGHT, letters=_letters(most)
    )
    kinds = [kind for kind in SAVED if any(reason == kind for *_, reason in saved)]
    keys = [("steps", "steps done"), *([("goal", "all steps")] if total is not None else [])]
    keys += [(f"saved {kind}", f"saved {SAVED[kind]}") for kind in kinds]
    keys += [("loss", "steps lost")] if lost else []
    keys += [("downtime", "no controller: not known in between")] if without else []
    return joined(legend(keys), chart)


def _bands(without: Sequence[Downtime], times: Times) -> Iterator[Html]:
    for one in without:
        width = percent(times.share(one.until_s) - times.share(one.since_s))
        tip = f"no controller\nfrom {times.elapsed(one.since_s)} to {times.elapsed(one.until_s)}"
        x = times.place(one.since_s)
        yield tag("rect", class_="bar downtime", x=x, y=0, width=width, height=HEIGHT, data_tip=tip)


def _letters(most: float) -> int:
    return 6 if most < 100_000 else 7


def _rug(saved: Sequence[tuple[float, int, str]], times: Times) -> Iterator[Html]:
    """A tick for each version, or for all that are at nearly the same place."""
    places: dict[tuple[int, str], list[tuple[float, int]]] = {}
    for at_s, version, reason in saved:
        places.setdefault((round(times.share(at_s) * _BUCKETS), reason), []).append((at_s, version))
    for (_, reason), found in places.items():
        at_s, version = found[-1]
        count = f"{len(found)} versions, the last" if len(found) > 1 else "version"
        tip = f"{count} {version}\nsaved {SAVED.get(reason, reason)}\nsafe at {times.elapsed(at_s)}"
        place = percent(times.share(at_s))
        yield tag(
            "line",
            class_=f"saved {reason}",
            x1=place,
            x2=place,
            y1=HEIGHT - _RUG,
            y2=HEIGHT,
            data_tip=tip,
        )


def _lost(lost: Sequence[Loss], times: Times, most: float) -> Iterator[Html]:
    for loss in lost:
        tip = (
            f"{counted(loss.lost, 'step')} lost\ngoes on after step {loss.step}\nat"
            f" {times.elapsed(loss.at_s)}"
        )
        peak = height_of(loss.step + loss.lost, most, HEIGHT)
        yield shape("mark loss", times.place(loss.at_s), peak - 3, _DOWN, tip)


class CostPoint(NamedTuple):
    """A bend of the line of money: seconds after the start, and by then, what was paid, of it for heads, machine hours.

    Machine hours are those of machines that train or keep versions.
    """

    x_s: float
    usd: float
    head_usd: float
    hours: float


def paid(world: JobState, times: Times) -> list[CostPoint]:
    """What was paid over time; at its end what the job has cost."""
    lives = [
        (
            m.launched_s,
            world.now_s if m.ended_s is None else m.ended_s,
            (m.pool.usd_per_hour, 0.0, 1.0),
        )
        for m in world.machines.values()
        if m.launched_s is not None
    ]
    for head in world.heads:
        end_s = world.now_s if head.ended_s is None else min(head.ended_s, world.now_s)
        lives.append((head.launched_s, end_s, (head.usd_per_hour, head.usd_per_hour, 0.0)))
    changes: dict[float, list[tuple[float, tuple[float, float, float]]]] = {
        times.start_s: [],
        times.end_s: [],
    }
    for start_s, end_s, rates in lives:
        if end_s > start_s:
            changes.setdefault(start_s, []).append((1.0, rates))
            changes.setdefault(end_s, []).append((-1.0, rates))
    found, sums, now = list[CostPoint](), (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)
    before_s = min(changes)
    for at_s in sorted(changes):
        passed = (at_s - before_s) / 3600
        sums = (sums[0] + now[0] * passed, sums[1] + now[1] * passed, sums[2] + now[2] * passed)
        found.append(CostPoint(at_s - times.start_s, *sums))
        for sign, rates in changes[at_s]:
            now = (now[0] + sign * rates[0], now[1] + sign * rates[1], now[2] + sign * rates[2])
        before_s = at_s
    return found


def cost_chart(
    times: Times, world: JobState, document: Mapping[str, float | None], budget: float | None
) -> Html:
    """Money over time: what was paid, what on-demand machines would have cost, what may be paid in all."""
    bends = paid(world, times)
    cost, on_demand = float(document["cost_usd"] or 0.0), document["on_demand_cost_usd"]
    if not (last := bends[-1]).usd:
        return tag("p", "Nothing has been paid yet.")
    lines = [Line("paid", "paid", [(b.x_s, b.usd) for b in bends], 4, "$")]
    if on_demand and last.hours:
        # The report's figure, shared out by machine hours
        each = (on_demand - last.head_usd) / last.hours
        lines.append(
            Line(
                "demand", "on demand", [(b.x_s, b.head_usd + b.hours * each) for b in bends], 4, "$"
            )
        )
    keys = [
        ("paid", "paid"),
        *([("demand", "the same machines on demand")] if len(lines) > 1 else []),
    ]
    most, far = max(cost, on_demand or 0.0, _LEAST_USD), list[Html]()
    if budget is not None and budget <= _FAR * most:
        most = max(most, budget)
        lines.append(Line("budget", "budget", [(0.0, budget), (times.span_s, budget)], 4, "$"))
        keys.append(("budget", f"budget, {budget:g} $"))
    elif budget is not None:
        far.append(
            tag("p", f"The budget of {budget:g} $ is far above this picture.", class_="quiet")
        )
    label = f"Money over time: {cost:.4f} $ paid. The table below says the same."
    rows = amounts(most)
    letters = max(5, *(len(format_amount(value, rows[1])) for value in rows))
    chart = lines_chart(label, times, lines, (), most=most, height=HEIGHT, letters=letters)
    return joined(legend(keys), chart, *far)
