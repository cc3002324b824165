"""Price against speed as a picture in a page: steps with their intervals, all machines, the budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from deepvm.core.interval import Interval
from deepvm.planner.columns import IntArray
from deepvm.planner.search.frontier import Frontier, Machines
from deepvm.reports.markup import Html, tag
from deepvm.reports.performance.predictions import short

WIDTH, HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 944, 28, 376
_CELL = 3
"""Pixels within which one machine stands for all."""
_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """An axis from 0 to ``most``, between two places in pixels."""

    most: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a value is, in pixels."""
        return self.start + (self.end - self.start) * value / self.most

    def ticks(self) -> list[float]:
        """Round values to label."""
        rough = self.most / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
        return [i * step for i in range(int(self.most / step * 1.0001) + 1)]

    def as_document(self) -> list[float]:
        """For the page's script."""
        return [self.most, self.start, self.end]


@dataclass(frozen=True)
class Chart:
    """A frontier and the axes that it is drawn on; ``title``: what a speed counts, in words."""

    frontier: Frontier
    budget: Decimal
    title: str
    x: Scale
    y: Scale
    machines: IntArray
    """Rows of the frontier's machines that are drawn."""

    @classmethod
    def of(cls, frontier: Frontier, budget: Decimal, title: str) -> Chart:
        """Axes that hold the budget, all steps with their intervals, and all machines that are trusted."""
        machines, most = frontier.machines, float(frontier.most) or 1.0
        last = float(machines.usd_per_hour.max(initial=0.0))
        x = Scale(min(most, max(last, float(budget)) * 1.05) or 1.0, _LEFT, _RIGHT)
        highs = [s.recommendation.kept_throughput.high for s in frontier.steps]
        trusted = machines.effective[machines.trusted]
        top = max([*highs, float(trusted.max(initial=0.0))], default=0.0) * 1.04 or 1.0
        y = Scale(top, _BOTTOM, _TOP)
        return cls(frontier, budget, title, x, y, _drawn(machines, x, y))

    def svg(self) -> Html:
        """The picture; a table says the same to those who do not see it."""
        steps = self.frontier.steps
        return tag(
            "svg",
            tag("title", "Price against speed", id="chart-title"),
            tag(
                "desc",
                f"The best plan of each budget; {len(steps)} steps, which the table below lists.",
                id="chart-desc",
            ),
            *self._axes(),
            self._points(trusted=False),
            self._points(trusted=True),
            tag("path", class_="band", d=self._band()),
            tag("path", class_="frontier", d=self._line()),
            *self._budget(),
            id="chart",
            viewBox=f"0 0 {WIDTH} {HEIGHT}",
            role="img",
            aria_labelledby="chart-title chart-desc",
        )

    def machines_document(self) -> list[list[Any]]:
        """Type, spot VMs, on-demand VMs, $/h and speed of each machine that is drawn."""
        m = self.frontier.machines
        return [
            [
                int(m.type_index[i]),
                int(m.spot[i]),
                int(m.on_demand[i]),
                _round(m.usd_per_hour[i]),
                _round(m.effective[i]),
            ]
            for i in self.machines.tolist()
        ]

    def _axes(self) -> Iterator[Html]:
        for value in self.x.ticks():
            at = _px(self.x.at(value))
            yield tag("line", class_="grid", x1=at, x2=at, y1=_TOP, y2=_BOTTOM)
            yield tag("text", f"{value:g}", x=at, y=_BOTTOM + 18, text_anchor="middle")
        for value in self.y.ticks():
            at = _px(self.y.at(value))
            yield tag("line", class_="grid", x1=_LEFT, x2=_RIGHT, y1=at, y2=at)
            yield tag(
                "text",
                short(value) if value else "0",
                x=_LEFT - 8,
                y=_px(self.y.at(value) + 4),
                text_anchor="end",
            )
        yield tag("text", "$/h", class_="axis", x=_RIGHT, y=_BOTTOM + 36, text_anchor="end")
        yield tag("text", self.title, class_="axis", x=_LEFT, y=_TOP - 12)

    def _points(self, *, trusted: bool) -> Html:
        m = self.frontier.machines
        rows = self.machines[m.trusted[self.machines] == trusted].tolist()
        dots = (
            f"M{_px(self.x.at(m.usd_per_hour[i]))} {_px(self.y.at(m.effective[i]))}h0" for i in rows
        )
        return tag("path", class_="machines" if trusted else "machines far", d="".join(dots))

    def _corners(self) -> list[tuple[str, str, Interval]]:
        """From where to where each step goes, in pixels, and how fast it is."""
        steps = [s for s in self.frontier.steps if float(s.budget) <= self.x.most]
        ends = [*(float(s.budget) for s in steps[1:]), self.x.most]
        return [
            (_px(self.x.at(float(s.budget))), _px(self.x.at(end)), s.recommendation.kept_throughput)
            for s, end in zip(steps, ends, strict=True)
        ]

    def _line(self) -> str:
        drawn = [
            f"{'V' if i else f'M{x0} '}{_px(self.y.at(v.value))}H{x1}"
            for i, (x0, x1, v) in enumerate(self._corners())
        ]
        return "".join(drawn)

    def _band(self) -> str:
        boxes = (
            f"M{x0} {_px(self.y.at(v.high))}H{x1}V{_px(self.y.at(v.low))}H{x0}z"
            for x0, x1, v in self._corners()
        )
        return "".join(boxes)

    def _budget(self) -> Iterator[Html]:
        x, step = self.x.at(float(self.budget)), self.frontier.at(self.budget)
        ends = {"x1": _px(x), "x2": _px(x), "y1": str(_TOP), "y2": str(_BOTTOM)}
        yield tag("line", class_="budget", **ends)
        beside, anchor = (-6, "end") if x > (_LEFT + _RIGHT) * 0.6 else (6, "start")
        label = f"budget {self.budget.normalize():f} $/h"
        yield tag(
            "text", label, class_="budget", x=_px(x + beside), y=_TOP + 14, text_anchor=anchor
        )
        yield tag("line", id="chosen-line", class_="chosen", visibility="hidden", **ends)
        there: tuple[float, float] = (_LEFT, _BOTTOM)
        hidden: str | None = "hidden"
        if step is not None:
            best = step.recommendation
            there, hidden = (
                (
                    self.x.at(float(best.counted_usd_per_hour)),
                    self.y.at(best.kept_throughput.value),
                ),
                None,
            )
        yield tag(
            "circle",
            id="chosen",
            class_="chosen",
            cx=_px(there[0]),
            cy=_px(there[1]),
            r=6,
            visibility=hidden,
        )


def _drawn(machines: Machines, x: Scale, y: Scale) -> IntArray:
    """One machine for each cell of the picture, the cheapest."""
    inside = np.flatnonzero(
        (machines.usd_per_hour <= x.most)
        & (machines.effective > 0)
        & (machines.effective <= y.most)
    )
    across = ((x.end - x.start) * machines.usd_per_hour[inside] / x.most) // _CELL
    up = ((y.start - y.end) * machines.effective[inside] / y.most) // _CELL
    cells = np.stack([across, up, machines.trusted[inside]])
    first = np.unique(cells, axis=1, return_index=True)[1]
    return np.asarray(inside[np.sort(first)])


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _round(value: float) -> float:
    return float(f"{value:.5g}")
