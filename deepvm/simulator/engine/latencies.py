"""Latencies of many segments at once: their sums, and the newest durable checkpoint.

Sums of n uniform latencies are drawn from the uniform law with the same mean and variance, exact
for n = 1. The checkpoint k back from the newest is durable with a known probability F_k; the newest
durable one is more than k back with probability (1 - F_0) ... (1 - F_k), drawn by one number.
"""

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.preemption.job import Span
from deepvm.simulator.engine.state import TINY

# Backups in flight tracked one by one; beyond it neighbors are merged to bound look-back
AT_ONCE = 4096
GRID = 1000  # Points of the numerical integral


def total(random: np.random.Generator, span: Span, count: FloatArray | BoolArray) -> FloatArray:
    """Sum of ``count`` latencies per row; a mask counts as 0 or 1."""
    if span.low == span.high:
        return np.asarray(span.low * count)
    drawn = random.random(len(count)) * span.width
    if count.dtype == bool:
        return drawn + span.low
    return span.mean * count + (drawn - span.width / 2) * np.sqrt(count)


def remainder(whole: Span, part: Span) -> Span:
    """Remainder of one latency after another that started with it; 0 if the other is longer."""
    if part.high <= whole.low:
        return Span(whole.low - part.mean, whole.high - part.mean)
    # It is not uniform then: a uniform one from 0 with the same mean
    parts = part.low + part.width * (np.arange(GRID) + 0.5) / GRID
    low = np.maximum(whole.low - parts, 0.0)
    high = np.maximum(whole.high - parts, 0.0)
    mean = high
    if whole.high > whole.low:
        over = high - low  # the part of the whole that is longer
        mean = over * (low + over / 2) / max(whole.width, TINY)
    return Span(0.0, 2 * float(mean.mean()))


class Backups:
    """Seconds from a stall's end until durable: two uniform latencies; ``high``: the longest."""

    def __init__(self, durable: Span, behind: Span) -> None:
        """``durable``: from the end of the write; ``behind``: the write's part during training."""
        self._durable = durable
        self._behind = behind
        self._low = durable.low + behind.low
        self.high = durable.high + behind.high
        widths = (span.width for span in (durable, behind))
        self._narrow, self._wide = sorted(width if width > TINY else 0.0 for width in widths)

    def draw(self, random: np.random.Generator, saved: BoolArray) -> FloatArray:
        drawn = total(random, self._durable, saved)
        if self._behind.high:
            return drawn + total(random, self._behind, saved)
        return drawn

    def chance(self, age: FloatArray) -> FloatArray:
        """Probability that a checkpoint is durable ``age`` seconds after its stall."""
        x = age - self._low
        narrow = self._narrow
        wide = self._wide
        if narrow > 1e-6 * wide:  # the mean of the wide one's law over the narrow one
            found = (self._ramp(x) - self._ramp(x - narrow)) / narrow
        elif wide:  # the narrow one is a mere shift
            found = (x - narrow / 2) / wide
        else:
            found = np.zeros(len(x))
        return np.where(age >= self.high, 1.0, np.clip(found, 0.0, 1.0))

    def _ramp(self, x: FloatArray) -> FloatArray:
        within = np.clip(x, 0.0, self._wide)
        return within * within / (2 * self._wide) + np.maximum(x - self._wide, 0.0)

    def reorder(
        self,
        random: np.random.Generator,
        safe: FloatArray,
        age: FloatArray,
        apart: FloatArray,
        made: FloatArray,
    ) -> None:
        """Correct ``safe``, the number of the newest durable save, if a later one may be first.

        ``age``: of the newest checkpoint at the loss; ``apart``: between two; ``made``: its number,
        below 1: none.
        """
        width = self._narrow + self._wide
        overlap = apart < width
        if not overlap.any():
            return
        rows: IntArray = np.flatnonzero(overlap & (age < self.high) & (made > 0))
        if not len(rows):
            return
        age = age[rows]
        apart = apart[rows]
        made = made[rows]
        safe[rows] = 0.0
        drawn = random.random(len(rows))
        above = np.ones(len(rows))
        together = np.ceil(width / apart / AT_ONCE)
        back = np.maximum(np.ceil((self._low - age) / apart), 0.0)
        while True:
            middle = back + np.floor(together / 2)
            above = above * (1 - self.chance(age + middle * apart)) ** together
            found = above <= drawn
            safe[rows[found]] = np.maximum(made - middle, 0.0)[found]
            back = back + together
            on = np.flatnonzero(~found & (back < made))
            if not len(on):
                return
            columns = (age, apart, made, drawn, above, together, back)
            rows = rows[on]
            age, apart, made, drawn, above, together, back = (column[on] for column in columns)
