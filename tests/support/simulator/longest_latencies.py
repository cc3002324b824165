"""Shared by the tests of markets."""

from __future__ import annotations

import math

from deepvm.core.preemption.job import Job


def longest(job: Job, policy: str) -> float:
    """The most that the job may take on demand: each latency at its longest, a save at each
    multiple and time.
    """
    steps, (kind, _, number) = job.steps, policy.partition(":")
    k = (
        int(number)
        if kind == "static"
        else math.ceil(int(number) / job.step_s.mean)
        if kind == "every"
        else 0
    )
    saves = sum(steps / n for n in (k, job.save_every_steps or 0) if n) + 2
    warm = job.warm_preparation_s or job.preparation_s
    restart = job.allocation_s.high + max(job.preparation_s.high, warm.high)
    return steps * job.step_s.high + saves * job.blocked_s.high + restart
