"""How fast clusters of one VM type train a workload, with the uncertainty and its causes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.provenance import PLAIN, UNPUBLISHED
from deepvm.core.cluster.speedup import STEP_TIME, SpeedupCurve
from deepvm.core.training.evidence import COMPUTE, NOISE, Evidence, Loading, weights
from deepvm.core.training.roofline import (
    OVERLAP,
    REACH,
    WITHOUT_WHEELS,
    Machine,
    Steps,
    fit_memory,
    joined,
    memory_needed,
    state_bytes,
)
from deepvm.core.training.workload import Precision, Workload
from deepvm.core.units import Interval
from deepvm.records import dataclass, field

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import InstanceType


NO_FIT = "it cannot be trained so"

READING = "reading"  # Name of the uncertainty in how fast samples are read
# Standard deviation of log(samples read per vCPU): photographs and processors differ by half
READING_SD = 0.3


class Source(str, Enum):
    """Where a speed comes from, the best first."""

    MEASURED = "measured"  # by this user
    PUBLISHED = "published"  # of this model on this GPU
    DERIVED = "derived"  # from data sheets and what was published of other models and GPUs


@dataclass(frozen=True)
class SpeedUncertainty:
    """The doubt in several speeds, as deviations of their logarithms."""

    shared: FloatArray  # (sizes, directions): of independent causes of variance 1
    # further causes by name, such as that of an unknown GPU, (sizes,)
    named: Mapping[str, FloatArray]
    own: FloatArray  # variance that no other speed shares, (sizes,)

    @cached_property
    def sd(self) -> FloatArray:
        """Standard deviation of the logarithm of each speed, (sizes,)."""
        named = sum((cause**2 for cause in self.named.values()), np.zeros_like(self.own))
        return np.asarray(np.sqrt((self.shared**2).sum(axis=1) + named + self.own))

    def at(self, rows: IntArray) -> SpeedUncertainty:
        return SpeedUncertainty(
            self.shared[rows],
            {name: cause[rows] for name, cause in self.named.items()},
            self.own[rows],
        )

    def apart(self, other: SpeedUncertainty) -> float:
        """Standard deviation of the log ratio of two first speeds, without ``own``."""
        none = np.zeros(1)
        names = {**self.named, **other.named}
        named = [self.named.get(n, none)[0] - other.named.get(n, none)[0] for n in names]
        return float(np.linalg.norm([*(self.shared[0] - other.shared[0]), *named]))

    def where_reading(self, waits: InputStall) -> SpeedUncertainty:
        """Uncertainty of steps that may wait for input: the GPUs', as far as they decide."""
        left = 1 - waits.probability
        shared = self.shared * left[:, None]
        named = {name: cause * left for name, cause in self.named.items()}
        rest = np.sqrt(np.maximum(waits.sd**2 - (left * waits.computed_sd) ** 2, 0.0))
        return SpeedUncertainty(shared, {**named, READING: rest}, self.own)


@dataclass(frozen=True)
class Parts:
    """Parts of a step on n VMs by data sheets and published runs, (sizes,), seconds."""

    steps: Steps
    grad_s: FloatArray
    sync_s: FloatArray
    straggling: FloatArray  # log of how much longer gradients take than on one GPU
    per_vm: float
    evidence: Evidence
    # what published runs say, each of some of the sizes
    loadings: Callable[[], Iterator[tuple[IntArray, Loading]]] = field(repr=False)

    def share(self, grad_s: FloatArray) -> FloatArray:
        """By how much per cent a step with these gradients grows with 1 % more synchronization."""
        return (self.sync_s / joined(grad_s, self.sync_s, OVERLAP)) ** OVERLAP

    def doubt(self, share: FloatArray | None = None, *, gradients: bool = True) -> SpeedUncertainty:
        """``share``: of synchronization; without ``gradients``: only of what more GPUs add."""
        if share is None:
            share = self.share(self.grad_s)
        sizes = len(self.grad_s)
        local = np.full(sizes, math.log(self.per_vm))
        parts = weights(share, local, np.log(self.steps.vms))
        if not gradients:
            parts[:, COMPUTE] = 0.0
        shared = np.zeros((sizes, len(self.evidence.names)))
        named = dict[str, FloatArray]()
        for rows, loading in self.loadings():
            shared[rows] = loading.shared(parts[rows])
            for effect, deviation in loading.unlearned(parts[rows]).items():
                named.setdefault(effect, np.zeros(sizes))[rows] = deviation
        return SpeedUncertainty(shared, named, np.full(sizes, NOISE**2))


