"""A save policy for all runs at once: what it knows and learns, and its decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.preemption_estimators import Lifetimes, LomaxHistory, Notices
from deepvm.core.preemption.save_intervals import rounded_down
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy, whole_steps
from deepvm.simulator.engine.hazard_intervals import GrowingIntervals
from deepvm.simulator.engine.state import NEVER, Runs, rest_of

if TYPE_CHECKING:
    from deepvm.core.preemption.job import Job


class PolicyAdapter:
    """Asks one policy about one job."""

    def __init__(self, job: Job, policy: SavePolicy, behind_s: float, *, deadline: bool) -> None:
        """``behind_s``: mean part of a save during training; ``deadline``: if the job has one."""
        self._job = job
        self._deadline = deadline
        self._fixed = float(policy.fixed_steps) if policy.fixed_steps else None
        spot = job.market is Market.SPOT
        # On demand no work is lost, so saves pay for nothing; an interval that the user asked for
        # is kept all the same.
        self._everywhere = policy.holds_on_demand
        self._weighing = policy if policy.has_interval and (spot or self._everywhere) else None
        self._prior_s = min(job.mttp_s[0], NEVER) / job.vms  # of the cluster
        self._history = LomaxHistory.around(self._prior_s) if policy.by_age and spot else None
        self._measured = replace(job.save_facts, backup_s=job.durable_s.mean + behind_s)

    def begin(self, r: Runs) -> None:
        """Start without observations."""
        if self._history is not None:
            r.logs = np.zeros((len(r.number), len(self._history.scale_s)))
            r.shape[:], r.scale[:] = self._history.most_probable()

    def learn(
        self, r: Runs, rows: IntArray | slice, life_s: FloatArray, grace_s: FloatArray
    ) -> None:
        """Learn from an uncounted loss and its grace period; one too short to save is missed.

        A cluster counts as one machine that lives from the newest request to a loss.
        """
        life_s = np.maximum(life_s, 0.0)  # elastic clusters may request a machine in advance
        r.seen_s[rows] += life_s
        r.missed[rows] += self._measured.step_s + self._measured.emergency_s >= grace_s
        if self._history is None:
            return
        # Several times as fast as [rows]
        if isinstance(rows, slice):
            logs = r.logs
        else:
            logs = r.logs.take(rows, axis=0)
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
        """The next intervals if they grow with the age of the newest machine, else None."""
        if self._history is None or self._weighing is None or facts is None:
            return None
        if self._job.vms == 1:
            asked = r.asked[:, 0]
        else:
            asked = r.asked.max(1)
        age_s = np.maximum(r.now - asked, 0.0)  # elastic clusters may request a machine in advance
        return GrowingIntervals.of(self._weighing, replace(facts, age_s=age_s))

    def emergency_saves(self, facts: SaveFacts | None, grace_s: FloatArray) -> BoolArray | None:
        """Whether a notice with this grace period leads to a save; None: none does."""
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
        """Steps of a segment, number of segments, and whether each ends with a save.

        ``gaps``: of :meth:`growing_intervals`; ``until``: (R,) when something happens to the
        machine.
        """
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
        if self._fixed is not None:  # at multiples, wherever the last version was
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
        """Steps between two saves, and for how many saves."""
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
