"""Price against speed: the axes, and which machines are drawn; plan_page.html.j2 draws them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.interval import Interval
from deepvm.planner.search.frontier import Frontier, Machines
from deepvm.reports.charts import round_up
from deepvm.reports.text import short

_LEFT = 72
_RIGHT = 944
_TOP = 28
_BOTTOM = 376
_DOT_PX = 3
_TICKS = 6
_SLIDER_STEPS = 500


@dataclass(frozen=True)
class Axis:
    """From 0 to ``most``, between two positions in pixels."""

    most: float
    start: int
    end: int

    def at(self, value: float) -> float:
        """The position of a value."""
        return round(self.start + (self.end - self.start) * value / self.most, 1)

    def ticks(self) -> list[tuple[float, str]]:
        """Round values and their labels."""
        step = round_up(self.most / _TICKS, (1, 2, 2.5, 5, 10))
        return [(i * step, short(i * step)) for i in range(int(self.most / step * 1.0001) + 1)]


@dataclass(frozen=True)
class Dot:
    """A machine that is drawn: its type's number, VMs in each market, $/h and speed."""

    type_index: int
    spot: int
    on_demand: int
    usd: float
    speed: float


@dataclass(frozen=True)
class FrontierChart:
    """What is drawn of a frontier.

    Attributes:
        spans: from and up to which budget a plan is the best, and its speed. best: at the budget.
        machines, far: those that are trusted, and those that are not.
    """

    x: Axis
    y: Axis
    budget: float
    best: Recommendation | None
    spans: list[tuple[float, float, Interval]]
    machines: list[Dot]
    far: list[Dot]

    @classmethod
    def of(cls, frontier: Frontier, budget: float) -> FrontierChart:
        """Axes hold the budget, all steps with their intervals, and all trusted machines."""
        machines = frontier.machines
        most = float(frontier.most) or 1.0
        last = float(machines.usd_per_hour.max(initial=0.0))
        x = Axis(min(most, max(last, budget) * 1.05) or 1.0, _LEFT, _RIGHT)
        trusted = machines.effective[machines.trusted]
        highs = [step.recommendation.kept_throughput.high for step in frontier.steps]
        y = Axis(max([*highs, float(trusted.max(initial=0.0))]) * 1.04 or 1.0, _BOTTOM, _TOP)
        steps = [step for step in frontier.steps if float(step.budget) <= x.most]
        starts = [float(step.budget) for step in steps]
        speeds = [step.recommendation.kept_throughput for step in steps]
        spans = list(zip(starts, [*starts[1:], x.most], speeds, strict=False))
        bests = [step for step in steps if float(step.budget) <= budget]
        best = bests[-1].recommendation if bests else None
        near, far = (_dots(machines, x, y, trusted=trusted) for trusted in (True, False))
        return cls(x, y, budget, best, spans, near, far)

    @property
    def slider_step(self) -> float:
        """A round amount, $/h."""
        return round_up(self.x.most / _SLIDER_STEPS, (1, 2, 5, 10))


def _dots(machines: Machines, x: Axis, y: Axis, *, trusted: bool) -> list[Dot]:
    """One machine for each cell of the picture, the cheapest."""
    usd = machines.usd_per_hour
    speed = machines.effective
    inside = (usd <= x.most) & (speed > 0) & (speed <= y.most) & (machines.trusted == trusted)
    rows = np.flatnonzero(inside)
    across = (_RIGHT - _LEFT) * usd[rows] / x.most // _DOT_PX
    up = (_BOTTOM - _TOP) * speed[rows] / y.most // _DOT_PX
    first = np.unique(np.stack([across, up]), axis=1, return_index=True)[1]
    figures = (machines.type_index, machines.spot, machines.on_demand, usd, speed)
    columns = [column[rows[np.sort(first)]].tolist() for column in figures]
    return [
        Dot(kind, spot, on_demand, float(f"{price:.5g}"), float(f"{rate:.5g}"))
        for kind, spot, on_demand, price, rate in zip(*columns, strict=True)
    ]