@dataclass(frozen=True, repr=False)
class TrainingSpeed(Answer):
    """How fast n VMs train, for several n; arrays of shape (sizes,)."""

    machine: Machine
    workload: Workload
    precision: Precision
    vms: FloatArray  # the sizes n, ascending
    fits: BoolArray
    step_s: FloatArray  # median
    throughput: FloatArray  # median of all VMs together
    checkpointing: BoolArray
    micro_batch: FloatArray
    batch: FloatArray
    doubt_of: Callable[[], SpeedUncertainty] = field(repr=False)
    parts: Parts = field(repr=False)  # by data sheets and published runs
    source: Source = Source.DERIVED
    fitted_vms: int = 1  # largest cluster that the source has seen
    measured: str = ""  # where, when and how often
    # which sizes were measured, or are near those
    covered: BoolArray | None = field(default=None, repr=False)
    software: str = field(default="", repr=False)
    # what is uncertain about the measured size at an index
    warnings_of: Callable[[int], Iterator[str]] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        found = self.interval
        speed = f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g}) {self.workload.units}"
        if not self.fits[0]:
            speed = "it does not fit into their memory"
        return (
            f"<TrainingSpeed: {self.workload.model.name} on {self.gpu_count} x"
            f" {self.machine.accelerator.name}: {speed}>"
        )

    @property
    def gpu_count(self) -> int:
        return round(float(self.vms[0]) * self.machine.gpus)

    @cached_property
    def doubt(self) -> SpeedUncertainty:
        return self.doubt_of()

    @property
    def sd(self) -> FloatArray:
        return self.doubt.sd

    @property
    def trusted_vms(self) -> int:
        """The largest n to believe, 1.5 x the largest that was seen."""
        return int(REACH * self.fitted_vms)

    @property
    def proven_vms(self) -> float:
        """The largest n, at least 1, whose step has no more than ``Workload.proven_samples``."""
        return max(1.0, self.workload.proven_samples / (self.workload.batch * self.machine.gpus))

    @property
    def needs(self) -> str:
        """What the workload lacks where it fits nowhere, in words; empty where it fits."""
        if self.fits.any():
            return ""
        return memory_needed(
            self.workload, self.machine, self.precision, int(self.vms.min()), int(self.vms.max())
        )

    @property
    def interval(self) -> Interval:
        return Interval.of_log(float(self.throughput[0]), float(self.sd[0]))

    @property
    def step_interval(self) -> Interval:
        return Interval.of_log(float(self.step_s[0]), float(self.sd[0]))

    @property
    def state_bytes(self) -> float:
        """Weights, gradients and optimizer on each GPU of the first size, bytes."""
        gpus = self.vms[:1] * self.machine.gpus
        memory = fit_memory(self.workload, self.machine.accelerator, self.precision, gpus)
        sharded = bool(memory.sharded[0])
        return float(state_bytes(self.workload, self.precision, gpus, sharded=sharded)[0])

    @property
    def mfu(self) -> float:
        """Model FLOP utilization of the first size (PaLM, appendix B)."""
        samples = float(self.throughput[0]) / self.workload.model.units_per_sample
        peak = self.machine.accelerator.peak_tflops[self.precision.value] * 1e12
        flops = samples * self.workload.flop_of_step(checkpointing=False)
        return flops / (float(self.vms[0]) * self.machine.gpus * peak)

    def waits(self, place: int) -> bool:
        reading = self.doubt.named.get(READING)
        return reading is not None and bool(reading[place] >= READING_SD / 2)

    def too_many(self, vms: int) -> str:
        each = self.workload.model.units_per_sample
        step = self.workload.batch * vms * self.machine.gpus * each
        most = self.workload.proven_samples * each
        return (
            f"a step has {step:,.0f} {self.workload.model.unit}, and up to {most:,.0f} were shown"
            " to train as well as few"
        )

    def doubts(self, place: int) -> Iterator[str]:
        model = self.workload.model
        vms = int(self.vms[place])
        predicted = self.warnings_of is None
        if not self.fits[place]:
            yield f"{NO_FIT}: {self.needs or f'it does not fit into the memory of {vms} VMs'}"
        if self.precision is Precision.FP8 and not self.measured:
            yield "in fp8 with torch.compile, without which its casts cost what it saves"
        lacks = WITHOUT_WHEELS.get(self.machine.accelerator.name)
        if lacks and not self.measured:
            yield f"{lacks}: it takes one that you have built"
        if self.warnings_of:
            yield from self.warnings_of(place)
        elif self.source is Source.DERIVED:
            run = (
                f"{model.name} with {self.workload.method.value} on {self.machine.accelerator.name}"
            )
            yield (
                f"{UNPUBLISHED}{run} in {self.precision.value} is known: derived from data sheets"
                " and runs of other models and GPUs"
            )
        if self.waits(place):
            yield (
                f"{self.machine.vcpus} vCPUs read about {self.workload.model.reads_per_vcpu:g}"
                " samples a second each, and the GPUs may wait for them: decode on GPUs, or rent a"
                " VM with more vCPUs"
            )
        elif self.workload.model.reads_per_vcpu and self.machine.vcpus is None and predicted:
            each = float(self.throughput[place]) / self.workload.model.reads_per_vcpu
            yield (
                f"it takes about {each:.0f} vCPUs to read so many images; with fewer the GPUs wait"
            )
        if vms > self.proven_vms:
            yield (
                f"{self.too_many(vms)}; with more, the same accuracy may take more of them: say"
                " --global-batch"
            )
        if predicted:
            yield from self.network_doubts(place)
        shape = self.workload.model.transformer
        if self.software == "eager" and shape is not None and shape.vocabulary and predicted:
            yield f"{PLAIN}; Hugging Face Transformers and PEFT are slower: --software transformers"

    def network_doubts(self, place: int, why: str = "") -> Iterator[str]:
        vms = int(self.vms[place])
        if vms > self.trusted_vms:
            yield (
                f"{vms} VMs of {self.machine.gpus:g} x {self.machine.accelerator.name} are more"
                f" than 1.5 times the {self.fitted_vms} that such networks were checked with"
            )
        if vms > 1:
            yield f"network: {why}{self.machine.interconnect.basis}"


