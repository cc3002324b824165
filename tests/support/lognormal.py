"""An oracle for speeds with intervals: the lognormal distribution that an interval describes."""

from __future__ import annotations

import math

from deepvm.core.units import Z80, Interval


def probability_above(interval: Interval, value: float) -> float:
    """Probability that a lognormal figure exceeds a value > 0; 0 or 1 if it is exact."""
    sd = math.log(interval.high / interval.low) / (2 * Z80)
    if sd == 0:
        return float(interval.value >= value)
    return 0.5 * math.erfc(math.log(value / interval.value) / (sd * math.sqrt(2)))
