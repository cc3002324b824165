"""A save policy for all runs at once: what it knows and learns, and its decisions.

The square of the interval of ``hazard`` is linear in age, so it grows evenly from save to save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job
from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory, Notices
from deepvm.core.preemption.save_intervals import rounded_down
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy, whole_steps
from deepvm.records import dataclass, replace
from deepvm.simulator.engine.latencies import total
from deepvm.simulator.engine.state import NEVER, TINY, Runs, rest_of

if TYPE_CHECKING:
    from deepvm.core.preemption.save_intervals import Number

ALIKE = 0.1  # Intervals that differ by less count as equal: the cost is flat around the optimum
LINEAR = 1.0  # The growth is taken as even until the interval has grown by this share of it
# Saves not skipped: this many, and those within this many deviations of possible events
LEFT, DEVIATIONS = 1, 5
SLOWEST = 1e-6  # A growth below this share of the interval, for each save, is none


@dataclass(frozen=True)
class GrowingIntervals:
    """Intervals from one save to the next, in steps; each is rounded down when its time comes."""

    first: FloatArray  # (R,), from 1
    growth: FloatArray  # (R,) from each to the one after, above 0

    @classmethod
    def of(cls, policy: SavePolicy, facts: SaveFacts) -> GrowingIntervals:
        first = np.maximum(policy.interval_s(facts) / facts.step_s, 1.0)
        then = replace(facts, age_s=facts.age_s + first * facts.step_s + facts.save_s)
        growth = np.maximum(policy.interval_s(then) / facts.step_s, 1.0) - first
        return cls(first, np.maximum(growth, SLOWEST * first))

    def alike(self, most: FloatArray, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """One of the next intervals that hardly differ, as likely each, and how many they are."""
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
    slow: FloatArray | float,
    random: np.random.Generator,
) -> None:
    """Train over the saves that are surely made before ``end`` (R,); ``slow``: factor of steps."""
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


class PolicyAdapter:
    """Asks one policy about one job."""

    def __init__(self, job: Job, policy: SavePolicy, behind_s: float, *, deadline: bool) -> None:
        """``behind_s``: mean part of a save during training; ``deadline``: if the job has one."""
        self._job = job
        self._deadline = deadline
        self._fixed = float(policy.fixed_steps) if policy.fixed_steps else None
        spot = job.market is Market.SPOT
        # On demand no work is lost: only an interval that the user requested is kept
        self._everywhere = policy.holds_on_demand
        self._weighing = policy if policy.has_interval and (spot or self._everywhere) else None
        self._prior_s = min(job.mttp_s[0], NEVER) / job.vms  # of the cluster
        self._history = LomaxHistory.around(self._prior_s) if policy.by_age and spot else None
        self._measured = replace(job.save_facts, backup_s=job.durable_s.mean + behind_s)

    def begin(self, r: Runs) -> None:
        if self._history is not None:
            r.logs = np.zeros((len(r.number), len(self._history.scale_s)))
            r.shape[:], r.scale[:] = self._history.most_probable()

    def learn(
        self, r: Runs, rows: IntArray | slice, life_s: FloatArray, grace_s: FloatArray
    ) -> None:
        """Learn from a loss that is not counted yet; a grace period too short to save is missed."""
        life_s = np.maximum(life_s, 0.0)  # elastic clusters may request a machine in advance
        r.seen_s[rows] += life_s
        r.missed[rows] += self._measured.step_s + self._measured.emergency_s >= grace_s
        if self._history is None:
            return
        # Several times as fast as [rows]
        logs = r.logs
        if not isinstance(rows, slice):
            logs = logs.take(rows, axis=0)
        known = replace(self._history, ended=r.preemptions[rows], logs=logs).after(life_s, True)
        r.logs[rows] = known.logs
        r.shape[rows], r.scale[rows] = known.most_probable()

    def facts(self, r: Runs, slow: FloatArray | float) -> SaveFacts | None:
        """What the policy may know now, None if it asks nothing; ``slow``: of steps."""
        if self._weighing is None:
            return None
        seen = Lifetimes(self._prior_s, seen_s=r.seen_s, preemptions=r.preemptions)
        notices = Notices(Notices.missed + r.missed, Notices.seen + r.preemptions)
        step_s = self._measured.step_s * slow
        missed = notices.missed_rate
        facts = replace(self._measured, step_s=step_s, mttp_s=seen.mean_s, missed_rate=missed)
        if self._history is None:
            return facts
        return replace(facts, shape=r.shape, scale_s=r.scale)

    def growing_intervals(self, r: Runs, facts: SaveFacts | None) -> GrowingIntervals | None:
        if self._history is None or self._weighing is None or facts is None:
            return None
        asked = r.asked[:, 0]
        if self._job.vms > 1:
            asked = r.asked.max(1)
        age_s = np.maximum(r.now - asked, 0.0)  # elastic clusters may request a machine in advance
        return GrowingIntervals.of(self._weighing, replace(facts, age_s=age_s))

    def emergency_saves(self, facts: SaveFacts | None, grace_s: FloatArray) -> BoolArray | None:
        if self._weighing is None or facts is None or not self._job.grace_s.high:
            return None
        # The grace period of this notice counts, not the usual one.
        saves = np.asarray(self._weighing.emergency(replace(facts, grace_s=grace_s)))
        if saves.any():
            return saves
        return None

    def stretch(
        self,
        r: Runs,
        facts: SaveFacts | None,
        gaps: GrowingIntervals | None,
        until: FloatArray,
        random: np.random.Generator,
    ) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Steps of a segment, number of segments up to ``until``, whether each ends with a save."""
        interval, most = self._interval(r, facts, gaps, until, random)
        step = r.step
        mark = self._job.steps - step
        own = self._job.save_every_steps
        if own:
            off = own - rest_of(step, own)
            # From one of the user's saves to the next, where the policy has none between them.
            regular = (off == own) & (interval >= own) & (self._fixed is None)
            mark = np.where(regular, mark, np.minimum(mark, off))
            interval = np.where(regular, float(own), interval)
        if self._fixed is not None:  # at multiples, wherever the last checkpoint was
            off = interval - rest_of(step, interval)
            mark = np.where(off < interval, np.minimum(mark, off), mark)
        if self._deadline:
            mark = np.minimum(mark, r.cap)
        count = np.minimum(np.floor((mark - 1) / interval), most)
        steps = np.where(count > 0, interval, mark)
        end = step + steps
        saved = steps == interval
        if self._deadline:
            saved |= steps == r.cap
        if own:
            saved |= rest_of(end, own) == 0
        if self._fixed is not None:
            saved |= rest_of(end, interval) == 0
        return steps, np.maximum(count, 1), saved

    def _interval(
        self,
        r: Runs,
        facts: SaveFacts | None,
        gaps: GrowingIntervals | None,
        until: FloatArray,
        random: np.random.Generator,
    ) -> tuple[FloatArray | float, FloatArray | float]:
        most: FloatArray | float = 1.0 if self._deadline else NEVER  # another cap after each save
        if self._fixed is not None:
            return self._fixed, most
        if self._weighing is None or facts is None:
            return NEVER, most
        if gaps is None:
            interval = np.asarray(whole_steps(self._weighing, facts), dtype=float)
        elif self._deadline:
            interval = np.asarray(rounded_down(gaps.first))
        else:
            interval, most = gaps.alike(
                gaps.within(until - r.now, facts.step_s, facts.save_s), random
            )
            interval = np.asarray(rounded_down(interval))
        interval = np.minimum(interval, NEVER)
        if self._deadline and not self._everywhere:
            interval = np.where(r.on_demand, NEVER, interval)
        return interval, most
