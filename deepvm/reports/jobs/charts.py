"""Pictures of a job: places are shares of the width, so that texts keep their size in any window.

Here is where things are; ``templates/chart.html.j2`` draws them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_DAY_S = 86_400
_SPANS_S: tuple[float, ...] = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800)
_SPANS_S += (3600, 7200, 10_800, 21_600, 43_200)
_TICKS = 5
"""At most so many spans between labels: on a telephone more would overlap."""
LETTER_PX = 7.2
_LABEL_HEIGHT = 0.94
"""Share of a chart's height that its largest label is at: its text needs the rest."""


@dataclass(frozen=True)
class Times:
    """The axis of a job's time, from its start to its end or to now; seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def span_s(self) -> float:
        """Never 0: a job that was just submitted has a picture, too."""
        return max(self.end_s - self.start_s, 1.0)

    def share(self, at_s: float) -> float:
        """How far on the axis a time is, from 0 to 1."""
        return min(max((at_s - self.start_s) / self.span_s, 0.0), 1.0)

    def x(self, at_s: float) -> str:
        """The same as SVG writes it."""
        return percent(self.share(at_s))

    def width(self, since_s: float, until_s: float) -> str:
        return percent(self.share(until_s) - self.share(since_s))

    def elapsed(self, at_s: float) -> str:
        """A time as the page writes it, such as ``1:05:20`` after the start."""
        return elapsed(at_s - self.start_s)

    def ticks(self) -> list[tuple[float, str]]:
        """Seconds after the start to label, and the labels."""
        step = next((s for s in _SPANS_S if self.span_s / s <= _TICKS), None)
        if step is None:
            step = _DAY_S * round_up(self.span_s / _TICKS / _DAY_S)
        count = int(self.span_s / step * 1.0001) + 1
        return [(i * step, _tick(i * step, step)) for i in range(count)]

    def labels(self) -> list[tuple[str, str, str]]:
        """Place, text and anchor of each label."""
        return [
            (percent(at_s / self.span_s), text, _anchor(at_s / self.span_s))
            for at_s, text in self.ticks()
        ]


def _anchor(share: float) -> str:
    if not share:
        return "start"
    if share > 0.94:
        return "end"
    return "middle"


def percent(share: float) -> str:
    """A share of a width or height in SVG."""
    return f"{100 * share:.3f}".rstrip("0").rstrip(".") + "%"


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999)


def elapsed(seconds: float) -> str:
    """A time after the start: ``12.3 s``, ``4:05`` (minutes), ``1:04:05``, ``2 d 1:04:05``."""
    if seconds < 60:
        return f"{max(seconds, 0.0):.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02d}:{rest:02d}"
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    return f"{minutes}:{rest:02d}"


def _tick(seconds: float, step: float) -> str:
    if not seconds:
        return "0"
    if step >= _DAY_S:
        return f"{seconds / _DAY_S:g} d"
    if step >= 3600 or (seconds >= 3600 and seconds % 3600 == 0):
        return f"{seconds / 3600:g} h"
    if step >= 60:
        return f"{seconds / 60:g} min"
    if seconds < 60:
        return f"{seconds:g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def amounts(limit: float, ticks: int = 4) -> list[float]:
    """Round values from 0 to label an axis with, the last of them at or above ``limit``."""
    step = round_up(limit / ticks)
    return [i * step for i in range(math.ceil(limit / step * 0.9999) + 1)]


def format_amount(value: float, step: float) -> str:
    """A label of an axis whose labels are ``step`` apart."""
    if not value:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and step >= size / 10:
            return f"{value / size:g}{letter}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


@dataclass(frozen=True)
class Mark:
    """A bar, or with a ``path`` a shape that keeps its form in any window."""

    style: str
    x: str
    y: float
    tip: str
    width: str = ""
    height: float = 0.0
    path: str = ""


@dataclass(frozen=True)
class Line:
    """A line of a chart: seconds after the start and values, with a unit for its tips."""

    style: str
    name: str
    points: Sequence[tuple[float, float]]
    digits: int = 0
    unit: str = ""

    @property
    def path(self) -> str:
        return " ".join(f"{x:.6g},{y:.9g}" for x, y in self.points)


@dataclass(frozen=True)
class LineChart:
    """Lines over time with marks below them.

    ``limit``: the largest value to show; ``label``: all of it in words; ``keys``: of the legend,
    style and words.
    """

    label: str
    times: Times
    lines: Sequence[Line]
    keys: Sequence[tuple[str, str]]
    limit: float
    marks: Sequence[Mark] = ()
    height: int = 220

    @property
    def rows(self) -> list[tuple[float, str]]:
        """Heights and labels of the values' axis."""
        values = amounts(self.limit)
        return [(self.y(value), format_amount(value, values[1])) for value in values]

    def y(self, value: float) -> float:
        return round(self.height * (1 - value / amounts(self.limit)[-1] * _LABEL_HEIGHT), 1)

    @property
    def scale(self) -> str:
        """From seconds and values to a square of 1000."""
        across = 1000 / self.times.span_s
        up = -1000 * _LABEL_HEIGHT / amounts(self.limit)[-1]
        return f"matrix({across:.9g} 0 0 {up:.9g} 0 1000)"

    @property
    def names_px(self) -> int:
        return names_px([text for _, text in self.rows], 5)


def names_px(texts: Sequence[str], letters: int = 0) -> int:
    """The width of a column of labels."""
    return round(max([letters, *map(len, texts)]) * LETTER_PX) + 12
