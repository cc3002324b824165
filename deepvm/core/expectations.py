"""Pieces of the closed form of deepvm.core.makespan: expectations of latencies and of exponential lives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepvm.core.job import Job, Span

Array = npt.NDArray[np.float64]

_PARTS = 12


def effective(mean: Array, width: Array, rate: Array) -> Array:
    """Effective length of a latency uniform around a mean, seconds: -log(E exp(-rate x))/rate."""
    x = rate * width / 2
    # log(sinh(x)/x) loses its digits near 0, where it is x^2/6.
    log = np.where(x > 1e-4, np.log(np.sinh(np.clip(x, 1e-4, 500.0)) / np.clip(x, 1e-4, 500.0)), x**2 / 6)
    return np.asarray(mean - log / rate)


def cut(rate: Array, most: Array, end: Array) -> Array:
    """E[min(life, most); life < end] of an exponential life, most <= end, seconds."""
    lives = np.exp(-rate * most)
    return np.asarray((1 - lives) / rate - most * lives + most * (lives - np.exp(-rate * end)))


def left_of(span: Span, head: Array) -> Array:
    """What is left on average of a latency that began ``head`` seconds earlier, seconds."""
    width = max(span.high - span.low, 1e-9)
    inside = np.clip(span.high - head, 0.0, width)
    return np.asarray(inside**2 / (2 * width) + np.maximum(span.low - head, 0.0))


def believed(bad: Array, preemptions: Array) -> Array:
    """The missed rate that a job believes in over its life, from 0.1 before anything is seen; see ``Notices``.

    Intervals go with its root, so the root is averaged over the course of the learning.
    """
    at = np.array([0.1127, 0.5, 0.8873])  # Gauss-Legendre on (0, 1)
    seen = preemptions[..., None] * at
    root = ((1 + bad[..., None] * seen) / (10 + seen)) ** 0.5
    return np.asarray(np.sum(root * np.array([5, 8, 5]) / 18, axis=-1) ** 2)


def union(steps: int, every: int, period: int) -> tuple[list[tuple[float, float]], float]:
    """Segments between multiples of either number: (steps, how many) with the commonest first, and what is left."""
    at = np.union1d(np.arange(every, steps + 1, every), np.arange(period, steps + 1, period))
    if not len(at):
        return [(float(steps + 1), 0.0)], float(steps)
    lengths, counts = np.unique(np.diff(at, prepend=0), return_counts=True)
    order = np.argsort(-counts, kind="stable")
    pieces = [(float(lengths[i]), float(counts[i])) for i in order]
    return pieces, float(steps - at[-1])


def learnt_spread(preemptions: Array) -> Array:
    """Relative deviation of a learnt mean lifetime, in those jobs that see any life end; see ``Lifetimes``.

    A mean of n lives seen and of one that was believed in has the relative variance n/(1+n)^2: on average over a job.
    """
    n = preemptions
    return np.asarray(((np.log1p(n) + 1 / (1 + n) - 1) / (n * -np.expm1(-n))) ** 0.5)


def in_time(job: Job, step: Array) -> Array:
    """Share of the notices upon which an emergency save is done in time, for each of the steps, (S,).

    Rest of the step, and the save: the middles of equal parts of their laws, each with each. The grace period is
    uniform, and has to be long enough for both, and for the policy to begin, which asks for their means.
    """
    grace, points = job.grace_s, (np.arange(_PARTS) + 0.5) / _PARTS
    spread = (job.save_s.variance + job.durable_s.variance) ** 0.5 * 12**0.5
    urgent = job.save_s.mean + job.durable_s.mean
    every = step[:, None, None]
    needed = np.maximum(every + urgent, every * points[:, None] + urgent + spread * (points - 0.5))
    return np.asarray(np.clip((grace.high - needed) / max(grace.high - grace.low, 1e-9), 0.0, 1.0).mean(axis=(1, 2)))


def one_try(
    rate: Array, grace: float, newest: Array, needed: Array, bad: Array, step: Array | None
) -> tuple[Array, Array]:
    """Probability that a life does not come to training, and the time until it does, or until its end.

    A notice counts from when it is there. That is g before the end of the newest VM's life, which began with the
    request; the others, n-1 of n, are older than g, and their notices come at the same rate at any time.

    Args:
        rate: preemptions a second.
        grace: g, seconds.
        newest: share of the newest VM in the preemptions.
        needed: allocation and preparation, seconds.
        bad: share of the preemptions that no emergency save covers.
        step: a step and an emergency save, at most g; None: the next request comes with the notice.
    """
    reached = np.exp(-rate * needed)
    if step is None:
        first, others = np.exp(-rate * grace) * cut(rate, needed, needed), cut(rate, needed, needed)
    else:  # after a step and an emergency save, or at the end of the life
        late = np.maximum(needed + step - grace, 0.0)
        first = cut(rate, needed + step, needed + grace)
        others = cut(rate, late, needed) - np.expm1(-rate * needed) * grace
    good = reached * (newest * np.exp(-rate * grace) + 1 - newest)
    begins = (1 - bad) * good + bad * reached
    wasted = (1 - bad) * (newest * first + (1 - newest) * others) + bad * cut(rate, needed, needed)
    return 1 - begins, needed * begins + wasted


def younger(rate: Array, delay: Array, segment: Array) -> Array:
    """E[min(life, age)] of an exponential life and the age of the newest durable version, seconds.

    The age is the delay until a version is durable and a uniform part of a segment.
    """
    none = -np.expm1(-rate * segment)
    return np.asarray(-np.expm1(-rate * delay) / rate + np.exp(-rate * delay) * (1 / rate - none / (rate**2 * segment)))
