"""Save intervals that grow with the age of the machine, many saves at once.

The interval of ``hazard`` is computed again at each save. Its square is linear in the machine's age
(see ``Hazard`` in deepvm.core.preemption.savepolicy), so from save to save it grows by nearly as
much each time, and sums over many saves are those of arithmetic series. Saves that are durable long
before anything happens to the machine are skipped at once (:func:`pass_over`); what is left is a
few intervals that hardly differ (:meth:`GrowingIntervals.alike`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from deepvm.simulator.engine.latencies import total
from deepvm.simulator.engine.state import TINY, rest_of

if TYPE_CHECKING:
    from deepvm.core.arrays import FloatArray
    from deepvm.core.preemption.job import Job
    from deepvm.core.preemption.save_intervals import Number
    from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy
    from deepvm.simulator.engine.state import Runs

ALIKE = 0.1
"""Intervals that differ by less count as equal: the cost is flat around the optimum."""
LINEAR = 1.0
"""The growth is taken as even until the interval has grown by this share of it."""
LEFT, DEVIATIONS = 1, 5
"""Saves not skipped: this many, and those within this many deviations of possible events."""
SLOWEST = 1e-6
"""A growth below this share of the interval, for each save, is none."""


@dataclass(frozen=True)
class GrowingIntervals:
    """Intervals from one save to the next, in steps; each is rounded down when its time comes.

    Attributes:
        first: (R,) the one that comes next, from 1. growth: (R,) how much longer each is than the
            one before, above 0.
    """

    first: FloatArray
    growth: FloatArray

    @classmethod
    def of(cls, policy: SavePolicy, facts: SaveFacts) -> GrowingIntervals:
        """As the policy weighs now and at the save that comes next."""
        first = np.maximum(policy.interval_s(facts) / facts.step_s, 1.0)
        then = replace(facts, age_s=facts.age_s + first * facts.step_s + facts.save_s)
        growth = np.maximum(policy.interval_s(then) / facts.step_s, 1.0) - first
        return cls(first, np.maximum(growth, SLOWEST * first))

    def alike(self, most: FloatArray, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """One of the next intervals that hardly differ, of ``most`` at most, and how many they are.

        Each is as likely: over many lives their mean and their spread are those of intervals that
        grow.
        """
        count = np.minimum(np.floor(1 + ALIKE * self.first / self.growth), np.floor(1 + most))
        return self.first + self.growth * np.floor(random.random(len(self.first)) * count), count

    def steps(self, count: FloatArray) -> FloatArray:
        """Whole steps in the next ``count`` intervals: the sum of floor(first + j growth)."""
        low = np.maximum(self.first - self.growth / 2, 1.0)
        over = np.maximum(count, 1.0) * self.growth
        return np.rint(count * (_floors(low + over) - _floors(low)) / over)

    def within(self, room: FloatArray, step: Number, save: Number) -> FloatArray:
        """How many intervals fit (fractional); a step takes ``step``, a save ``save``."""
        room = np.maximum(room, 0.0)
        half = self.growth * step / 2
        rest = self.first * step + save - half
        return 2 * room / np.maximum(rest + np.sqrt(rest * rest + 4 * half * room), TINY)


def _floors(to: FloatArray) -> FloatArray:
    """The integral of floor from 0."""
    whole = np.floor(to)
    return np.asarray(whole * (whole - 1) / 2 + whole * (to - whole))


def pass_over(
    r: Runs,
    gaps: GrowingIntervals,
    end: FloatArray,
    job: Job,
    slow: Number,
    random: np.random.Generator,
) -> None:
    """Train each row over the saves that are surely made before ``end`` (R,).

    Rows that do not train have nothing left until then. ``slow``: how many times ``job.step_s`` a
    step takes.
    """
    own = job.save_every_steps or job.steps
    mark = np.minimum(own - rest_of(r.step, own), job.steps - r.step)
    step = job.step_s.mean * slow
    save = job.blocked_s.mean
    saves = gaps.within(end - r.now, step, save)
    saves = np.minimum(
        np.minimum(saves, gaps.within(mark, 1.0, 0.0)), 1 + LINEAR * gaps.first / gaps.growth
    )
    variance = (1 + LINEAR) * gaps.first * job.step_s.variance * slow**2 + job.blocked_s.variance
    unsure = DEVIATIONS * np.sqrt(saves * variance) / (gaps.first * step + save)
    saves = np.floor(saves - LEFT - unsure)
    saves = np.where(saves > 1, saves, 0.0)
    if not saves.any():
        return
    steps = np.where(saves > 0, gaps.steps(saves), 0.0)
    trained = total(random, job.step_s, steps) * slow
    saved = total(random, job.blocked_s, saves)
    again = np.clip(r.furthest - r.step, 0.0, steps) / np.maximum(steps, 1.0) * trained
    r.compute += trained - again
    r.recompute += again
    r.save += saved
    r.now = r.now + trained + saved
    r.step = r.step + steps
    r.furthest = np.maximum(r.furthest, r.step)
    r.durable = np.where(saves > 0, r.step, r.durable)
