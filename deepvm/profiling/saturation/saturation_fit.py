"""Where t(n) stops falling: eq. 14, a more robust knee, and its uncertainty.

t(n) is the time in which n senders push one checkpoint to one receiver, 1/n of it each. It falls as
1/n while the senders are the limit, and stays level once the receiver is; there noise alone decides
where eq. 14 first holds. So the whole curve is fitted: log t(n) = c - log min(n, k), with a knee k
between 1 and N. Where a small buffer overflows once there are more senders than the receiver can
take, t(n) even rises beyond the knee, by a constant factor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

# The least noise of log t: headers, start signals and a filling window cost about 1 %
_FLOOR = 0.01
_LEVEL = 0.95  # of the interval


@dataclass(frozen=True)
class SaturationPoint:
    """A fitted knee.

    Attributes:
        senders: k, where t(n) stops falling; whole unless the data contradict it, N if t(n) falls
            to the end.
        rise: t beyond the knee over t at the knee; above 1 only where t(n) has a minimum there.
        n_sat: the fewest senders that saturate the receiver: ceil(k), but at least 2, because the
            planner allows fewer than n_sat senders for one receiver (eq. 15). None ("no saturation
            seen") unless ceil(k) is below N.
        seconds: t(1) of the fit. error: root mean square deviation of log t, about the relative
        error of t. low, high: interval of 95 % for n_sat; a bound of None lies at or beyond N.
    """

    senders: float
    rise: float
    n_sat: int | None
    seconds: float
    error: float
    low: int | None
    high: int | None

    def at(self, n: Array) -> Array:
        """The fitted t(n) in seconds, shape of ``n``."""
        rise = np.where(n > self.senders, self.rise, 1.0)
        return self.seconds / np.minimum(n, self.senders) * rise

    def interval(self, largest: int) -> str:
        """The interval in words, such as ``4 to 6``; ``largest`` is N."""
        low = self.low if self.low is not None else largest
        if self.high is None:
            return f"{low} or more"
        if low == self.high:
            return f"{low}"
        return f"{low} to {self.high}"


def raw_saturation(times: Mapping[int, Sequence[float]]) -> int | None:
    """n_sat of DeepVM eq. 14: the smallest n with t(n) <= t(n + 1) by the medians, or None."""
    medians = {n: float(np.median(own)) for n, own in times.items()}
    return next(
        (n for n in sorted(medians) if n + 1 in medians and medians[n] <= medians[n + 1]), None
    )


def fit_knee(
    times: Mapping[int, Sequence[float]], *, resamples: int = 1000, seed: int = 0
) -> SaturationPoint:
    """The knee of the medians, and a bootstrap interval of n_sat over the repeats.

    ``times``: seconds above 0 of each repeat, for two or more n.

    Three forms are compared by AICc, with noise of at least 1 %: k whole; k real; k whole and a
    rise beyond it. With a receiver of 4.5 senders the fifth one helps a little (n_sat 5), but noise
    above a whole number adds no sender.
    """
    n = np.array(sorted(times), dtype=np.float64)
    logs = [np.log(np.asarray(times[size], dtype=np.float64)) for size in sorted(times)]
    y = np.array([np.median(own) for own in logs])
    best = _best(n, y[None])
    k, constant, rise, error = best[:, 0].tolist()
    drawn = _resampled(n, logs, y - _log_t(n, *best[:3])[0], resamples, np.random.default_rng(seed))
    low, high = np.quantile(
        _best(n, drawn)[0], [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], method="nearest"
    )
    n_sat, low_n, high_n = (
        max(2, c) if (c := math.ceil(found)) < n[-1] else None for found in (k, low, high)
    )
    return SaturationPoint(k, math.exp(rise), n_sat, math.exp(constant), error, low_n, high_n)


# Curves are fitted to many rows at once: an array of k, constant, rise and error, shape (4, rows);
# error is the root of the mean squared deviation.


def _log_t(n: Array, k: Array, constant: Array, rise: Array) -> Array:
    """Curves log t(n) = constant - log min(n, k), plus ``rise`` if n > k; shape (rows, n)."""
    k = k[:, None]
    return constant[:, None] - np.log(np.minimum(n, k)) + np.where(n > k, rise[:, None], 0.0)


def _best(n: Array, y: Array) -> Array:
    """The form that AICc prefers for log t ``y``, shape (rows, n)."""

    def least(best: Array, other: Array) -> Array:
        return np.where(other[3] < best[3], other, best)

    whole = reduce(
        least, [_with_knee(n, y, np.full(len(y), float(k))) for k in range(1, int(n[-1]) + 1)]
    )
    free = reduce(least, [_with_split(n, y, place) for place in range(1, len(n))])
    return np.where(_aicc(len(n), free[3], 3) < _aicc(len(n), whole[3], 2), free, whole)


def _with_knee(n: Array, y: Array, k: Array) -> Array:
    own = y + np.log(np.minimum(n, k[:, None]))
    return np.stack([k, own.mean(axis=1), np.zeros(len(y)), own.std(axis=1)])


def _with_split(n: Array, y: Array, place: int) -> Array:
    """The best curve that falls over the first ``place`` of n and is level over the others.

    The level decides: its knee lies between the last of the first and the first of the others; or,
    if the level is too high for that, at the last, with a rise; or, if it is too low, at the first
    of the others.
    """
    last = float(n[place - 1])
    following = float(n[place])
    constant = (y[:, :place] + np.log(n[:place])).mean(axis=1)
    level = y[:, place:].mean(axis=1)
    log_k = np.minimum(constant - level, math.log(following))
    rise = np.maximum(math.log(last) - log_k, 0.0)
    k = np.maximum(np.exp(log_k), last)
    error = np.sqrt(((y - _log_t(n, k, constant, rise)) ** 2).mean(axis=1))
    border = _with_knee(n, y, np.full(len(y), following))
    return np.where(
        constant - level >= math.log(following), border, np.stack([k, constant, rise, error])
    )


def _aicc(count: int, error: Array, parameters: int) -> Array:
    """Akaike's criterion corrected for few data: lower is better."""
    if count - parameters < 2:
        return np.full(len(error), np.inf)
    likelihood: Array = count * np.log(error**2 + _FLOOR**2)
    return (
        likelihood + 2 * parameters + 2 * parameters * (parameters + 1) / (count - parameters - 1)
    )


def _resampled(
    n: Array, logs: Sequence[Array], off: Array, resamples: int, random: np.random.Generator
) -> Array:
    """Medians of resampled repeats, shape (resamples, n).

    Few repeats underestimate their own noise, so deviations from the medians are pooled over all n;
    what the fit leaves unexplained beyond that counts as noise common to all repeats of an n.
    """
    pool = np.concatenate([(own - np.median(own)) * _widened(len(own), 1) for own in logs])
    expected = float(np.mean([pool.var() * math.pi / 2 / len(own) for own in logs]))  # of a median
    lack = math.sqrt(max(float((off**2).mean()) * _widened(len(n), 2) ** 2 - expected, 0.0))
    drawn = [
        np.median(own) + np.median(random.choice(pool, (resamples, len(own))), axis=1)
        for own in logs
    ]
    return np.stack(drawn, axis=1) + lack * random.standard_normal((resamples, len(n)))


def _widened(count: int, parameters: int) -> float:
    """By which factor deviations from a fit to ``count`` numbers are too small."""
    if count > parameters:
        return math.sqrt(count / (count - parameters))
    return 1.0
