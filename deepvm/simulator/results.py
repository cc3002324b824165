"""Results of simulated runs."""

import math
from collections.abc import Sequence

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.arrays import FloatArray
from deepvm.core.json_types import JsonDict
from deepvm.core.preemption.job import Job
from deepvm.core.units import counted, format_seconds
from deepvm.records import dataclass, field
from deepvm.simulator.engine.markets import Deadline
from deepvm.simulator.engine.state import PARTS, Outcome
from deepvm.simulator.jobfile import job_document

FIGURES = ("total_s", "cost_usd", "preemptions")


@dataclass(frozen=True)
class Spread:
    """Mean, its standard error, and the 5th, 50th and 95th percentile of the runs."""

    mean: float
    sem: float
    p5: float
    p50: float
    p95: float

    @classmethod
    def of(cls, values: FloatArray) -> "Spread":
        sem = 0.0
        if len(values) > 1:
            sem = float(values.std(ddof=1) / math.sqrt(len(values)))
        return cls(float(values.mean()), sem, *np.percentile(values, (5, 50, 95)).tolist())


@dataclass(frozen=True, repr=False)
class Results(Answer):
    """All runs of a job under a policy."""

    job: Job
    policy: str
    runs: int
    seed: int
    total_s: FloatArray  # (runs,)
    cost_usd: FloatArray  # (runs,)
    preemptions: FloatArray  # (runs,)
    breakdown_s: dict[str, float]  # means by PARTS; they add up to that of total_s
    on_demand_share: float  # of the machine time
    deadline: Deadline | None = None
    sweep: dict[str, float] = field(default_factory=dict)  # by key, seconds for times

    @classmethod
    def gather(
        cls,
        job: Job,
        policy: str,
        seed: int,
        outcomes: Sequence[Outcome],
        deadline: Deadline | None = None,
    ) -> "Results":
        total = np.concatenate([o.total_s for o in outcomes])
        vm_s = np.concatenate([o.vm_s for o in outcomes])
        on_demand_s = np.concatenate([o.on_demand_s for o in outcomes])
        spot_s = vm_s - on_demand_s
        usd = spot_s * job.spot_usd_per_hour + on_demand_s * job.on_demand_usd_per_hour
        means = sum(o.parts_s.sum(axis=1) for o in outcomes) / len(total)
        return cls(
            job=job,
            policy=policy,
            runs=len(total),
            seed=seed,
            total_s=total,
            cost_usd=usd / 3600,
            preemptions=np.concatenate([o.preemptions for o in outcomes]),
            breakdown_s=dict(zip(PARTS, np.asarray(means).tolist(), strict=True)),
            on_demand_share=float((on_demand_s / vm_s).mean()),
            deadline=deadline,
        )

    def __repr__(self) -> str:
        time, cost, lost = (getattr(self, figure).mean() for figure in FIGURES)
        return (
            f"<Results of {counted(self.runs, 'run')}: {self.job.name}, {self.policy}:"
            f" {format_seconds(time)}, ${cost:.2f}, {lost:.1f} preemptions>"
        )

    @property
    def late_share(self) -> float:
        if self.deadline is None:
            return 0.0
        return float((self.total_s > self.deadline.seconds).mean())

    @property
    def spreads(self) -> dict[str, Spread]:
        return {name: Spread.of(getattr(self, name)) for name in FIGURES}

    @property
    def job_values(self) -> JsonDict:
        return job_document(self.job)