class SpeedSource(Protocol):
    """Knows how fast types of VMs train, see ``deepvm.catalog.published.performance``."""

    def speed(
        self, instance: InstanceType, workload: Workload, vms: FloatArray
    ) -> TrainingSpeed | str:
        """The speed of clusters of these sizes, or why there is none."""


@dataclass(frozen=True)
class Training:
    """What is trained, and the source of speeds."""

    workload: Workload
    speeds: SpeedSource


class Timing(NamedTuple):
    """How long steps take; arrays of shape (sizes,)."""

    step_s: FloatArray
    throughput: FloatArray
    doubt_of: Callable[[], SpeedUncertainty]


def timing_of(
    workload: Workload,
    machine: Machine,
    steps: Steps,
    computed_s: FloatArray,
    doubt_of: Callable[[], SpeedUncertainty],
    *,
    sd: float | None = None,
    reads: bool = True,
) -> Timing:
    """Steps whose samples a VM's processors prepare during the step before, if it ``reads``.

    ``sd``: of the logarithm of ``computed_s``, roughly: exact values, those of ``doubt_of``, take
    long to compute and decide little.
    """
    units = workload.samples_of_step(steps.gpus) * workload.model.units_per_sample
    rate = workload.model.reads_per_vcpu
    if not (reads and rate and machine.vcpus):
        return Timing(computed_s, units / computed_s, doubt_of)
    reading_s = steps.batch * machine.gpus / (rate * machine.vcpus)
    spread = doubt_of().sd if sd is None else np.full(len(computed_s), sd)
    waits = waiting(computed_s, spread, reading_s)
    return Timing(waits.step_s, units / waits.step_s, lambda: doubt_of().where_reading(waits))


