"""Probability that several spot VMs are available, and that all of them survive for a time.

**One VM.** Lives follow a Weibull law of shape 1/2: one that has just started lasts longer than t
with the probability ``exp(-r sqrt(t))``, and its hazard falls with age. A request at a
random moment falls into the middle of a spell of availability, and into long spells more often than
into short ones (renewal theory: the residual life): the rest outlasts t with the probability ``(1 +
r sqrt(t)) exp(-r sqrt(t))``. Little is known of the rate r before anything is seen: it has a Gamma
prior, learned from public traces. VMs that were seen teach by Bayes: one that came after a wait has
lived from the beginning of its spell, and multiplies the density of r by ``r^e exp(-r sqrt(t))``, e
being 1 if a preemption ended it and 0 if its lifetime is censored; one that came at once is a rest,
with ``r^2 exp(-r sqrt(t))`` if it was ended, else ``(1 + r sqrt(t)) exp(-r sqrt(t))``. Counted as
the former, rests would promise twice the lifetime or more.

**Several.** VMs of one type and zone go together, so losses are not binomial but Beta-binomial
(Skellam 1948): with the share p that is lost and the correlation c within a pool, ``p = a / (a +
b)`` and ``c = 1 / (a + b + 1)``, none of n is lost with the probability ``B(a, b + n) / B(a, b)``.
The same law gives the probability that n VMs are available at once.

Nothing is known for sure, so a probability is averaged over what the rate, the share and the
correlation may be, and its 80 % interval says how far it may be from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from statistics import fmean

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.lifetimes import BAND_SHARES
from deepvm.core.units import Interval, refuse_no_time, refuse_outside
from deepvm.errors import RequestError
from deepvm.records import dataclass, replace

MOST_VMS = 10_000
_POINTS = 40  # Quantiles of each distribution that is averaged over
_HOUR_S = 3600.0
# The weight of own VMs is divided by this: a pool changes from week to week (a power prior; Ibrahim
# and Chen 2000). By held-out traces: at 1, the 80 % intervals hold 50 % of what comes later; at 8
# about 75 %, and forecasts are hardly worse (docs/internals/explain/survive.md).
_DISCOUNT = 8.0
_WORST = len(BAND_SHARES) - 1


@dataclass(frozen=True)
class Lifetime:
    """A VM's time until its end, whether by preemption, and whether it waited for capacity."""

    seconds: float
    ended: bool
    waited: bool = False


@dataclass(frozen=True)
class LossRate:
    """Belief about the loss rate r in 1/sqrt(hour): a Gamma distribution, until rests are seen."""

    shape: float
    per_sqrt_h: float  # inverse scale
    # (root of the length, sqrt(h); n) of rests without an end: factors (1 + r root)^n
    rests: tuple[tuple[float, float], ...] = ()

    def of_band(self, band: int | None) -> LossRate:
        """Adjust this belief, that of the worst band (as for unknown types), to a given band.

        The mean lifetime is taken to be inversely proportional to the band's rate, and r to the
        root of
        that: assumed, not measured.
        """
        chosen = _WORST if band is None else band
        if chosen not in range(len(BAND_SHARES)):
            raise RequestError("interruption_band", band, f"0 to {_WORST}")
        times = math.log1p(-BAND_SHARES[_WORST]) / math.log1p(-BAND_SHARES[chosen])
        return replace(self, per_sqrt_h=self.per_sqrt_h * math.sqrt(times))

    def after(self, lives: Iterable[Lifetime], design_effect: float = 1.0) -> LossRate:
        """Update with lifetimes; ``design_effect``: how many count as one (Kish 1965)."""
        shape = self.shape
        per_sqrt_h = self.per_sqrt_h
        rests = dict(self.rests)
        for life in lives:
            root = math.sqrt(life.seconds / _HOUR_S)
            shape += life.ended * (1 if life.waited else 2) / design_effect
            per_sqrt_h += root / design_effect
            if root and not life.ended and not life.waited:
                rests[root] = rests.get(root, 0.0) + 1 / design_effect
        return LossRate(shape, per_sqrt_h, tuple(sorted(rests.items())))

    def quantiles(self) -> FloatArray:
        return _rates(self.shape, self.rests, self.per_sqrt_h)


