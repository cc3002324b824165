"""Lifetime laws fitted to interval-censored and right-censored lifetimes by maximum likelihood.

A life that ended between ``low`` and ``high`` has the probability S(low) - S(high), one that was
watched to ``low`` has S(low), S being the survival function. AIC = 2 k - 2 log-likelihood, with k
parameters; the lowest is best.

=========== ==================== ========================
law         S(t)                 hazard
=========== ==================== ========================
exponential exp(-t/m)            the same at every age
weibull     exp(-(t/s)^k)        falls with age for k < 1
lomax       (1 + t/s)^-k         k/(s + t), always falls
lognormal   1 - Phi(ln(t/m)/d)   rises, then falls
=========== ==================== ========================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from deepvm.core.arrays import FloatArray
from deepvm.errors import DataError
from deepvm.simulator.traces.trace import TraceLives

FEWEST = 5
"""Fewest observed ends from which a shape can be fitted."""

_TIMES = (math.log(1e-6), math.log(1e6))
"""Bounds of the logarithm of a time, in units of the mean lifetime."""
_AT_BOUND = 1e-3


@dataclass(frozen=True)
class Law:
    """A family of lifetimes.

    Attributes:
        name: as in documents. parameters: their names; the first is a time in seconds.
        log_survival: log S(t), of an array t and the parameters. mean_s: of the parameters; may be
            infinite.
        shapes: starting points for the second parameter, if there is one. bounds: of that
            parameter.
    """

    name: str
    parameters: tuple[str, ...]
    log_survival: Callable[..., FloatArray]
    mean_s: Callable[..., float]
    shapes: tuple[float, ...] = ()
    bounds: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True)
class FittedLifetimes:
    """A law with its maximum-likelihood parameters.

    Attributes:
        law: the family. values: its parameters. log_likelihood: of all lives.
        at_bound: whether the shape is at a bound of the search: the data only say on which side it
            is.
    """

    law: Law
    values: tuple[float, ...]
    log_likelihood: float
    at_bound: bool = False

    @property
    def aic(self) -> float:
        """Akaike information criterion; lower is better."""
        return 2 * len(self.values) - 2 * self.log_likelihood

    @property
    def mean_s(self) -> float:
        """Mean lifetime, seconds; infinite for a heavy tail."""
        return self.law.mean_s(*self.values)

    def survival(self, t_s: FloatArray) -> FloatArray:
        """Survival function at ``t_s``, same shape."""
        return np.exp(self.law.log_survival(np.asarray(t_s, dtype=float), *self.values))

    @property
    def parameters(self) -> dict[str, float]:
        """The parameters by name."""
        return dict(zip(self.law.parameters, self.values, strict=True))


def fit_lives(pools: Sequence[TraceLives]) -> tuple[FittedLifetimes, ...]:
    """The four laws, fitted to all lifetimes together, in the order of their AIC.

    Raises:
        DataError: fewer than ``FEWEST`` lifetimes ended.
    """
    ended = sum(pool.preemptions for pool in pools)
    if ended < FEWEST:
        if len(pools) == 1:
            names = pools[0].name
        else:
            names = f"{len(pools)} traces together"
        raise DataError(
            f"{names}: {ended} lifetimes ended, a fit needs {FEWEST}; add traces of like machines"
        )
    low, high, times = _intervals(pools)
    unit = sum(pool.seen_s for pool in pools) / ended
    found = [_fit(law, low / unit, high / unit, times, unit) for law in LAWS]
    return tuple(sorted(found, key=lambda f: f.aic))


def log_likelihood(
    law: Law, values: Sequence[float], low: FloatArray, high: FloatArray, times: FloatArray
) -> float:
    """Lives between ``low`` and ``high`` (infinite: censored), seen ``times`` times.

    Minus infinity where the law cannot give such lives.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        above = law.log_survival(low, *values)
        beyond = law.log_survival(high, *values)
        # log(S(low) - S(high)), without losing a small difference of two numbers next to 1, or next
        # to 0.
        own = above + np.where(np.isinf(high), 0.0, np.log(-np.expm1(beyond - above)))
        found = float(np.sum(times * own))
    if not math.isnan(found):
        return found
    return -math.inf


