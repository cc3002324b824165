"""How fast clusters of one type of VM train a workload, with the doubt in it and where it comes from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from deepvm.core.answer import Answer
from deepvm.core.interval import Interval
from deepvm.core.training.effects import effects_of
from deepvm.core.training.evidence import ACROSS, COMPUTE, LOCAL, NETWORK, NOISE, Evidence, weights
from deepvm.core.training.gpu_memory import fit_memory, least_gpus, state_bytes
from deepvm.core.training.hardware import Machine
from deepvm.core.training.roofline import OVERLAP, STRAGGLING, nominal_steps
from deepvm.core.training.steptime import REACH, StepTimeFit, joined
from deepvm.core.training.workload import Precision, Workload
from deepvm.core.units import format_bytes

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import InstanceType

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


class Source(str, Enum):
    """Where a speed comes from, the best first."""

    MEASURED = "measured"  # by this user
    PUBLISHED = "published"  # of this model on this GPU
    DERIVED = "derived"  # from data sheets and what was published of other models and GPUs


@dataclass(frozen=True)
class Doubt:
    """The doubt in several speeds: the logarithm's standard deviation, and what of it speeds share.

    Attributes:
        shared: (sizes, directions): independent causes, each with a variance of 1, and how much they count.
        named: further causes by name, such as that of a GPU of which nothing is published, (sizes,) each.
        own: (sizes,): variance that no other speed shares.
    """

    shared: FloatArray
    named: Mapping[str, FloatArray]
    own: FloatArray

    @cached_property
    def sd(self) -> FloatArray:
        """Standard deviation of the logarithm of each speed, (sizes,)."""
        named = sum((cause**2 for cause in self.named.values()), np.zeros_like(self.own))
        return np.asarray(np.sqrt((self.shared**2).sum(axis=1) + named + self.own))


@dataclass(frozen=True, repr=False)
class TrainingSpeed(Answer):
    """How fast n VMs train, for several n; arrays of shape (sizes,).

    Attributes:
        vms: the sizes n, ascending. fits: whether the workload fits there. step_s: median seconds of a step.
        throughput: median units a second of all VMs together.
        source: where it comes from. fitted_vms: the largest cluster that its source has seen.
    """

    machine: Machine
    workload: Workload
    precision: Precision
    vms: FloatArray
    fits: BoolArray
    step_s: FloatArray
    throughput: FloatArray
    checkpointing: BoolArray
    micro_batch: FloatArray
    batch: FloatArray
    doubt_of: Callable[[], Doubt] = field(repr=False)
    source: Source = Source.DERIVED
    fitted_vms: int = 1

    def __repr__(self) -> str:
        """The speed of the first size, with its 80 % interval."""
        found, gpus = self.interval(0), round(float(self.vms[0]) * self.machine.gpus)
        speed = f"{found.value:.4g} ({found.low:.4g} to {found.high:.4g}) {self.workload.units}"
        return f"<TrainingSpeed: {self.workload.model.name} on {gpus} x {self.machine.accelerator.name}: {speed}>"

    @cached_property
    def doubt(self) -> Doubt:
        """How far off the speeds may be."""
        return self.doubt_of()

    @property
    def sd(self) -> FloatArray:
        """Standard deviation of the throughput's logarithm."""
        return self.doubt.sd

    @property
    def trusted_vms(self) -> int:
        """The largest n to believe, 1.5 x the largest that was seen."""
        return int(REACH * self.fitted_vms)

    @property
    def needs(self) -> str:
        """What the workload lacks where it fits nowhere, in words; empty where it fits."""
        return "" if self.fits.any() else memory_needed(self.workload, self.machine, self.precision)

    def interval(self, place: int) -> Interval:
        """Throughput at ``vms[place]``, 80 % interval."""
        return Interval.of_log(float(self.throughput[place]), float(self.sd[place]))

    def step_interval(self, place: int) -> Interval:
        """Seconds of a step at ``vms[place]``, 80 % interval."""
        return Interval.of_log(float(self.step_s[place]), float(self.sd[place]))

    def state_bytes(self, place: int) -> float:
        """Weights, gradients and optimizer on each GPU at ``vms[place]``, bytes."""
        gpus = np.array([float(self.vms[place]) * self.machine.gpus])
        memory = fit_memory(self.workload, self.machine.accelerator, self.precision, gpus)
        return float(state_bytes(self.workload, self.precision, gpus, sharded=bool(memory.sharded[0]))[0])

    def mfu(self, place: int) -> float:
        """Model FLOP utilisation: the operations that the model needs over the peak of all GPUs (PaLM, appendix B)."""
        gpu = self.machine.accelerator
        flops = float(self.throughput[place]) / self.workload.model.units_per_sample * self.workload.useful_flop()
        return flops / (float(self.vms[place]) * self.machine.gpus * gpu.peak_flops(self.precision))

    def doubts(self, place: int) -> Iterator[str]:
        """What should make a reader careful with the speed at ``vms[place]``, the most important first."""
        model, vms = self.workload.model, int(self.vms[place])
        if not self.fits[place]:
            yield f"it does not fit into memory: {self.needs or f'not on {vms} VMs'}"
        if self.source is Source.DERIVED:
            yield (
                f"nobody has published {model.name} on {self.machine.accelerator.name} in {self.precision.value}: "
                "derived from data sheets and from what was published of other models and GPUs"
            )
        reading = reading_s(self.workload, self.machine, self.batch[[place]])
        if self.step_s[place] <= reading[0] * (1 + 1e-9):
            yield (
                f"{self.machine.vcpus} vCPUs read about {self.workload.model.reads_per_vcpu:g} samples a second each, "
                "and the GPUs wait for them: decode on GPUs, or rent a VM with more vCPUs"
            )
        if vms > self.trusted_vms:
            yield f"{vms} VMs are more than 1.5 times the {self.fitted_vms} that such networks were checked with"
        if vms > 1 and self.source is not Source.MEASURED:
            yield f"network: {self.machine.interconnect.basis}"