@dataclass(frozen=True)
class Availability:
    """Belief about the share of the time in which a VM is available: a Beta distribution."""

    had: float
    missed: float

    def after(self, had: int, missed: int, design_effect: float = 1.0) -> Availability:
        """Update with VMs that came on request and ones that did not (:meth:`LossRate.after`)."""
        return Availability(self.had + had / design_effect, self.missed + missed / design_effect)

    def quantiles(self) -> FloatArray:
        return _beta_quantiles(self.had, self.missed, _MIDDLES)


@dataclass(frozen=True)
class OwnPool:
    """What a user has seen of a pool; ``gang``: mean of VMs together; ``refused``: did not come."""

    lives: tuple[Lifetime, ...]
    gang: float = 1.0
    refused: int = 0

    @property
    def preemptions(self) -> int:
        return sum(life.ended for life in self.lives)


@dataclass(frozen=True)
class ClusterSurvival:
    """Probabilities for several VMs, each with its 80 % interval."""

    vms: int
    for_s: float
    had: Interval  # all are available when they are requested
    lasts: Interval  # all live for the time, once they run
    both: Interval
    waited: Interval  # the same, if they came after a wait
    independent: float  # the same, if losses were independent


@dataclass(frozen=True)
class LifetimePosterior:
    """Belief about the lifetimes and the availability of a pool of spot VMs."""

    rate: LossRate
    availability: Availability
    loss_correlations: tuple[float, ...]  # of losses within a time, each as probable
    had_correlations: tuple[float, ...]  # of availability, each as probable
    placement_score: int | None = None  # of the cloud, 1 to 10; None: not asked

    def after(self, own: OwnPool) -> LifetimePosterior:
        """With what a user has seen; VMs that ran together tell less than as many others."""
        losses = _DISCOUNT * design_effect(own.gang, fmean(self.loss_correlations))
        requests = _DISCOUNT * design_effect(own.gang, fmean(self.had_correlations))
        return replace(
            self,
            rate=self.rate.after(own.lives, losses),
            availability=self.availability.after(len(own.lives), own.refused, requests),
        )

    def forecast(self, vms: int, for_s: float) -> ClusterSurvival:
        """For a number of VMs and a time. Raises RequestError for what cannot be."""
        refuse_outside("count", vms, 1, MOST_VMS, what="a whole number of VMs")
        refuse_no_time("for", for_s)
        steps = self.rate.quantiles() * math.sqrt(for_s / _HOUR_S)
        residual = (1 + steps) * np.exp(-steps)
        fresh = np.exp(-steps)
        lasts = _grid(residual, self.loss_correlations, vms)
        had = _grid(self.availability.quantiles(), self.had_correlations, vms)
        weights = _agreeing(had, self.placement_score)
        return ClusterSurvival(
            vms,
            for_s,
            had=_interval(had, weights),
            lasts=_interval(lasts),
            both=_interval(np.multiply.outer(lasts, had).ravel(), np.tile(weights, len(lasts))),
            waited=_interval(_grid(fresh, self.loss_correlations, vms)),
            independent=float(np.mean(residual**vms)),
        )


def none_lost(share: FloatArray, correlation: float, vms: int) -> FloatArray:
    """Probability that none of n VMs is lost, for shares kept: B(a, b + n) / B(a, b)."""
    if correlation >= 1:
        return share
    if correlation <= 0:
        return share**vms
    strength = 1 / correlation - 1
    kept = np.clip(share, 1e-300, 1.0)[..., None] * strength
    others = np.arange(vms)
    return np.asarray(np.exp(np.sum(np.log(kept + others) - np.log(strength + others), axis=-1)))


def design_effect(gang: float, correlation: float) -> float:
    """Of observations in gangs of a mean size: 1 + (g - 1) c."""
    return 1 + (max(gang, 1.0) - 1) * correlation


