"""How far a fitted curve may be trusted: a bootstrap band on S(n).

The residuals of a size are drawn together, as their mean: what a law cannot describe at a size is the same in all
repeats there, and repeats must not make it look smaller. Each draw multiplies the fitted curve at the measured sizes by
1 minus a residual of another size, scatters the unit (S counts from n = 1) as its repeats do, and fits again. The
residuals are stretched by sqrt(sizes / (sizes - parameters)) for the freedom that the fit took from them.

The band holds for the law that was fitted. That it is the right one is not part of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.core.speedup import FloatArray
from deepvm.profiling.laws import Fitted, residuals, search_fast

RESAMPLES = 400
SHARE = 0.95
"""Of the draws inside the band, at each n on its own."""


@dataclass(frozen=True)
class Band:
    """The draws behind a band.

    Attributes:
        fitted: the curve that the band is around.
        draws: parameters of each draw, shape (resamples, parameters).
    """

    fitted: Fitted
    draws: npt.NDArray[np.float64]

    def at(self, n: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Low and high S(n), same shape as n; the fitted curve is never outside, nor is the band below 0."""
        n = np.asarray(n, dtype=np.float64)
        drawn = np.array([self.fitted.law.speedup(n, *values) for values in self.draws])
        low, high = np.quantile(drawn, [(1 - SHARE) / 2, (1 + SHARE) / 2], axis=0)
        curve = self.fitted.speedup(n)
        return np.minimum(low, curve), np.maximum(high, curve)


def bootstrap(fitted: Fitted, n: FloatArray, s: FloatArray, *, resamples: int = RESAMPLES, seed: int = 0) -> Band:
    """The band around a fit.

    Args:
        fitted: to these measurements.
        n: sizes in VMs, shape (m,).
        s: measured speed-ups, shape (m,).
        resamples: how many draws.
        seed: the same seed gives the same band.
    """
    random = np.random.default_rng(seed)
    law = fitted.law
    sizes, where = np.unique(n, return_inverse=True)
    own = residuals(law, fitted.values, n, s)
    mean = np.bincount(where, own) / np.bincount(where)
    # A law with S(1) = 1 has no residual there that could stand for another size's, nor any freedom to fit it.
    free = np.ones(len(sizes), dtype=bool) if not law.unit else sizes > 1
    pool = mean[free]
    # Their mean is moved to 0, or every draw would be moved the same way.
    pool = (pool - pool.mean()) * math.sqrt(len(pool) / max(len(pool) - len(law.parameters), 1))
    unit = s[n == 1]
    curve = fitted.speedup(n)
    draws = []
    for _ in range(resamples):
        drawn = np.zeros(len(sizes))
        drawn[free] = random.choice(pool, len(pool))
        one = float(np.mean(random.choice(unit, len(unit))) / np.mean(unit)) if len(unit) else 1.0
        # A residual is law / measured - 1. Noise beyond 90 % would turn into speed-ups below 0.
        measured = curve / np.maximum(1.0 + drawn[where], 0.1)
        found = search_fast(law, n, np.where(n == 1, measured, measured / one), _inside(fitted))
        if found is not None:
            draws.append(found)
    return Band(fitted, np.array(draws or [fitted.values]))


def _inside(fitted: Fitted) -> tuple[float, ...]:
    """The parameters, off bounds of 0: a search that starts on a bound takes long to leave it."""
    return tuple(max(v, 1e-6) if low == 0 else v for v, low in zip(fitted.values, fitted.law.low, strict=True))
