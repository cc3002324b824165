"""How far a fitted curve may be trusted: a bootstrap band on S(n).

The residuals of a size are drawn together, as their mean: what a law cannot describe at a size is the same in all its
repeats, which must not make it look smaller. Each draw multiplies the fitted curve at the measured sizes by 1 minus a
residual of another size, scatters the unit, and fits again. S counts from n = 1, so an error there moves the whole
curve: it scatters as its repeats do, or, measured once, as the other sizes do.

The residuals are stretched by sqrt(sizes / (sizes - parameters)) for the degrees of freedom of the fit, and by
Student's t over its limit for many sizes, because few residuals say little of their own width.

The band holds if the law that was fitted is the right one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from deepvm.core.cluster.speedup import FloatArray
from deepvm.profiling.fit.speedup_models import Fitted, residuals, search_fast

RESAMPLES = 400
SHARE = 0.95
"""Of the draws inside the band, at each n on its own."""
_LEAST = 0.1
"""Noise beyond 90 % would turn into speed-ups below 0."""


@dataclass(frozen=True)
class Band:
    """A band around a fitted curve; ``draws``: parameters of each draw, shape (resamples, parameters)."""

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
    """The band around a fit to sizes ``n`` in VMs and speed-ups ``s``, both of shape (m,)."""
    random = np.random.default_rng(seed)
    law = fitted.law
    sizes, where = np.unique(n, return_inverse=True)
    own = residuals(law, fitted.values, n, s)
    mean = np.bincount(where, own) / np.bincount(where)
    # A law with S(1) = 1 has no residual there that could stand for another size's, nor any freedom to fit it.
    free = np.ones(len(sizes), dtype=bool) if not law.unit else sizes > 1
    pool = mean[free]
    # Their mean is moved to 0, or every draw would be moved the same way.
    freedom = max(len(pool) - len(law.parameters), 1)
    pool = (pool - pool.mean()) * math.sqrt(len(pool) / freedom)
    pool = pool * stdtrit(freedom, (1 + SHARE) / 2) / stdtrit(math.inf, (1 + SHARE) / 2)
    units = _units(s[n == 1], pool, resamples, random)
    curve = fitted.speedup(n)
    # A search that starts on a bound of 0 takes long to leave it.
    start = tuple(max(v, 1e-6) if low == 0 else v for v, low in zip(fitted.values, law.low, strict=True))
    draws = []
    for one in units:
        drawn = np.zeros(len(sizes))
        drawn[free] = random.choice(pool, len(pool))
        # A residual is law / measured - 1.
        measured = curve / np.maximum(1.0 + drawn[where], _LEAST)
        found = search_fast(law, n, np.where(n == 1, measured, measured / one), start)
        if found is not None:
            draws.append(found)
    return Band(fitted, np.array(draws or [fitted.values]))


def _units(own: FloatArray, pool: FloatArray, resamples: int, random: np.random.Generator) -> FloatArray:
    """What n = 1 may have been measured as, over what it was, shape (resamples,).

    ``own`` is S of the repeats at n = 1, if any; ``pool`` the residuals of the other sizes.
    """
    drawn: FloatArray = random.choice(pool, resamples)
    if len(own) > 1:
        spread = (own / np.median(own) - 1.0) * math.sqrt(len(own) / (len(own) - 1))
        drawn = np.median(random.choice(spread, (resamples, len(own))), axis=1)
    return np.asarray(np.maximum(1.0 + drawn, _LEAST))