class SpeedSource(Protocol):
    """Knows how fast types of VMs train; see :class:`deepvm.catalog.published.performance.PublishedPerformance`."""

    def speed(self, instance: InstanceType, workload: Workload, vms: FloatArray) -> TrainingSpeed | str:
        """The speed of clusters of these sizes, or why there is none."""


@dataclass(frozen=True)
class Training:
    """What is trained, and what is known of how fast that goes."""

    workload: Workload
    speeds: SpeedSource


def predict(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: FloatArray,
    evidence: Evidence,
    *,
    software: str,
    published: bool,
) -> TrainingSpeed:
    """The nominal steps, corrected by what was published; ``published``: of this very model, GPU and precision."""
    steps = nominal_steps(workload, machine, precision, vms)
    first = int(np.argmax(steps.memory.fits))
    grad, sync = steps.grad_s.copy(), steps.sync_s.copy()
    corrected = []
    for several in (False, True):
        rows = np.flatnonzero((vms > 1) == several)
        if not len(rows):
            continue
        effects = effects_of(
            workload,
            machine,
            precision,
            software=software,
            micro_batch=float(steps.memory.micro_batch[first]),
            checkpointing=bool(steps.memory.checkpointing[first]),
            several_vms=several,
        )
        loading, unknown = evidence.loading(effects)
        mean = loading @ evidence.mean
        local, many = np.full(len(rows), math.log(machine.gpus)), np.log(vms[rows])
        # More GPUs never make gradients faster, whatever noise says.
        straggling = max(mean[LOCAL], -STRAGGLING) * local + max(mean[ACROSS], -STRAGGLING) * many
        grad[rows] *= np.exp(straggling - mean[COMPUTE])
        sync[rows] *= math.exp(-mean[NETWORK])
        share = (sync[rows] / joined(grad[rows], sync[rows], OVERLAP)) ** OVERLAP
        corrected.append((rows, weights(share, local, many), loading, unknown))

    def doubt() -> Doubt:
        shared = np.zeros((len(vms), len(evidence.names)))
        named = dict[str, FloatArray]()
        for rows, parts, loading, unknown in corrected:
            shared[rows] = parts @ (loading @ evidence.root)
            for effect, deviation in unknown.items():
                named.setdefault(effect, np.zeros(len(vms)))[rows] = parts @ deviation
        return Doubt(shared, named, np.full(len(vms), NOISE**2))

    # A step waits for its samples: they are read while the one before is computed.
    step = np.maximum(joined(grad, sync, OVERLAP), reading_s(workload, machine, steps.batch))
    return TrainingSpeed(
        machine=machine,
        workload=workload,
        precision=precision,
        vms=vms,
        fits=steps.memory.fits,
        step_s=step,
        throughput=steps.gpus * steps.batch * workload.model.units_per_sample / step,
        checkpointing=steps.memory.checkpointing,
        micro_batch=steps.memory.micro_batch,
        batch=steps.batch,
        doubt_of=doubt,
        source=Source.PUBLISHED if published else Source.DERIVED,
        fitted_vms=machine.interconnect.fitted_vms,
    )


def reading_s(workload: Workload, machine: Machine, batch: FloatArray) -> FloatArray:
    """Seconds in which the processors of a VM prepare a step's samples; 0 where that is no limit."""
    rate, vcpus = workload.model.reads_per_vcpu, machine.vcpus
    return batch * machine.gpus / (rate * vcpus) if rate and vcpus else np.zeros_like(batch)


def of_fit(
    fit: StepTimeFit, workload: Workload, machine: Machine, precision: Precision, vms: FloatArray
) -> TrainingSpeed:
    """The speed by a law that the user's own measurements were fitted to."""
    nominal = nominal_steps(workload, machine, precision, vms)
    gpus, batch = nominal.gpus, nominal.batch
    step = fit.law.step_s(vms, gpus, batch)
    sd = fit.deviation(vms, gpus, batch)
    return TrainingSpeed(
        machine=machine,
        workload=workload,
        precision=precision,
        vms=vms,
        fits=nominal.memory.fits,
        step_s=step,
        throughput=gpus * batch * workload.model.units_per_sample / step,
        checkpointing=nominal.memory.checkpointing,
        micro_batch=nominal.memory.micro_batch,
        batch=batch,
        doubt_of=lambda: Doubt(
            np.zeros((len(vms), 0)), {f"measured on {machine.accelerator.name}": sd}, np.zeros(len(vms))
        ),
        source=Source.MEASURED,
        fitted_vms=fit.most_nodes,
    )


def memory_needed(workload: Workload, machine: Machine, precision: Precision) -> str:
    """What a workload lacks on clusters of this machine, in words."""
    gpu = machine.accelerator
    on_one = fit_memory(workload, gpu, precision, np.array([float(machine.gpus)]))
    needed = gpu.memory_bytes - float(on_one.free_bytes[0]) + float(on_one.sample_bytes[0])
    text = f"a {gpu.name} has {gpu.memory_gib:g} GiB, {workload.model.name} needs {format_bytes(round(needed))} of each"
    least = least_gpus(workload, gpu, precision)
    if least is not None:
        return f"{text}; it fits on {least} or more of them"
    return f"{text}, however many there are; fsdp splits it, lora trains less of it"
