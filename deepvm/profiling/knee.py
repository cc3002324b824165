"""Where t(n) stops falling: eq. 14 as it stands, a knee that noise cannot move, and how sure that is.

t(n) is the time in which n senders push one checkpoint to one receiver, 1/n of it each. While the senders are the limit
it falls as 1/n, and once the receiver is, it stands still; there the noise alone decides where eq. 14 first holds. So
all of the curve is fitted: log t(n) = c - log min(n, k), with a knee k between 1 and N.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.errors import RequestError

Array = npt.NDArray[np.float64]

_FLOOR = 0.01
"""Noise of log t below which nothing is proven: headers, start signals and a filling window cost about 1 % as well."""
_LEVEL = 0.95
"""Of the interval."""


@dataclass(frozen=True)
class Knee:
    """A fitted knee.

    Attributes:
        senders: k, where t(n) stops falling; whole where the data do not speak against it. N: it falls to the end.
        n_sat: the fewest senders that saturate the receiver, ceil(k); None where that is not below N, because then no
            larger n shows that it does ("no saturation seen").
        seconds: t(1) of the fit.
        error: root of the mean squared deviation of log t, about the relative error of t.
        low, high: interval of 95 % for n_sat; a bound of None lies at or beyond N.
    """

    senders: float
    n_sat: int | None
    seconds: float
    error: float
    low: int | None
    high: int | None

    def at(self, n: Array) -> Array:
        """t(n) of the fit, in seconds; same shape as ``n``."""
        found: Array = self.seconds / np.minimum(n, self.senders)
        return found


def raw_saturation(times: Mapping[int, Sequence[float]]) -> int | None:
    """n_sat of DeepVM eq. 14: the smallest n with t(n) <= t(n + 1), of the medians; None when there is none.

    Args:
        times: seconds of each repeat, by n; where n + 1 is missing, n is passed over.
    """
    medians = {n: float(np.median(own)) for n, own in times.items()}
    return next((n for n in sorted(medians) if n + 1 in medians and medians[n] <= medians[n + 1]), None)


def fit_knee(times: Mapping[int, Sequence[float]], *, resamples: int = 400, seed: int = 0) -> Knee:
    """The knee of the medians, and a bootstrap interval of n_sat over the repeats.

    k is real where that is proven and whole otherwise, by AICc with a floor of 1 % under the noise: with a receiver of
    4.5 senders the fifth one is seen to help a little (n_sat 5), but noise just above a whole number adds no sender.

    Args:
        times: seconds of each repeat, by n; at least n = 1 and one more.
        resamples: of the bootstrap. seed: of its random numbers.

    Raises:
        RequestError: fewer than two n, n below 1, or times that are not above 0.
    """
    n = np.array(sorted(times), dtype=np.float64)
    if len(n) < 2 or n[0] < 1 or any(not len(times[int(m)]) for m in n):
        raise RequestError("times", {m: len(own) for m, own in times.items()}, "times of two numbers of senders or more")
    logs = []
    for m in n:
        own = np.asarray(times[int(m)], dtype=np.float64)
        if not (np.isfinite(own) & (own > 0)).all():
            raise RequestError("times", own.tolist(), "seconds above 0")
        logs.append(np.log(own))
    y = np.array([np.median(own) for own in logs])
    k, constant, error = _knee(n, y)
    found = _resampled(n, logs, y - _line(n, k, constant), resamples, np.random.default_rng(seed))
    low, high = np.quantile(found, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], method="nearest")
    return Knee(k, _seen(k, n), math.exp(constant), error, _seen(float(low), n), _seen(float(high), n))


def _seen(k: float, n: Array) -> int | None:
    n_sat = math.ceil(k)
    return n_sat if n_sat < n[-1] else None


def _line(n: Array, k: float, constant: float) -> Array:
    found: Array = constant - np.log(np.minimum(n, k))
    return found


def _resampled(n: Array, logs: Sequence[Array], off: Array, resamples: int, random: np.random.Generator) -> Array:
    """Knees of resampled repeats.

    What is drawn is each n's own repeats. Few of them tell too little of their noise (three equal ones none at all), so
    their spread is pooled over all n, and what the fit leaves unexplained counts as noise of an n as a whole.
    """
    pool = np.concatenate([(own - np.median(own)) * _widened(len(own)) for own in logs])
    # The floor is in the decision between whole and real alone: an interval of noiseless data is a point.
    knees = []
    lack = off * _widened(len(n), 2)
    spread = [float(np.std(pool)) * 1.25 / math.sqrt(len(own)) for own in logs]
    beyond = math.sqrt(max(float(np.mean(lack**2)) - float(np.mean(np.square(spread))), 0.0))
    for _ in range(resamples):
        medians = [np.median(np.median(own) + random.choice(pool, len(own))) for own in logs]
        knees.append(_knee(n, np.array(medians) + beyond * random.standard_normal(len(n)))[0])
    return np.array(knees)


def _widened(count: int, parameters: int = 1) -> float:
    """Deviations from a fit to ``count`` numbers are too small by this."""
    return math.sqrt(count / (count - parameters)) if count > parameters else 1.0


def _knee(n: Array, y: Array) -> tuple[float, float, float]:
    """(k, constant, error) of the better one of the best real and the best whole k."""
    whole = min((_at(n, y, k) for k in range(1, int(n[-1]) + 1)), key=lambda found: found[2])
    real = min((_at(n, y, k) for k in _stationary(n, y)), key=lambda found: found[2], default=whole)
    better = whole
    if real[2] < whole[2] and _aicc(len(n), real[2], 3) < _aicc(len(n), whole[2], 2):
        better = real
    return better[0], better[1], better[2]


def _at(n: Array, y: Array, k: float) -> tuple[float, float, float]:
    own = y + np.log(np.minimum(n, k))
    constant = float(own.mean())
    return float(k), constant, float(np.sqrt(((own - constant) ** 2).mean()))


def _stationary(n: Array, y: Array) -> list[float]:
    """Between two measured n the error is a parabola in log k; where each has its lowest point, if that is inside."""
    found = []
    for place in range(1, len(n)):
        left, right = y[:place] + np.log(n[:place]), y[place:]
        k = math.exp(min(max(float(left.mean() - right.mean()), 0.0), 700.0))
        found += [k] if n[place - 1] < k < n[place] else []
    return found


def _aicc(count: int, error: float, parameters: int) -> float:
    """Akaike's criterion for few data: lower is better."""
    if count - parameters < 2:
        return math.inf
    likelihood = count * math.log(error**2 + _FLOOR**2)
    return likelihood + 2 * parameters + 2 * parameters * (parameters + 1) / (count - parameters - 1)
