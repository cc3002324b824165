"""A training job and its machines, for the simulator and closed forms (Spotify thesis, 6.2.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.savepolicy import SaveFacts
from deepvm.errors import RequestError


@dataclass(frozen=True)
class Span:
    """A latency that is uniform on [low, high), seconds; constant where ``low == high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Raise a RequestError unless 0 <= low <= high < infinity."""
        if not (0 <= self.low <= self.high < math.inf):
            raise RequestError(
                "latency", (self.low, self.high), "a time from 0 s, or [low, high] with low <= high"
            )

    @classmethod
    def of(cls, value: float) -> Span:
        """A constant."""
        return cls(value, value)

    @property
    def mean(self) -> float:
        """Mean, seconds."""
        return (self.low + self.high) / 2

    @property
    def variance(self) -> float:
        """Variance, square seconds."""
        return (self.high - self.low) ** 2 / 12

    def draw(self, random: np.random.Generator, count: int) -> FloatArray:
        """(count,) latencies."""
        if self.low == self.high:
            return np.full(count, self.low)
        return self.low + (self.high - self.low) * random.random(count)


ZERO = Span(0.0, 0.0)


@dataclass(frozen=True)
class Job:
    """What is trained, how long its phases take, and what the machines cost.

    Attributes:
        steps: optimizer steps in all. step_s: one of them. name: for people.
        save_s: writing a version. backup_s: from then until it is durable, in the background.
        allocation_s: from the request for a VM until it runs. preparation_s: from then until
            training resumes.
        grace_s: from the notice to the preemption; a span for notices that come late.
        mttp_s: mean time from a VM's request to its preemption: first VMs, replacements ...; the
            last value stays.
        save_every_steps: the user's own saves at multiples of so many steps; None: none.
        spot_usd_per_hour, on_demand_usd_per_hour: of one VM. market: the one it is bought in.
        missed_notice_rate: share of preemptions without a notice.
        stall_s: how long training stalls for a version; None: for ``save_s``, as for any emergency
            save.
        memory_node_s: pushing a version to a memory node, where it is durable at once; None:
            ``backup_s`` counts.
        warm_preparation_s: preparation of a replacement that has data and image already; None: as
            the first.
        proactive_replacement: whether a replacement is requested when the notice arrives, not when
            the VM is gone.
        vms: machines of the cluster. elastic: whether the rest trains on when one is lost; else all
            wait for it.
        lifetime: ``exponential``, ``weibull:SHAPE``, ``lomax:SHAPE`` or ``lognormal:SIGMA``, with
            the mean ``mttp_s``.
    """

    steps: int
    step_s: Span
    name: str = "job"
    save_s: Span = ZERO
    backup_s: Span = ZERO
    allocation_s: Span = ZERO
    preparation_s: Span = ZERO
    grace_s: Span = ZERO
    mttp_s: tuple[float, ...] = (math.inf,)
    save_every_steps: int | None = None
    spot_usd_per_hour: float = 0.0
    on_demand_usd_per_hour: float = 0.0
    market: Market = Market.SPOT
    missed_notice_rate: float = 0.0
    stall_s: Span | None = None
    memory_node_s: Span | None = None
    warm_preparation_s: Span | None = None
    proactive_replacement: bool = False
    vms: int = 1
    elastic: bool = False
    lifetime: str = "exponential"

    @property
    def durable_s(self) -> Span:
        """From the end of writing a version until it is durable."""
        return self.memory_node_s or self.backup_s

    @property
    def blocked_s(self) -> Span:
        """How long training stalls for a version that is not urgent."""
        return self.stall_s or self.save_s

    @property
    def replacement_s(self) -> Span:
        """Preparation of a replacement."""
        return self.warm_preparation_s or self.preparation_s

    @property
    def urgent_s(self) -> float:
        """From the end of a step until an emergency save is safe, mean."""
        return self.save_s.mean + self.durable_s.mean

    @property
    def save_facts(self) -> SaveFacts:
        """What a save policy knows of it by its means, but for preemptions."""
        return SaveFacts(
            save_s=self.blocked_s.mean,
            backup_s=self.durable_s.mean,
            step_s=self.step_s.mean,
            emergency_s=self.urgent_s,
            grace_s=self.grace_s.mean,
            restart_s=self.allocation_s.mean + self.replacement_s.mean,
        )