def survival_curve(pools: Sequence[TraceLives]) -> tuple[FloatArray, FloatArray]:
    """Kaplan-Meier estimate for all lifetimes: times, seconds, and the share that lasts longer.

    An interval counts as its middle. At a tie, a censored lifetime outlasts one that ended.
    """
    life = np.concatenate([pool.life_s for pool in pools])
    ended = np.concatenate([pool.ended for pool in pools])
    times, deaths = np.unique(life[ended], return_counts=True)
    alive = life.size - np.searchsorted(np.sort(life), times, side="left")
    return times, np.asarray(np.cumprod(1 - deaths / alive))


def _intervals(pools: Sequence[TraceLives]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Lives of the same length once: a trace counts in ticks, so there are few lengths."""
    low = np.concatenate([pool.low_s for pool in pools])
    high = np.concatenate([pool.high_s for pool in pools])
    pairs, times = np.unique(np.column_stack([low, high]), axis=0, return_counts=True)
    return pairs[:, 0], pairs[:, 1], times.astype(float)


def _fit(
    law: Law, low: FloatArray, high: FloatArray, times: FloatArray, unit: float
) -> FittedLifetimes:
    """In units of the mean lifetime; log-parameters are searched, so none can be <= 0."""
    bounds = [_TIMES, *([tuple(map(math.log, law.bounds))] if law.shapes else [])]

    def loss(logs: FloatArray) -> float:
        found = log_likelihood(law, np.exp(logs).tolist(), low, high, times)
        if math.isfinite(found):
            return -found
        return 1e300

    best: Any = None
    for shape in law.shapes or (None,):
        start = [0.0] if shape is None else [0.0, math.log(shape)]
        # It needs no derivatives, so it does not stop in the flat valley that Lomax has next to the
        # exponential.
        found = minimize(
            loss,
            start,
            method="Nelder-Mead",
            bounds=bounds,
            options={"xatol": 1e-7, "fatol": 1e-9, "maxiter": 2000},
        )
        if best is None or found.fun < best.fun:
            best = found
    logs = best.x
    at_bound = bool(law.shapes) and bool(min(abs(logs[1] - b) for b in bounds[1]) < _AT_BOUND)
    time, *shape_ = np.exp(logs).tolist()
    return FittedLifetimes(law, (time * unit, *shape_), -float(best.fun), at_bound)


def _lognormal_log(t: FloatArray, median: float, sigma: float) -> FloatArray:
    with np.errstate(divide="ignore"):  # everything lasts longer than 0 s
        return np.asarray(log_ndtr(-np.log(t / median) / sigma))


LAWS = (
    Law("exponential", ("mean_s",), lambda t, mean: -t / mean, lambda mean: mean),
    Law(
        "weibull",
        ("scale_s", "shape"),
        lambda t, scale, shape: -((t / scale) ** shape),
        lambda scale, shape: scale * math.exp(math.lgamma(1 + 1 / shape)),
        shapes=(0.5, 1.0, 3.0),
        bounds=(0.02, 50.0),
    ),
    Law(
        "lomax",
        ("scale_s", "shape"),
        lambda t, scale, shape: -shape * np.log1p(t / scale),
        lambda scale, shape: scale / (shape - 1) if shape > 1 else math.inf,
        shapes=(0.5, 2.0, 20.0),
        bounds=(0.02, 1e4),
    ),
    Law(
        "lognormal",
        ("median_s", "sigma"),
        _lognormal_log,
        # Beyond all floats
        lambda median, sigma: median * math.exp(sigma**2 / 2) if sigma < 37 else math.inf,
        shapes=(0.5, 1.5, 3.0),
        bounds=(0.02, 50.0),
    ),
)
"""The laws, the simplest first."""
