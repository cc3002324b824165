"""Pieces of the closed form of deepvm.core.makespan: expectations of latencies and of exponential lives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from deepvm.core.job import Span

Array = npt.NDArray[np.float64]


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
