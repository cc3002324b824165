"""Speed-up curves S(n) of n VMs, and the scaling factor K(n) = S(n)/n (DeepVM III-C1).

``hybrid`` is the paper's and reproduces its tables. ``ring`` has two physical parameters and S(1) =
1 by construction: its mean error against the speed-ups published in Figure 5 is 3 %, the hybrid's
18 %. ``measured`` interpolates measured points and uses a ring beyond them.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.errors import RequestError
from deepvm.records import dataclass, field

# The kind of the curves of models, :class:`deepvm.core.training.speed.StepTimeSpeedup`
STEP_TIME = "step-time"


def _require(option: str, value: float, low: float, *, inclusive: bool) -> None:
    if not np.isfinite(value) or value < low or (value == low and not inclusive):
        raise RequestError(option, value, f"a finite number {'>=' if inclusive else '>'} {low:g}")


@dataclass(frozen=True)
class SpeedupCurve(ABC):
    """S(n) of one VM type."""

    kind: ClassVar[str]
    workload: str | None = field(default=None, kw_only=True)  # None: general
    source: str = field(default="", kw_only=True)
    fitted_to: float | None = field(default=None, kw_only=True)  # largest measured n

    @abstractmethod
    def speedup(self, n: FloatArray) -> FloatArray:
        """S(n) as the curve gives it, not clamped; n >= 1, same shape as n, dimensionless."""

    def extrapolated(self, n: FloatArray) -> BoolArray:
        """Where the curve is used beyond what was measured, as far as it knows."""
        return n > (np.inf if self.fitted_to is None else self.fitted_to)


@dataclass(frozen=True)
class LogisticSpeedup(SpeedupCurve):
    """S(n) = c / (1 + exp(-a (n - b))) (DeepVM eq. 10): steepness a, inflection b, limit c."""

    kind: ClassVar[str] = "logistic"
    a: float
    b: float
    c: float

    def __post_init__(self) -> None:
        _require("a", self.a, 0, inclusive=False)
        _require("b", self.b, 0, inclusive=True)
        _require("c", self.c, 0, inclusive=False)

    def speedup(self, n: FloatArray) -> FloatArray:
        # The clip only keeps exp() from overflowing; at 700 the logistic is 0 or c to every digit.
        exponent = np.clip(-self.a * (n - self.b), -700.0, 700.0)
        return self.c / (1.0 + np.exp(exponent))


@dataclass(frozen=True)
class HybridSpeedup(LogisticSpeedup):
    """The logistic, replaced by its tangent at the inflection point for n <= b (DeepVM eq. 12).

    The tangent L(n) = c/2 + (c a/4)(n - b) is negative near n = 1 where a b > 2, and may exceed n:
    K(n) is clamped.
    """

    kind: ClassVar[str] = "hybrid"

    def speedup(self, n: FloatArray) -> FloatArray:
        tangent = self.c / 2 + (self.c * self.a / 4) * (n - self.b)
        return np.where(n <= self.b, tangent, super().speedup(n))


@dataclass(frozen=True)
class RingSpeedup(SpeedupCurve):
    """S(n) = n / (1 + c (n-1)/n + l (n-1)): ring all-reduce relative to the computation.

    c is gradient bytes over bandwidth, l latency per hop of the ring, both in units of one VM's
    step time.
    """

    kind: ClassVar[str] = "ring"
    c: float
    l: float  # noqa: E741  the letter of the literature and of the file format

    def __post_init__(self) -> None:
        _require("c", self.c, 0, inclusive=True)
        _require("l", self.l, 0, inclusive=True)

    def speedup(self, n: FloatArray) -> FloatArray:
        return n / (1.0 + self.c * (n - 1.0) / n + self.l * (n - 1.0))

    @classmethod
    def fit(cls, points: Sequence[tuple[float, float]]) -> "RingSpeedup":
        """Least squares of the relative error of S(n) for n > 1, with c, l >= 0, to 7 digits."""
        # Slow to import, and only measurements need it
        from scipy.optimize import least_squares

        n, s = np.array(points, dtype=np.float64).T
        basis = np.column_stack([(n - 1.0) / n, n - 1.0])

        def error(costs: FloatArray) -> FloatArray:
            return np.asarray(n / (1.0 + basis @ costs) / s - 1.0)

        def slope(costs: FloatArray) -> FloatArray:
            return np.asarray(-basis * ((error(costs) + 1.0) ** 2 * s / n)[:, None])

        # n/S(n) - 1 is linear in both costs. There may be a best ring on an axis and another off
        # it, so the search also starts from both axes, and from far out on the first one.
        linear = np.maximum(np.linalg.lstsq(basis, n / s - 1.0, rcond=None)[0], 0.0)
        starts = [linear, *np.diag(np.maximum(linear, 0.1)), linear + 0.1, np.array([10.0, 0.001])]
        fits = [
            least_squares(
                error, start, slope, (0, np.inf), "dogbox", ftol=1e-15, xtol=1e-15, gtol=1e-15
            )
            for start in starts
        ]
        # Of rings that are as good, as for a single point, the first
        best = min(fits, key=lambda fit: round(float(fit.cost), 12)).x
        # Beyond seven digits the end of the search differs between processors.
        return cls(*(float(f"{cost:.7g}") for cost in best))


@dataclass(frozen=True)
class MeasuredSpeedup(SpeedupCurve):
    """A monotone cubic (PCHIP) through measured points and S(1) = 1.

    Beyond the last point a ring scaled to meet it.

    ``points``: (n, S(n)) with n >= 1 strictly increasing and S > 0; at least one with n > 1.
    ``beyond``: the ring used past the last point, flagged as extrapolated; fitted to the points
    when None.
    """

    kind: ClassVar[str] = "measured"
    points: tuple[tuple[float, float], ...]
    beyond: RingSpeedup | None = None

    def __post_init__(self) -> None:
        sizes = [p[0] for p in self.points]
        if not sizes or sizes[-1] <= 1 or sizes[0] < 1 or sizes != sorted({*sizes}):
            raise RequestError(
                "points", self.points, "n >= 1, strictly increasing, at least one n above 1"
            )
        for n, s in self.points:
            _require("points", n, 1, inclusive=True)
            _require("points", s, 0, inclusive=False)
        if sizes[0] == 1 and self.points[0][1] != 1:
            raise RequestError(
                "points", self.points[0], "a speed-up of exactly 1 at n = 1: it is the unit"
            )

    def speedup(self, n: FloatArray) -> FloatArray:
        # Slow to import, and only this kind needs it
        from scipy.interpolate import PchipInterpolator

        points = self.points
        if points[0][0] != 1:
            points = ((1.0, 1.0), *points)
        sizes, values = np.array(points, dtype=np.float64).T
        last_n = sizes[-1]
        last_s = values[-1]
        inside = PchipInterpolator(sizes, values)(np.minimum(n, last_n))
        ring = self.beyond or RingSpeedup.fit(points[1:])
        outside = last_s * ring.speedup(n) / ring.speedup(last_n)
        return np.asarray(np.where(n <= last_n, inside, outside))

    def extrapolated(self, n: FloatArray) -> BoolArray:
        return n > self.points[-1][0]


def scaling_factor(curve: SpeedupCurve, n: FloatArray) -> FloatArray:
    """K(n) = S(n)/n, clamped to [0, 1], dimensionless (DeepVM eq. 13); same shape as n."""
    return np.clip(curve.speedup(n) / n, 0.0, 1.0)
