"""Spot or on demand: how a simulated job with a deadline meets it.

All latencies count at their longest, so a deadline that on-demand VMs alone can meet is met. Work
counts only when it is durable: a checkpoint is made while it still can be before a move is forced.
"""

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.deadlines import (
    ON_DEMAND,
    SPOT,
    DeadlinePolicy,
    DeadlineProgress,
    on_demand_next,
    steps_on_spot,
)
from deepvm.core.preemption.job import Job
from deepvm.core.preemption.savepolicy import SaveFacts, SavePolicy, whole_steps
from deepvm.core.units import format_seconds
from deepvm.errors import RequestError, SimulationError
from deepvm.records import dataclass, replace
from deepvm.simulator.engine.state import NEVER, Runs


@dataclass(frozen=True)
class Deadline:
    """A job's deadline, seconds from its start, and the policy that chooses the market."""

    seconds: float
    policy: DeadlinePolicy


class Markets:
    """Chooses the market for all runs at once."""

    def __init__(self, job: Job, policy: SavePolicy, deadline: Deadline) -> None:
        """Raises RequestError (on demand, elastic), SimulationError (on-demand is too late)."""
        if job.market is not Market.SPOT or job.elastic:
            raise RequestError(
                "deadline",
                format_seconds(deadline.seconds),
                "jobs on spot VMs that are not elastic",
            )
        self._job = job
        self._deadline = deadline
        every = job.save_every_steps or 0
        fixed = float(policy.fixed_steps or 0)
        if policy.holds_on_demand:
            fixed = float(whole_steps(policy, SaveFacts(step_s=job.step_s.mean)))
        saves = sum(1 / k for k in (every, fixed) if k)
        self._step_s = job.step_s.high + saves * job.blocked_s.high
        self._save_s = job.save_s.high + job.durable_s.high + job.blocked_s.high
        preparation_s = max(job.preparation_s.high, job.replacement_s.high)
        self._restart_s = job.allocation_s.high + preparation_s
        # Leaving on-demand waits until the checkpoint is durable
        behind_s = 0.0
        if job.stall_s is not None:
            behind_s = job.save_s.high
        self._move_s = max(job.allocation_s.high, job.durable_s.high + behind_s) + preparation_s
        self._total_s = self._work_s(np.zeros(1))[0]
        needed = self._restart_s + self._total_s
        if needed > deadline.seconds:
            raise SimulationError(
                f"{job.name}: takes up to {needed / 3600:.2f} h on demand, more than the deadline"
                f" of {deadline.seconds / 3600:.2f} h; allow that time"
            )

    def _work_s(self, step: FloatArray) -> FloatArray:
        # One save more than the rate says: the first may come after any number of steps.
        return (self._job.steps - step) * self._step_s + 2 * self._job.blocked_s.high

    def _standing(self, r: Runs, rows: IntArray | slice) -> DeadlineProgress:
        return DeadlineProgress(
            work_s=self._work_s(r.step[rows]),
            left_s=self._deadline.seconds - r.now[rows],
            total_s=self._total_s,
            deadline_s=self._deadline.seconds,
            restart_s=self._restart_s,
            version_s=self._step_s + self._save_s,
        )

    def on_demand_next(self, r: Runs, rows: IntArray) -> BoolArray:
        return on_demand_next(self._deadline.policy, self._standing(r, rows))

    def keep(self, r: Runs) -> IntArray:
        """Set ``r.cap``, the steps until the next save at most; returns rows to change market."""
        choice = np.where(r.on_demand, ON_DEMAND, SPOT).astype("int8")
        restart_s = np.where(r.on_demand, self._move_s, self._restart_s)
        standing = replace(self._standing(r, slice(None)), on=choice, restart_s=restart_s)
        stay = self._deadline.policy.stay_s(standing)
        on_spot = steps_on_spot(self._deadline.policy, standing, self._step_s, self._save_s)
        # Before it leaves on-demand it makes a checkpoint, whose time is made good before
        gain = max(self._deadline.seconds / self._total_s - 1, 1e-9)
        on_demand = np.ceil(
            (stay + (stay > 0) * self._save_s / gain) / max(self._job.step_s.low, 1e-9)
        )
        cap = np.minimum(np.where(r.on_demand, on_demand, on_spot), NEVER)
        moved = r.training & (cap < 1) & (r.step < self._job.steps)
        # Anyone who moves, or waits already, does nothing in the next stretch
        r.cap = np.maximum(cap, 1.0)
        return np.flatnonzero(moved)