@dataclass(frozen=True)
class InputStall:
    """Steps that may wait for input, read during the step before; arrays of shape (sizes,)."""

    step_s: FloatArray
    sd: FloatArray  # of log(step_s)
    computed_sd: FloatArray  # were nothing read
    probability: FloatArray  # that reading takes longer than computing


def waiting(computed_s: FloatArray, sd: FloatArray, reading_s: FloatArray) -> InputStall:
    """The longer of two times of which neither is known exactly; ``sd``: of ``log(computed_s)``.

    By the first two moments of the maximum of two normal variables (Clark 1961), here of
    logarithms. Where nothing is read (0 s) only computing counts.
    """
    reads = reading_s > 0
    spread = np.sqrt(sd**2 + READING_SD**2)
    ahead = np.log(np.where(reads, computed_s / np.where(reads, reading_s, 1.0), 1.0))
    # Reading takes longer
    below = 0.5 * np.array([*map(math.erfc, (ahead / (spread * math.sqrt(2))).tolist())])
    density = spread * np.exp(-0.5 * (ahead / spread) ** 2) / math.sqrt(2 * math.pi)
    mean = ahead * (1 - below) + density
    square = (ahead**2 + sd**2) * (1 - below) + READING_SD**2 * below + ahead * density
    return InputStall(
        step_s=np.where(reads, reading_s * np.exp(mean), computed_s),
        sd=np.where(reads, np.sqrt(np.maximum(square - mean**2, 0.0)), sd),
        computed_sd=sd,
        probability=np.where(reads, below, 0.0),
    )


@dataclass(frozen=True)
class StepTimeSpeedup(SpeedupCurve):
    """S(n) of a type for one workload: throughput of n VMs over that of one.

    ``known``: on 1, 2 ... VMs. ``unit``: units a second of one VM; where sharding makes several VMs
    faster than that many single ones, a share of the best, so that K(n) <= 1 as eq. 13 has it.
    """

    kind: ClassVar[str] = STEP_TIME
    speed_of: Callable[[FloatArray], TrainingSpeed] = field(repr=False)
    known: TrainingSpeed = field(repr=False, compare=False)
    unit: float

    @property
    def needs(self) -> str:
        return self.known.needs

    @classmethod
    def of(
        cls, known: TrainingSpeed, speed_of: Callable[[FloatArray], TrainingSpeed]
    ) -> StepTimeSpeedup:
        share = (known.throughput / known.vms)[known.fits if known.fits.any() else ...]
        return cls(
            speed_of,
            known,
            float(share.max()),
            source=known.source.value,
            fitted_to=float(known.fitted_vms),
        )

    def speedup(self, n: FloatArray) -> FloatArray:
        sizes = np.atleast_1d(n)
        if np.array_equal(sizes, self.known.vms):
            found = self.known
        else:
            found = self.speed_of(sizes)
        return (found.throughput * found.fits / self.unit).reshape(np.shape(n))

    def doubt(self, n: FloatArray) -> SpeedUncertainty:
        rows = np.searchsorted(self.known.vms, n)
        if np.array_equal(self.known.vms.take(rows, mode="clip"), n):
            return self.known.doubt.at(rows)
        return self.speed_of(n).doubt

    def extrapolated(self, n: FloatArray) -> BoolArray:
        """Beyond 1.5 x the largest measured cluster, or the batch known to train well."""
        return n > min(REACH * (self.fitted_to or np.inf), self.known.proven_vms)
