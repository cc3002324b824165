"""The closed form of one job on its own VMs, as the tests ask for it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.job import Job
from deepvm.core.preemption.makespan import Forecast, forecast
from deepvm.core.preemption.savepolicy import POLICIES, SavePolicy

CHOOSING = tuple(name for name in POLICIES if name not in ("none", "auto"))
"""Policies that choose their interval without a budget.

In the order of the table, which drawn jobs depend on.
"""


class Expected(NamedTuple):
    total_s: float
    cost_usd: float
    preemptions: float


def of_one(job: Job, policy: SavePolicy) -> Forecast:
    rate = job.vms / job.mttp_s[0] if job.market is Market.SPOT else 0.0
    return forecast(
        job,
        policy,
        per_second=np.asarray(rate),
        step_s=np.asarray(job.step_s.mean),
        vms=np.asarray(float(job.vms)),
    )


def usd_per_vm_hour(job: Job) -> float:
    return job.spot_usd_per_hour if job.market is Market.SPOT else job.on_demand_usd_per_hour


def expected(job: Job, policy: SavePolicy) -> Expected:
    """Trust it only where it :func:`holds`."""
    found = of_one(job, policy)
    cost = (float(found.total_s) * job.vms + float(found.overlap_s)) / 3600 * usd_per_vm_hour(job)
    return Expected(float(found.total_s), cost, float(found.preemptions))


def holds(job: Job, policy: SavePolicy) -> bool:
    return bool(of_one(job, policy).sound)
