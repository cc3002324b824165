"""Lifetime laws fitted to interval-censored and right-censored lifetimes by maximum likelihood.

A lifetime that ended between ``low`` and ``high`` has the probability S(low) - S(high), one that
was watched to ``low`` has S(low), S being the survival function. The lowest AIC is best.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_ndtr

from deepvm.core.arrays import FloatArray, IntArray
from deepvm.errors import DataError
from deepvm.records import dataclass
from deepvm.simulator.engine.lifetimes import LifeSource
from deepvm.simulator.traces.trace import TraceLives

FEWEST = 5  # Fewest observed ends from which a shape can be fitted

# Bounds of the logarithm of a time, in units of the mean lifetime
_TIMES = (math.log(1e-6), math.log(1e6))
_AT_BOUND = 1e-3


@dataclass(frozen=True)
class Law:
    """A family of lifetimes."""

    name: str
    parameters: tuple[str, ...]  # names; the first is a time in seconds
    log_survival: Callable[..., FloatArray]  # log S(t), of an array t and the parameters
    mean_s: Callable[..., float]  # may be infinite
    shapes: tuple[float, ...] = ()  # starting points for a second parameter
    bounds: tuple[float, float] = (1.0, 1.0)  # of that


@dataclass(frozen=True)
class FittedLifetimes:
    """A law with its maximum-likelihood parameters."""

    law: Law
    values: tuple[float, ...]
    log_likelihood: float
    at_bound: bool = False  # the data only say on which side of it the shape is

    @property
    def aic(self) -> float:
        return 2 * len(self.values) - 2 * self.log_likelihood

    @property
    def mean_s(self) -> float:
        return self.law.mean_s(*self.values)

    def survival(self, t_s: FloatArray) -> FloatArray:
        return np.exp(self.law.log_survival(np.asarray(t_s, dtype=float), *self.values))

    @property
    def parameters(self) -> dict[str, float]:
        return dict(zip(self.law.parameters, self.values, strict=True))


def fit_lives(pools: Sequence[TraceLives]) -> tuple[FittedLifetimes, ...]:
    """The laws, fitted to all lifetimes together, in the order of their AIC. Raises DataError."""
    ended = sum(pool.preemptions for pool in pools)
    if ended < FEWEST:
        names = f"{len(pools)} traces together"
        if len(pools) == 1:
            names = pools[0].name
        raise DataError(
            f"{names}: {ended} lifetimes ended, a fit needs {FEWEST}; add traces of like machines"
        )
    # Lifetimes of the same length once: a trace counts in ticks, so there are few lengths
    ends = [np.concatenate([getattr(p, end) for p in pools]) for end in ("low_s", "high_s")]
    pairs, counts = np.unique(np.column_stack(ends), axis=0, return_counts=True)
    low, high, times = pairs[:, 0], pairs[:, 1], counts.astype(float)
    unit = sum(pool.seen_s for pool in pools) / ended
    found = [_fit(law, low / unit, high / unit, times, unit) for law in LAWS]
    return tuple(sorted(found, key=lambda f: f.aic))


def log_likelihood(
    law: Law, values: Sequence[float], low: FloatArray, high: FloatArray, times: FloatArray
) -> float:
    """Of lives between ``low`` and ``high`` (infinite: censored), seen ``times`` times."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        above = law.log_survival(low, *values)
        beyond = law.log_survival(high, *values)
        # log(S(low) - S(high)), without losing a small difference next to 1, or next to 0
        own = above + np.where(np.isinf(high), 0.0, np.log(-np.expm1(beyond - above)))
        found = float(np.sum(times * own))
    if math.isnan(found):
        return -math.inf
    return found


def survival_curve(pools: Sequence[TraceLives]) -> tuple[FloatArray, FloatArray]:
    """Kaplan-Meier estimate for all lifetimes: times, seconds, and the share that lasts longer."""
    life = np.concatenate([pool.life_s for pool in pools])
    ended = np.concatenate([pool.ended for pool in pools])
    times, deaths = np.unique(life[ended], return_counts=True)
    alive = life.size - np.searchsorted(np.sort(life), times, side="left")
    return times, np.asarray(np.cumprod(1 - deaths / alive))


class ResampledLifetimes(LifeSource):
    """Independent lives, drawn from Kaplan and Meier's curve; beyond its end at a constant rate."""

    def __init__(self, lives: Sequence[tuple[float, bool]]) -> None:
        """``lives``: (seconds, whether a preemption ended it). Raises DataError: none was."""
        seen_s = np.array([s for s, _ in lives], dtype=float)
        ended = np.array([e for _, e in lives], dtype=bool)
        if not ended.any():
            raise DataError(
                f"none of {len(lives)} lifetimes was ended by a preemption; name another pool,"
                " or an"
                " mttp_s"
            )
        history = TraceLives("history", 0.0, np.maximum(seen_s, 1e-3), ended)
        self._times, self._above = survival_curve([history])
        self.mean_s = float(seen_s.sum() / ended.sum())

    def draw(self, random: np.random.Generator, starts: IntArray, numbers: IntArray) -> FloatArray:
        share = random.random(len(numbers))
        # The first time that fewer than this share outlast
        place = np.searchsorted(-self._above, -share)
        beyond = place == len(self._times)
        life = self._times[np.minimum(place, len(self._times) - 1)]
        return life + np.where(beyond, random.exponential(self.mean_s, len(numbers)), 0.0)


def _fit(
    law: Law, low: FloatArray, high: FloatArray, times: FloatArray, unit: float
) -> FittedLifetimes:
    bounds = [_TIMES]
    starts = [[0.0]]
    if law.shapes:
        bounds.append((math.log(law.bounds[0]), math.log(law.bounds[1])))
        starts = [[0.0, math.log(shape)] for shape in law.shapes]

    def loss(logs: FloatArray) -> float:
        found = log_likelihood(law, np.exp(logs).tolist(), low, high, times)
        if math.isfinite(found):
            return -found
        return 1e300

    best: Any = None
    # Without derivatives it does not stop in Lomax's flat valley next to the exponential
    options = {"xatol": 1e-7, "fatol": 1e-9, "maxiter": 2000}
    for start in starts:
        found = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options=options)
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
