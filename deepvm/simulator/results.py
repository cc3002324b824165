"""Results of simulated runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.arrays import FloatArray
from deepvm.core.preemption.job import Job
from deepvm.core.units import counted, format_seconds
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.engine.state import PARTS, Outcome
from deepvm.simulator.jobfile import job_document

FIGURES = ("total_s", "cost_usd", "preemptions")
"""Results of each run of which documents hold the spread."""


@dataclass(frozen=True)
class Spread:
    """Mean, its standard error, and the 5th, 50th and 95th percentile of the runs."""

    mean: float
    sem: float
    p5: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: FloatArray) -> Spread:
        """Of (runs,) values; the standard error of one run is taken as 0."""
        p5, p50, p95 = np.percentile(values, (5, 50, 95))
        sem = 0.0
        if len(values) > 1:
            sem = values.std(ddof=1) / math.sqrt(len(values))
        return cls(float(values.mean()), float(sem), float(p5), float(p50), float(p95))


@dataclass(frozen=True, repr=False)
class Results(Answer):
    """All runs of a job under a policy.

    Attributes:
        job: what was simulated. policy: its name. runs, seed: how many, and from which seed.
        total_s: (runs,) from the first request to the last step. cost_usd: (runs,) of all VMs.
            preemptions: (runs,).
        breakdown_s: means by ``PARTS``; they add up to the mean of ``total_s``.
        on_demand_share: of the machine time, the mean of the runs.
        deadline: that the job had to keep. sweep: by key, seconds for times.
    """

    job: Job
    policy: str
    runs: int
    seed: int
    total_s: FloatArray
    cost_usd: FloatArray
    preemptions: FloatArray
    breakdown_s: dict[str, float]
    on_demand_share: float
    deadline: Deadline | None = None
    sweep: dict[str, float] = field(default_factory=dict)

    @classmethod
    def gather(
        cls,
        job: Job,
        policy: str,
        seed: int,
        outcomes: Sequence[Outcome],
        deadline: Deadline | None = None,
    ) -> Results:
        """Join the runs of all chunks."""
        total = np.concatenate([o.total_s for o in outcomes])
        vm_s = np.concatenate([o.vm_s for o in outcomes])
        on_demand_s = np.concatenate([o.on_demand_s for o in outcomes])
        usd = (
            vm_s - on_demand_s
        ) * job.spot_usd_per_hour + on_demand_s * job.on_demand_usd_per_hour
        means = sum(o.parts_s.sum(axis=1) for o in outcomes) / len(total)
        preemptions = np.concatenate([o.preemptions for o in outcomes])
        breakdown = dict(zip(PARTS, np.asarray(means).tolist(), strict=True))
        share = float((on_demand_s / vm_s).mean())
        return cls(
            job,
            policy,
            len(total),
            seed,
            total,
            usd / 3600,
            preemptions,
            breakdown,
            share,
            deadline,
        )

    def __repr__(self) -> str:
        """Means of time, bill and preemptions."""
        time, cost, lost = (getattr(self, figure).mean() for figure in FIGURES)
        figures = f"{format_seconds(time)}, {cost:.2f} $, {lost:.1f} preemptions"
        return (
            f"<Results of {counted(self.runs, 'run')}: {self.job.name}, {self.policy}: {figures}>"
        )

    @property
    def late_share(self) -> float:
        """Share of the runs that missed the deadline; 0 without one."""
        if self.deadline is None:
            return 0.0
        return float((self.total_s > self.deadline.seconds).mean())

    @property
    def spreads(self) -> dict[str, Spread]:
        """Of ``FIGURES``, over the runs."""
        return {name: Spread.of(getattr(self, name)) for name in FIGURES}

    @property
    def job_values(self) -> dict[str, Any]:
        """The job with the keys of a job file."""
        return job_document(self.job)
