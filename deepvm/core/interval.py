"""A figure with its doubt: every speed that is not exact is printed as low, value, high."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

Z80 = 1.2815515655446004
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 80 % interval, ``low <= value <= high``."""

    low: float
    value: float
    high: float

    @classmethod
    def of_log(cls, value: float, sd: float) -> Interval:
        """Around a median, given the standard deviation of its logarithm."""
        factor = math.exp(Z80 * sd)
        return cls(value / factor, value, value * factor)

    @classmethod
    def exact(cls, value: float) -> Interval:
        """Without doubt."""
        return cls(value, value, value)

    def scaled(self, factor: float) -> Interval:
        """All three times a factor above 0."""
        return Interval(self.low * factor, self.value * factor, self.high * factor)

    def inverse(self, numerator: float = 1.0) -> Interval:
        """``numerator`` over it: seconds from a rate."""
        return Interval(numerator / self.high, numerator / self.value, numerator / self.low)

    @property
    def relative(self) -> float:
        """Half the width as a share of the value, on a log scale: 0.1 is about 10 % either way."""
        if self.low > 0:
            return math.sqrt(self.high / self.low) - 1
        return math.inf

    def as_document(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)
