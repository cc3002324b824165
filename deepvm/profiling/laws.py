"""Four laws of scaling, fitted to the same measurements under the same noise, so that they can be compared.

Every law minimises the sum of squared relative residuals S_law(n) / S(n) - 1 over all measurements. A measured time is
off by some per cent of itself, whatever it is, and so is the speed-up made of it; with plain differences the largest
sizes alone would decide. On the speed-ups behind Figure 5 of the paper the mean errors are then 3 % (alpha-beta), 8 %
(logistic), 30 % (Amdahl, USL).

AICc = m ln(mean squared residual) + 2 k + 2 k (k + 1) / (m - k - 1) of those residuals, with m measurements and k
parameters, the width of the noise being one of them: the law with the least is the one to use. All measurements count,
those at n = 1 too: a curve that does not give S(1) = 1 pays for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import OptimizeWarning, curve_fit

from deepvm.core.speedup import FloatArray, LogisticSpeedup, RingSpeedup
from deepvm.errors import RequestError

SMALLEST_RESIDUAL = 1e-6
"""Relative. No clock measures a step better, so laws that fit as closely are told apart by their parameters alone."""

EVALUATIONS = 2000
_TOLERANCE = 1e-14
_AT_BOUND = 1e-6
_NOTHING = 1e-9
"""A cost that is smaller is 0: the search stays inside its bounds and comes as close to them as it can."""


@dataclass(frozen=True)
class Law:
    """A family of curves S(n).

    Attributes:
        name: as in documents. parameters: their names, in order.
        low, high: bounds of each parameter.
        speedup: S(n) of an array n and the parameters, same shape as n.
        starts: where a search for the parameters begins, given n and S(n); the best end counts.
        unit: whether S(1) = 1 whatever the parameters.
    """

    name: str
    parameters: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    speedup: Callable[..., FloatArray]
    starts: Callable[[FloatArray, FloatArray], Sequence[Sequence[float]]]
    unit: bool = True


@dataclass(frozen=True)
class Fitted:
    """A law with the parameters that fit best.

    Attributes:
        law: which. values: its parameters, in order.
        mape: mean absolute relative error over the measurements, a fraction (0.03 is 3 %).
        aicc: see the module; None with too few measurements for so many parameters.
        converged: False when the search was cut off.
    """

    law: Law
    values: tuple[float, ...]
    mape: float
    aicc: float | None
    converged: bool

    def speedup(self, n: FloatArray) -> FloatArray:
        """S(n), same shape as n."""
        return self.law.speedup(np.asarray(n, dtype=np.float64), *self.values)

    def at_bounds(self) -> tuple[str, ...]:
        """The parameters that a bound holds, by name."""
        law = self.law
        return tuple(
            name
            for name, value, low, high in zip(law.parameters, self.values, law.low, law.high, strict=True)
            if value <= low * (1 + _AT_BOUND) or value >= high * (1 - _AT_BOUND)
        )


def fit_law(law: Law, n: FloatArray, s: FloatArray, *, evaluations: int = EVALUATIONS) -> Fitted:
    """Fit one law.

    Args:
        law: which.
        n: sizes in VMs, shape (m,).
        s: measured speed-ups, shape (m,), above 0.
        evaluations: of the law, from each start, before a search is cut off.
    """
    if law is ALPHA_BETA:
        # The same code that fits a ring to a catalogue's points: the two must agree to the last digit.
        ring = RingSpeedup.fit(list(zip(n, s, strict=True)))
        return _fitted(law, (ring.c, ring.l), n, s, converged=True)
    ends = [(search(law, n, s, start, evaluations=evaluations), start) for start in law.starts(n, s)]
    found = [values for values, _ in ends if values is not None]
    tried = found or [tuple(start) for _, start in ends]
    best = min(tried, key=lambda values: _mean_square(law, values, n, s))
    return _fitted(law, best, n, s, converged=bool(found))


def search(
    law: Law, n: FloatArray, s: FloatArray, start: Sequence[float], *, evaluations: int = EVALUATIONS
) -> tuple[float, ...] | None:
    """The least squares of the relative residuals that are found from one start; None when the search was cut off."""
    exact = {"x_scale": "jac", "ftol": _TOLERANCE, "xtol": _TOLERANCE, "gtol": _TOLERANCE}
    return _curve_fit(law, n, s, start, bounds=(law.low, law.high), max_nfev=evaluations, **exact)


def search_again(law: Law, n: FloatArray, s: FloatArray, start: Sequence[float]) -> tuple[float, ...] | None:
    """As :func:`search`, from a start that is nearly right; to about five digits, in a fifth of the time.

    The fast search knows no bounds. Where it ends inside them, they would not have changed its way.
    """
    found = _curve_fit(law, n, s, start, method="lm", maxfev=EVALUATIONS)
    if found is not None and all(a < v < b for a, v, b in zip(law.low, found, law.high, strict=True)):
        return found
    return _curve_fit(law, n, s, start, bounds=(law.low, law.high), max_nfev=EVALUATIONS)


def _curve_fit(law: Law, n: FloatArray, s: FloatArray, start: Sequence[float], **how: Any) -> tuple[float, ...] | None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # The covariance, which is not used here, has no value when the law passes through every point.
        warnings.simplefilter("ignore", OptimizeWarning)
        try:
            values, _ = curve_fit(law.speedup, n, s, p0=start, sigma=s, **how)
        except (RuntimeError, RequestError):
            # So curve_fit says that it did not converge, and our curves that parameters make no curve.
            return None
    return tuple(0.0 if 0 <= v < _NOTHING else float(v) for v in values)


def residuals(law: Law, values: Sequence[float], n: FloatArray, s: FloatArray) -> FloatArray:
    """Relative: S_law(n) / S(n) - 1, shape of n."""
    return np.asarray(law.speedup(n, *values) / s - 1.0)


def aicc(mean_square: float, measurements: int, parameters: int) -> float | None:
    """Akaike's criterion corrected for few data; see the module. None when it has no value.

    Args:
        mean_square: of the relative residuals.
        measurements: how many.
        parameters: of the law, without the width of the noise.
    """
    k = parameters + 1
    if measurements - k - 1 <= 0:
        return None
    least = max(mean_square, SMALLEST_RESIDUAL**2)
    return measurements * math.log(least) + 2 * k + 2 * k * (k + 1) / (measurements - k - 1)


def _fitted(law: Law, values: Sequence[float], n: FloatArray, s: FloatArray, *, converged: bool) -> Fitted:
    mean_error = float(np.mean(np.abs(residuals(law, values, n, s))))
    score = aicc(_mean_square(law, values, n, s), len(n), len(law.parameters))
    return Fitted(law, tuple(values), mean_error, score, converged)


def _mean_square(law: Law, values: Sequence[float], n: FloatArray, s: FloatArray) -> float:
    return float(np.mean(residuals(law, values, n, s) ** 2))


def _logistic(n: FloatArray, a: float, b: float, c: float) -> FloatArray:
    return LogisticSpeedup(a, b, c).speedup(n)


def _logistic_starts(n: FloatArray, s: FloatArray) -> list[list[float]]:
    """log(S / (c - S)) = a (n - b) is a line in n once c is guessed: 1.2 of the largest S, or much closer, or far."""
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
    return np.asarray(n / (1.0 + contention * (n - 1.0) + coherence * n * (n - 1.0)))


def _amdahl(n: FloatArray, serial: float) -> FloatArray:
    return _usl(n, serial, 0.0)


def _ring(n: FloatArray, c: float, l: float) -> FloatArray:  # noqa: E741  the letter of the ring
    return RingSpeedup(c, l).speedup(n)


def _cost_starts(count: int) -> Callable[[FloatArray, FloatArray], list[list[float]]]:
    """n/S - 1 is about the cost of each further VM; it is put into the first parameter, or shared among all."""

    def starts(n: FloatArray, s: FloatArray) -> list[list[float]]:
        more = n > 1
        cost = max(float(np.median((n[more] / s[more] - 1.0) / (n[more] - 1.0))), 1e-4)
        return [[cost, *[cost / 100] * (count - 1)], [cost / 2, *[cost / 20] * (count - 1)]]

    return starts


LOGISTIC = Law(
    "logistic", ("a", "b", "c"), (1e-3, 0.0, 1e-2), (3.0, 128.0, 512.0), _logistic, _logistic_starts, unit=False
)
"""DeepVM eq. 10: a per VM, b in VMs, c the speed-up approached for large n."""
AMDAHL = Law("amdahl", ("serial",), (0.0,), (math.inf,), _amdahl, _cost_starts(1))
"""n / (1 + serial (n - 1)): the part of the work that no further VM takes over."""
USL = Law("usl", ("contention", "coherence"), (0.0, 0.0), (math.inf, math.inf), _usl, _cost_starts(2))
"""Gunther's universal scalability law, n / (1 + contention (n - 1) + coherence n (n - 1))."""
ALPHA_BETA = Law("alpha-beta", ("c", "l"), (0.0, 0.0), (math.inf, math.inf), _ring, _cost_starts(2))
"""The ring all-reduce of :class:`~deepvm.core.speedup.RingSpeedup`: c its bytes, l its latency, in step times."""

LAWS = (LOGISTIC, AMDAHL, USL, ALPHA_BETA)
"""In the order of documents and tables."""
