"""What a job learns about preemptions while it runs: mean lifetime, missed notices, hazard.

Each with a prior.

All attributes are numbers or arrays over many runs of one shape (with K at the end for
:class:`LomaxHistory`), so the simulator learns for all its runs at once. All history of the pool
counts: on real traces short moving windows estimate worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.preemption.save_intervals import Number, Truth


@dataclass(frozen=True)
class Lifetimes:
    """Mean of exponential lifetimes seen so far, some of them censored."""

    prior_s: Number
    strength: float = 1.0  # of the Gamma prior on their rate, in lifetimes of prior_s
    seen_s: Number = 0.0  # machine time
    preemptions: Number = 0.0

    @property
    def mean_s(self) -> Number:
        """(strength prior + time seen) / (strength + preemptions seen), seconds."""
        return (self.strength * self.prior_s + self.seen_s) / (self.strength + self.preemptions)

    def after(self, life_s: Number, preempted: Truth) -> Lifetimes:
        return replace(self, seen_s=self.seen_s + life_s, preemptions=self.preemptions + preempted)


@dataclass(frozen=True)
class Notices:
    """How often a preemption notice is missing or late, with the prior Beta(1, 9)."""

    missed: Number = 1.0
    seen: Number = 10.0

    @property
    def missed_rate(self) -> Number:
        return self.missed / self.seen

    def after(self, missed: Truth, preempted: Truth = True) -> Notices:
        """With one more lifetime; a censored one tells nothing."""
        return Notices(self.missed + (missed & preempted), self.seen + preempted)


@dataclass(frozen=True)
class LomaxHistory:
    """The Lomax law of lifetimes: hazard alpha/(beta + a) at the age a, falling with age.

    For a fixed scale beta, log(1 + life/beta) is exponential with the rate alpha, so a Gamma prior
    on alpha stays a Gamma: with the strength s and the mean alpha0, alpha ~ Gamma(s + preemptions,
    s/alpha0 + sum of log(1 + life/beta)). Beta is one of a grid of K scales; each has the
    likelihood of all lives with alpha integrated out.

    ``prior``: (K,) log of the scales' prior weights. ``logs``, ``watched_logs``: (..., K) sums of
    log(1 + life/beta) over all lifetimes, and over the censored ones.
    """

    scale_s: FloatArray
    prior: FloatArray
    logs: FloatArray
    shape0: float = 2.0
    strength: float = 5.0
    ended: Number = 0.0
    watched_logs: Number = 0.0

    @classmethod
    def around(cls, mttp_s: float, *, spread: float = 2.0, size: int = 13) -> LomaxHistory:
        """Prior: scales around the one with mean lifetime ``mttp_s``, which is beta/(alpha - 1).

        log beta is normal with deviation ``spread``, on a grid of ``size`` scales over three
        deviations to either side: on 32 real traces a grid of 24 was no better.
        """
        at = np.linspace(-3, 3, size)
        return cls(
            mttp_s * (cls.shape0 - 1) * np.exp(spread * at), -(at**2) / 2, logs=np.zeros(size)
        )

    def after(self, life_s: Number, preempted: Truth) -> LomaxHistory:
        # The simulator does this and the weights below for all its runs at each loss: so in few
        # passes, and in place.
        log = np.asarray(life_s, dtype=float)[..., None] * (1 / self.scale_s)
        log = np.log1p(log, out=log)
        ended = np.asarray(preempted, dtype=float)
        more = replace(self, ended=self.ended + ended, logs=self.logs + log)
        if np.all(preempted):
            return more
        return replace(more, watched_logs=self.watched_logs + log * (1 - ended)[..., None])

    def log_weights(self) -> FloatArray:
        """(..., K) logarithms of the posterior weights of the scales, up to a constant."""
        ended = np.asarray(self.ended, dtype=float)
        seen = self.logs
        if np.ndim(self.watched_logs):
            seen = seen - self.watched_logs
        rates = self.strength / self.shape0 + self.logs
        shapes = (self.strength + ended)[..., None] * np.log(rates, out=rates)
        scales = np.stack([np.ones_like(ended), -ended], -1) @ np.stack(
            [self.prior, np.log(self.scale_s)]
        )
        found: FloatArray = np.subtract(scales, shapes, out=shapes)
        found -= seen
        return found

    def shape(self) -> FloatArray:
        ended = np.asarray(self.ended)[..., None]
        return (self.strength + ended) / (self.strength / self.shape0 + self.logs)

    def most_probable(self) -> tuple[FloatArray, FloatArray]:
        """Shape and scale (seconds) at the most probable scale; arrays without K."""
        best = self.log_weights().argmax(axis=-1)
        return np.take_along_axis(self.shape(), best[..., None], -1)[..., 0], self.scale_s[best]
