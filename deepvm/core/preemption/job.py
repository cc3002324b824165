"""A training job and its machines, for the simulator and closed forms (Spotify thesis, 6.2.2)."""

import math

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import Market
from deepvm.core.preemption.savepolicy import SaveFacts
from deepvm.errors import RequestError
from deepvm.records import dataclass


@dataclass(frozen=True)
class Span:
    """A latency that is uniform on [low, high), seconds; constant where ``low == high``."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high < math.inf):
            raise RequestError(
                "latency", (self.low, self.high), "a time from 0 s, or [low, high] with low <= high"
            )

    @classmethod
    def of(cls, value: float) -> "Span":
        return cls(value, value)

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def variance(self) -> float:
        return self.width**2 / 12

    def draw(self, random: np.random.Generator, count: int) -> FloatArray:
        if self.low == self.high:
            return np.full(count, self.low)
        return self.low + self.width * random.random(count)


ZERO = Span(0.0, 0.0)


@dataclass(frozen=True)
class Job:
    """What is trained, how long its phases take, and what the machines cost."""

    steps: int
    step_s: Span
    name: str = "job"
    save_s: Span = ZERO  # writing a checkpoint
    backup_s: Span = ZERO  # from then until it is durable, in the background
    allocation_s: Span = ZERO  # from the request for a VM until it runs
    preparation_s: Span = ZERO  # from then until training resumes
    grace_s: Span = ZERO  # from the notice to the preemption; a span for late notices
    # from a VM's request to its preemption: first VMs, replacements ...
    mttp_s: tuple[float, ...] = (math.inf,)
    save_every_steps: int | None = None  # the user's own saves
    spot_usd_per_hour: float = 0.0  # of one VM
    on_demand_usd_per_hour: float = 0.0
    market: Market = Market.SPOT
    missed_notice_rate: float = 0.0  # of preemptions without a notice
    stall_s: Span | None = None  # for a checkpoint that is not urgent; None: for save_s
    memory_node_s: Span | None = None  # pushing a checkpoint there, where it is durable at once
    warm_preparation_s: Span | None = None  # of a replacement; None: as the first
    proactive_replacement: bool = False  # a replacement is requested when the notice arrives
    vms: int = 1
    elastic: bool = False  # the rest trains on when a VM is lost; else all wait for it
    lifetime: str = "exponential"  # or weibull:SHAPE, lomax:SHAPE, lognormal:SIGMA

    @property
    def durable_s(self) -> Span:
        """From the end of writing a checkpoint until it is durable."""
        return self.memory_node_s or self.backup_s

    @property
    def blocked_s(self) -> Span:
        """How long training stalls for a checkpoint that is not urgent."""
        return self.stall_s or self.save_s

    @property
    def replacement_s(self) -> Span:
        return self.warm_preparation_s or self.preparation_s

    @property
    def urgent_s(self) -> float:
        return self.save_s.mean + self.durable_s.mean

    @property
    def save_facts(self) -> SaveFacts:
        return SaveFacts(
            save_s=self.blocked_s.mean,
            backup_s=self.durable_s.mean,
            step_s=self.step_s.mean,
            emergency_s=self.urgent_s,
            grace_s=self.grace_s.mean,
            restart_s=self.allocation_s.mean + self.replacement_s.mean,
        )
