"""Axes of the pictures on pages; ``templates/chart.html.j2`` draws them.

Positions are shares of the width, so that texts keep their size in any window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from deepvm.core.units import elapsed

_DAY_S = 86_400
_SPANS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800]
_SPANS_S += [3600, 7200, 10_800, 21_600, 43_200]
_TICKS = 5
"""At most so many spans between labels: on a telephone more would overlap."""


@dataclass(frozen=True)
class Scale:
    """An axis between two values."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], *, around: float) -> Scale:
        """One with all values and ``around`` on it, and a margin."""
        low = min([around, *values])
        high = max([around, *values])
        margin = 0.06 * (high - low) or 0.05 * abs(around) or 1.0
        return cls(low - margin, high + margin)

    @classmethod
    def up_to(cls, limit: float) -> Scale:
        """One from 0 to a round value at or above ``limit``."""
        # Four steps and a little: no fifth one because of rounding
        step = round_up(limit / 4)
        return cls(0.0, step * math.ceil(limit / step * 0.9999))

    def share(self, value: float) -> float:
        """Position of a value, from 0 to 1; values beyond the ends are cut off."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self, count: float = 3.5) -> list[tuple[float, str]]:
        """Round values with their labels, not many more than ``count``."""
        step = round_up((self.high - self.low) / count)
        # Ends that rounding puts a little beyond a label have it, too
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(n * step, format_amount(n * step, step)) for n in range(first, last + 1)]


def round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999)


def format_amount(value: float, step: float) -> str:
    """A label of an axis whose labels are ``step`` apart."""
    if not value:
        return "0"
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size and step >= size / 10:
            return f"{value / size:g}{letter}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


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

    def elapsed(self, at_s: float | None) -> str:
        """A time as the page writes it, such as ``1:05:20`` after the start."""
        if at_s is None:
            return "-"
        return elapsed(at_s - self.start_s)

    def ticks(self) -> list[tuple[float, str]]:
        """Shares to label, and the labels."""
        days_s = _DAY_S * round_up(self.span_s / _TICKS / _DAY_S)
        step = next((s for s in _SPANS_S if self.span_s / s <= _TICKS), days_s)
        count = int(self.span_s / step * 1.0001) + 1
        return [(i * step / self.span_s, _tick(i * step, step)) for i in range(count)]


def _tick(seconds: float, step: float) -> str:
    if not seconds:
        return "0"
    if step >= _DAY_S:
        return f"{seconds / _DAY_S:g} d"
    if step >= 3600 or (seconds >= 3600 and seconds % 3600 == 0):
        return f"{seconds / 3600:g} h"
    if step >= 60:
        return f"{seconds / 60:g} min"
    if seconds >= 60:
        return elapsed(seconds)
    return f"{seconds:g} s"
