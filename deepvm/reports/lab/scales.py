"""Axes of the charts of the page of a lab; templates/lab_charts.html.j2 draws them.

Positions are shares of the width, so that text keeps its size on a telephone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from deepvm.lab.results import Estimate

_SHOWN_FACTOR = 2.0
"""Of an interval, what is within this factor of the means is drawn: those of two or three pairs
would hide everything else."""


@dataclass(frozen=True)
class Scale:
    """An axis between two values."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], *, around: float) -> Scale:
        """One with all values and ``around`` on it, and a margin."""
        low, high = min([around, *values]), max([around, *values])
        margin = 0.06 * (high - low) or 0.05 * abs(around) or 1.0
        return cls(low - margin, high + margin)

    def share(self, value: float) -> float:
        """Position of a value, from 0 to 1; values beyond the ends are cut off."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def ticks(self) -> list[tuple[float, str]]:
        """At most four round values with their labels."""
        step = _round_up((self.high - self.low) / 3.5)
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [(n * step, f"{n * step + 0.0:.{digits}f}") for n in range(first, last + 1)]


def ratio_scale(ratios: Iterable[Estimate]) -> Scale:
    """An axis with all ratios, 1, and what is drawn of their intervals."""
    estimates = list(ratios)
    means = [1.0, *(one.mean for one in estimates)]
    lowest, highest = min(means) / _SHOWN_FACTOR, max(means) * _SHOWN_FACTOR
    ends = [end for one in estimates for end in (one.low, one.high) if end is not None]
    return Scale.of([*means, *(min(max(end, lowest), highest) for end in ends)], around=1.0)


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 ..."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= value * 0.999)
