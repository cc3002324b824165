"""The axis of ratios on the page of a lab."""

from __future__ import annotations

from collections.abc import Iterable

from deepvm.lab.results import Estimate
from deepvm.reports.charts import Scale

_SHOWN_FACTOR = 2.0
"""Of an interval, what is within this factor of the means is drawn: those of two or three pairs
would hide everything else."""


def ratio_scale(ratios: Iterable[Estimate]) -> Scale:
    """An axis with all ratios, 1, and what is drawn of their intervals."""
    estimates = list(ratios)
    means = [1.0, *(one.mean for one in estimates)]
    lowest = min(means) / _SHOWN_FACTOR
    highest = max(means) * _SHOWN_FACTOR
    ends = [end for one in estimates for end in (one.low, one.high) if end is not None]
    return Scale.of([*means, *(min(max(end, lowest), highest) for end in ends)], around=1.0)
