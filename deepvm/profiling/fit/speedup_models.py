"""Four scaling laws, fitted to the same points for comparison.

Every law minimizes the sum of squared relative residuals S_law(n) / S(n) - 1: a measured time is
off by some per cent of itself.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit, leastsq
from scipy.special import expit

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.records import dataclass

# Relative. No clock measures a step better: below it, laws are compared by their parameters alone
SMALLEST_RESIDUAL = 1e-6

EVALUATIONS = 2000  # of a law in one search; then it is cut off
_TOLERANCE = 1e-14
_FAST_EVALUATIONS = 200
_CONVERGED = (1, 2, 3, 4)  # what leastsq returns when it is done
# A cost that is smaller is 0: the search stays inside its bounds
_NOTHING = 1e-9


@dataclass(frozen=True)
class Law:
    """A family of curves S(n)."""

    name: str
    parameters: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    speedup: Callable[..., FloatArray]
    # Of searches, given n and S(n)
    starts: Callable[[FloatArray, FloatArray], Sequence[Sequence[float]]]
    unit: bool = True  # S(1) = 1 for all parameters


@dataclass(frozen=True)
class FittedLaw:
    """A law with the parameters that fit best."""

    law: Law
    values: tuple[float, ...]
    mape: float  # mean absolute relative error: 0.03 is 3 %
    aicc: float | None
    converged: bool  # False: the search was cut off

    def speedup(self, n: FloatArray) -> FloatArray:
        return self.law.speedup(np.asarray(n, dtype=np.float64), *self.values)

    def at_bounds(self) -> dict[str, float]:
        rows = zip(self.law.parameters, self.values, self.law.low, self.law.high, strict=True)
        near = 1e-6
        return {
            name: v
            for name, v, low, high in rows
            if v <= low * (1 + near) or v >= high * (1 - near)
        }


def fit_law(law: Law, n: FloatArray, s: FloatArray) -> FittedLaw:
    """Fit one law to sizes ``n`` in VMs and speed-ups ``s`` above 0, both of shape (m,)."""
    values: tuple[float, ...]
    if law is ALPHA_BETA:
        # As for a ring's catalog points: the two must agree to the last digit
        ring = RingSpeedup.fit(list(zip(n, s, strict=True)))
        values = (ring.c, ring.l)
        converged = True
    else:
        starts = law.starts(n, s)
        ends = [end for start in starts if (end := search_fast(law, n, s, start)) is not None]
        near = min(
            ends or map(tuple, starts),
            key=lambda own: float(np.mean(residuals(law, own, n, s) ** 2)),
        )
        found = search(law, n, s, near)
        values = found or near
        converged = found is not None
    errors = residuals(law, values, n, s)
    score = aicc(float(np.mean(errors**2)), len(n), len(law.parameters))
    return FittedLaw(law, values, float(np.mean(np.abs(errors))), score, converged)


def search(
    law: Law, n: FloatArray, s: FloatArray, start: Sequence[float]
) -> tuple[float, ...] | None:
    """Minimize squared relative residuals within the bounds; None if the search was cut off."""
    options = {
        "max_nfev": EVALUATIONS,
        "x_scale": "jac",
        "ftol": _TOLERANCE,
        "xtol": _TOLERANCE,
        "gtol": _TOLERANCE,
    }
    with warnings.catch_warnings():
        # The covariance has no value when the law passes through every point
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            values, _ = curve_fit(
                law.speedup, n, s, p0=start, sigma=s, bounds=(law.low, law.high), **options
            )
        except RuntimeError:  # so curve_fit says that it did not converge
            return None
    return tuple(_settled(v) for v in values)


def search_fast(
    law: Law, n: FloatArray, s: FloatArray, start: Sequence[float]
) -> tuple[float, ...] | None:
    """As :func:`search`, to about five digits and in a tenth of the time.

    A parameter that crosses a bound is put there, and the others are searched again. Those that are
    never 0 are searched as logarithms: b and log(c) of an unbent logistic change along a line.
    """
    logs = np.array(law.low) > 0

    def scaled(given: Sequence[float]) -> FloatArray:
        return np.where(logs, np.log(np.where(logs, given, 1.0)), given)

    low, high, begin = scaled(law.low), scaled(law.high), scaled(start)
    values = begin.copy()
    free = np.arange(len(begin))

    def error(some: FloatArray) -> FloatArray:
        values[free] = some
        return residuals(law, np.where(logs, np.exp(values), values).tolist(), n, s)

    while len(free):
        with np.errstate(all="ignore"):
            found, _, _, _, end = leastsq(
                error, begin[free], maxfev=_FAST_EVALUATIONS, full_output=True
            )
        values[free] = np.clip(found, low[free], high[free])
        kept = values[free] == found
        if not np.isfinite(found).all() or (kept.all() and end not in _CONVERGED):
            return search(law, n, s, start)
        if kept.all():
            break
        free = free[kept]
    # exp(log(512)) may be a little more than 512.
    ended = np.clip(np.where(logs, np.exp(np.where(logs, values, 0.0)), values), law.low, law.high)
    return tuple(_settled(v) for v in ended)


def _settled(value: float) -> float:
    if value < _NOTHING:
        return 0.0
    return float(value)


def residuals(law: Law, values: Sequence[float], n: FloatArray, s: FloatArray) -> FloatArray:
    """Relative: S_law(n) / S(n) - 1, shape of n."""
    return law.speedup(n, *values) / s - 1.0


def aicc(mean_square: float, measurements: int, parameters: int) -> float | None:
    """AICc of m measurements: m ln(mean_square) + 2 k + 2 k (k + 1) / (m - k - 1); None for few.

    k = parameters + 1: the width of the noise is one.
    """
    k = parameters + 1
    if measurements - k - 1 <= 0:
        return None
    least = max(mean_square, SMALLEST_RESIDUAL**2)
    return measurements * math.log(least) + 2 * k + 2 * k * (k + 1) / (measurements - k - 1)


# The formulas again, not the curves of core: a search tries values that those refuse.
def _logistic(n: FloatArray, a: float, b: float, c: float) -> FloatArray:
    return np.asarray(c * expit(a * (n - b)))


def _logistic_starts(n: FloatArray, s: FloatArray) -> list[list[float]]:
    """log(S / (c - S)) = a (n - b) is linear in n, given c as a multiple of the largest S."""
    starts = []
    for times in (1.2, 1.01, 2.0, 10.0):
        c = times * float(s.max())
        slope, at_zero = np.polyfit(n, np.log(s / (c - s)), 1)
        # A curve that does not rise gets a slope of 0 or less, and no b.
        a = max(float(slope), LOGISTIC.low[0])
        start = np.clip([a, -float(at_zero) / a, c], LOGISTIC.low, LOGISTIC.high)
        starts.append([float(v) for v in start])
    return starts


def _usl(n: FloatArray, contention: float, coherence: float) -> FloatArray:
    return n / (1.0 + contention * (n - 1.0) + coherence * n * (n - 1.0))


def _ring(n: FloatArray, c: float, l: float) -> FloatArray:  # noqa: E741  the letter of the ring
    return n / (1.0 + c * (n - 1.0) / n + l * (n - 1.0))


def _cost_starts(count: int, n: FloatArray, s: FloatArray) -> list[list[float]]:
    """The cost per further VM, about n/S - 1, in the first parameter or shared among all."""
    more = n > 1
    cost = max(float(np.median((n[more] / s[more] - 1.0) / (n[more] - 1.0))), 1e-4)
    return [[cost, *[cost / 100] * (count - 1)], [cost / 2, *[cost / 20] * (count - 1)]]


# DeepVM eq. 10: a per VM, b in VMs, c the speed-up approached for large n.
LOGISTIC = Law(
    "logistic",
    ("a", "b", "c"),
    (1e-3, 0.0, 1e-2),
    (3.0, 128.0, 512.0),
    _logistic,
    _logistic_starts,
    unit=False,
)
# n / (1 + serial (n - 1)): the part of the work that no further VM takes over
AMDAHL = Law(
    "amdahl",
    ("serial",),
    (0.0,),
    (math.inf,),
    partial(_usl, coherence=0.0),
    partial(_cost_starts, 1),
)
# Gunther's universal scalability law, n / (1 + contention (n - 1) + coherence n (n - 1))
USL = Law(
    "usl",
    ("contention", "coherence"),
    (0.0, 0.0),
    (math.inf, math.inf),
    _usl,
    partial(_cost_starts, 2),
)
# Ring all-reduce (:class:`~deepvm.core.cluster.speedup.RingSpeedup`): c and l in step times
ALPHA_BETA = Law(
    "alpha-beta", ("c", "l"), (0.0, 0.0), (math.inf, math.inf), _ring, partial(_cost_starts, 2)
)

LAWS = (LOGISTIC, AMDAHL, USL, ALPHA_BETA)  # in the order of documents and tables


def comparable(laws: Sequence[FittedLaw]) -> bool:
    """Whether AICc can choose: a single law with a value would win whatever it is."""
    return sum(f.aicc is not None for f in laws) > 1


def best_first(laws: Sequence[FittedLaw]) -> list[FittedLaw]:
    """Laws by AICc, those without a value last; by their mean error where AICc cannot choose."""
    if not comparable(laws):
        return sorted(laws, key=lambda f: f.mape)
    return sorted(laws, key=lambda f: math.inf if f.aicc is None else f.aicc)