def life_for_work(lasts: Interval, vms: int, for_s: float) -> Interval:
    """A VM's mean lifetime, s, at which independent losses give the forecast ``lasts``.

    For ``--work``, which counts n VMs as hit n times as often as one: ``-n t / ln(P)``.
    """
    ends = (min(max(p, 1e-300), 1 - 1e-12) for p in (lasts.low, lasts.value, lasts.high))
    return Interval(*(vms * for_s / -math.log(p) for p in ends))


def windows_kept(kept: int, windows: int) -> Interval:
    """Probability that a price stays below a limit, Beta(1/2, 1/2) prior (Jeffreys)."""
    a = kept + 0.5
    b = windows - kept + 0.5
    low, high = _beta_quantiles(a, b, np.array([0.1, 0.9])).tolist()
    return _ordered(low, a / (a + b), high)


_MIDDLES = (np.arange(_POINTS) + 0.5) / _POINTS
_FINE = 20_001


@lru_cache(maxsize=256)
def _rates(shape: float, rests: tuple[tuple[float, float], ...], per_sqrt_h: float) -> FloatArray:
    """Quantiles of a belief about r, to three digits; without scipy, an optional dependency."""
    # On a logarithmic scale the density is r^shape exp(-r): smooth, however small the shape is.
    most = shape + sum(n for _, n in rests)
    high = math.log(most + 40 + 10 * math.sqrt(most))
    logs = np.linspace(math.log(shape) - 40 / min(shape, 1.0), high, _FINE)
    rates = np.exp(logs)
    log_density = shape * logs - rates
    for root, n in rests:
        log_density += n * np.log1p(rates * (root / per_sqrt_h))
    return np.exp(_inverted(logs, log_density, _MIDDLES)) / per_sqrt_h


def _beta_quantiles(a: float, b: float, at: FloatArray) -> FloatArray:
    """Of a Beta distribution, likewise, on the scale of log-odds: x^a (1 - x)^b."""
    middle = math.log(a / b)
    width = 40 / min(a, b, 1.0)
    odds = np.linspace(middle - width, middle + width, _FINE)
    quantile = _inverted(odds, -a * np.logaddexp(0, -odds) - b * np.logaddexp(0, odds), at)
    return 1 / (1 + np.exp(-quantile))


def _inverted(x: FloatArray, log_density: FloatArray, at: FloatArray) -> FloatArray:
    density = np.exp(log_density - log_density.max())
    passed = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(at, passed / passed[-1], x)


def _grid(shares: FloatArray, correlations: Sequence[float], vms: int) -> FloatArray:
    if vms == 1:
        return np.repeat(shares, len(correlations))
    return np.stack([none_lost(shares, c, vms) for c in correlations], axis=-1).ravel()


_SCORE_STRENGTH = 4.0


def _agreeing(had: FloatArray, score: int | None) -> FloatArray:
    """Weights of probabilities given a placement score, as if requests had been answered.

    No public record pairs scores with answers: strength and proportion are assumed.
    """
    if score is None:
        return np.full(had.shape, 1 / had.size)
    if score not in range(1, 11):
        raise RequestError("placement_score", score, "1 to 10")
    share = score / 10
    inside = np.clip(had, 1e-6, 1 - 1e-6)
    weights = inside ** (_SCORE_STRENGTH * share) * (1 - inside) ** (_SCORE_STRENGTH * (1 - share))
    return np.asarray(weights / weights.sum())


def _interval(values: FloatArray, weights: FloatArray | None = None) -> Interval:
    if weights is None:
        weights = np.ones(values.shape)
    weights = weights / weights.sum()
    order = np.argsort(values)
    passed = np.cumsum(weights[order])
    at = np.minimum(np.searchsorted(passed, [0.1, 0.9]), values.size - 1)
    low, high = values[order][at].tolist()
    return _ordered(low, float(values @ weights), high)


def _ordered(low: float, value: float, high: float) -> Interval:
    """An interval around a mean, which may lie beyond a quantile of a skewed distribution."""
    return Interval(min(low, value), min(value, 1.0), min(max(high, value), 1.0))
