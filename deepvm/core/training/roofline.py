"""GPUs by their data sheets: what fits into their memory, and how long a step takes.

This is the step-time law (:mod:`deepvm.core.training.steptime`) where nothing was measured.

T_grad: operations over a nominal share of what matrix products reach, and bytes over a nominal
share of the memory's bandwidth, of which the longer counts (the roofline, Williams et al. 2009), of
a transformer both; at least the launch of its kernels; and the optimizer. T_sync: bytes that are
exchanged over the *effective* bandwidth. Nominal shares are corrected by published measurements
(:mod:`deepvm.core.training.evidence`).
"""

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray
from deepvm.core.spelling import a_or_an
from deepvm.core.training.workload import (
    FROZEN_BYTES,
    STATE_BYTES,
    Method,
    Precision,
    Scaling,
    Workload,
)
from deepvm.core.units import GIB, format_bytes
from deepvm.records import dataclass, field

# Share of peak that large matrix products reach: mostly 0.65 to 0.97 (L4, 72 W: 0.43 to 0.47)
USUAL_MATMUL = 0.75

# GPUs that the PyTorch which most people install cannot use. Torch 2.9.1 for aarch64 has kernels
# for sm_80, 90, 100 and 120 (``torch.cuda.get_arch_list()``); a T4g is sm_75.
WITHOUT_WHEELS: Mapping[str, str] = {"T4g": "PyTorch's wheels for Arm have no kernels for the T4g"}


@dataclass(frozen=True)
class Accelerator:
    """A GPU model."""

    name: str
    chip: str  # the die; an H100 and an H200 are both a GH100
    generation: str  # its GPUs use their peaks alike; small ones are apart
    memory_gib: float
    memory_gb_per_s: float
    link_gb_per_s: float  # that an all-reduce sees between GPUs of one VM
    link: str  # nvlink or pcie
    cache_mb: float  # its last cache
    peak_tflops: Mapping[str, float] = field(hash=False)  # dense, by precision
    source: str = ""
    ecc_share: float = 0.0  # of the memory
    # of large products, where published: with little power it is far from the peak
    matmul_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)

    def precision(self, wanted: Precision) -> Precision | None:
        order: tuple[Precision, ...] = (wanted,)
        if wanted is Precision.AUTO:
            order = (Precision.BF16, Precision.FP16, Precision.FP32)
        return next((p for p in order if p.value in self.peak_tflops), None)

    @property
    def memory_bytes(self) -> float:
        """Bytes that a program has on one GPU: about 96 %, less the driver and ECC."""
        return self.memory_gib * GIB * (0.96 - self.ecc_share)


@dataclass(frozen=True)
class Interconnect:
    """How the VMs of a cluster reach one another."""

    kind: str  # efa, rdma or ethernet; errors of one kind go together
    machine: str  # as do those of one type of VM
    gb_per_s: float  # that an all-reduce sees of one VM
    per_gpu: float = 0.0  # share by which each further GPU adds to synchronization
    fitted_vms: int = 8  # largest cluster that it was checked with
    basis: str = ""  # source, in words
    line_gb_per_s: float = math.inf  # nominal, never exceeded


@dataclass(frozen=True)
class Machine:
    """A training VM: its GPUs (a mean if VMs differ), network, and vCPUs if they may limit it."""

    accelerator: Accelerator
    gpus: float
    interconnect: Interconnect
    vcpus: int | None = None


_CONTEXT_BYTES = 1.2e9  # CUDA's context, NCCL's buffers, cuBLAS' workspace
_FRAGMENTS = 1.1  # What the allocator takes for a byte of activations
# Layers whose full weights FSDP holds: one computing, one arriving, one leaving
_LAYERS_AT_ONCE = 3
_FEW_PASSES = 4
MOST_GPUS = 4096
# Parameters from which the usual recipes (torchtune, torchtitan...) checkpoint activations
LARGE = 3e9


@dataclass(frozen=True)
class MemoryFit:
    """How a workload fits on clusters of K GPUs; arrays of the shape of K."""

    fits: BoolArray  # at least one sample on each GPU
    checkpointing: BoolArray  # of activations
    micro_batch: FloatArray  # samples that are computed at once
    passes: FloatArray  # micro-batches of a step
    free_bytes: FloatArray  # left by state and context; negative where not even they fit
    sample_bytes: FloatArray  # activations of one sample
    sharded: BoolArray

    @classmethod
    def known(
        cls, *, micro_batch: float, passes: int, checkpointing: bool, sharded: bool
    ) -> "MemoryFit":
        one = np.ones(1)
        yes = np.ones(1, dtype=np.bool_)
        return cls(
            yes, yes & checkpointing, one * micro_batch, one * passes, one, one, yes & sharded
        )


def state_bytes(
    workload: Workload, precision: Precision, gpus: FloatArray, *, sharded: bool
) -> FloatArray:
    """Bytes of weights, gradients, optimizer (and gathered layers) on each of K GPUs."""
    parameters = workload.model.parameters
    mixed = not precision.is_full
    shards = gpus if sharded else np.ones(gpus.shape)
    layers = 16
    ends = 0.0  # the first and the last layer, gathered together
    shape = workload.model.transformer
    if shape:
        layers = shape.layers
        ends = 2.0 * shape.vocabulary * shape.hidden
    in_use = np.minimum(parameters, max(parameters * _LAYERS_AT_ONCE / layers, ends))
    at_once = (2.0 if mixed else 4.0) * in_use * (shards > 1)
    if workload.method is Method.LORA:
        return np.asarray(
            FROZEN_BYTES * parameters / shards + at_once + STATE_BYTES * workload.trained
        )
    copies = 2.0 if mixed and not sharded else 0.0  # autocast keeps the weights in 16 bits as well
    return np.asarray((STATE_BYTES + copies) * parameters / shards + at_once)


def usual_checkpointing(workload: Workload) -> bool | None:
    """Whether activations are checkpointed, by the user or recipes; None: memory decides."""
    model = workload.model
    if workload.checkpointing is not None:
        return workload.checkpointing
    if model.transformer is None:
        return False  # convolutions are trained in smaller micro-batches instead
    if workload.method is not Method.DDP and model.parameters >= LARGE:
        return True
    return None


def fit_memory(
    workload: Workload, accelerator: Accelerator, precision: Precision, gpus: FloatArray
) -> MemoryFit:
    """How a workload fits on clusters of these numbers of GPUs."""
    share = workload.samples_of_step(gpus) / gpus
    batch = np.ceil(share - 1e-9)  # samples are whole, and a step waits for the GPU that has most
    whole_state, shared_state = (
        state_bytes(workload, precision, gpus, sharded=s) for s in (False, True)
    )
    whole, less = (
        _FRAGMENTS * workload.model.kept_bytes(checkpointing=c, full_precision=precision.is_full)
        for c in (False, True)
    )
    available = accelerator.memory_bytes - _CONTEXT_BYTES
    # Frozen weights are cheap to hold and expensive to gather: they are split only where they must
    # be.
    sharded = np.full(gpus.shape, workload.method is Method.FSDP)
    if workload.method is Method.LORA:
        kept = {None: min(whole, less), True: less, False: whole}[workload.checkpointing]
        sharded = (gpus > 1) & (available - whole_state < kept)
    free = available - np.where(sharded, shared_state, whole_state)
    chosen = usual_checkpointing(workload)
    # Computing activations again takes a third longer; a few more passes hardly do, unless each
    # gathers the weights.
    least = np.where(sharded, batch, np.ceil(batch / _FEW_PASSES))
    if chosen is None:
        checkpointing = free < whole * least
    else:
        checkpointing = np.full(gpus.shape, chosen)
    sample = np.where(checkpointing, less, whole)
    most = np.floor(np.maximum(free, 0.0) / sample)
    fits = (most >= 1) & (share >= 1 - 1e-9)
    passes = np.ceil(np.maximum(batch, 1.0) / np.maximum(most, 1.0) - 1e-9)
    return MemoryFit(fits, checkpointing, batch / passes, passes, free, sample, sharded)


def least_gpus(workload: Workload, accelerator: Accelerator, precision: Precision) -> int | None:
    """The fewest GPUs that hold the workload, None if no number up to :data:`MOST_GPUS` does."""
    sizes = np.arange(1, MOST_GPUS + 1, dtype=np.float64)
    fits = fit_memory(workload, accelerator, precision, sizes).fits
    if fits.any():
        return int(sizes[np.argmax(fits)])
    return None


# Nominal: of what large matrix products reach, and of the memory's peak
COMPUTE_SHARE, MEMORY_SHARE = 0.55, 0.42
REACH = 1.5  # How far beyond the largest measured cluster the law is to be believed, as a factor
OVERLAP = 2.5  # Nominal g of the step-time law: fits to published rows give 1.4 to 3.3
STRAGGLING = 0.02  # Nominal d of the step-time law
# How sharp the corner between the roofs is, by family. Convolutions compute while they wait for
# memory; a transformer's matrix products and what lies between them come one after the other, and
# their times add up.
_ROOFS = {"transformer": 1.0, "convolution": 3.0, "diffusion": 3.0}
# Seconds of a pass at any size for kernel launches, which count if the GPU is done sooner; and how
# sharp that corner is
_LAUNCH_S, _LAUNCHING = 0.02, 3.0
# Bytes per parameter: Adam reads weight, gradient and two moments, writes all but the gradient
_OPTIMIZER_BYTES = 28
# How often each VM sends what is reduced; in a ring of n, 2 (n-1)/n times, as within a VM. In
# published steps 2, 4 and 8 VMs take about the same time for it.
_BETWEEN_VMS = 1.5
GRADIENT_BYTES = 4


def joined(grad_s: FloatArray, sync_s: FloatArray, overlap: float) -> FloatArray:
    """(T_grad^g + T_sync^g)^(1/g), without overflow (Pollux eq. 10)."""
    longer = np.maximum(grad_s, sync_s)
    shorter = np.minimum(grad_s, sync_s)
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return longer * (1.0 + ratio**overlap) ** (1.0 / overlap)


@dataclass(frozen=True)
class Steps:
    """Nominal steps on clusters of n VMs, arrays of the shape of n; seconds."""

    vms: FloatArray
    gpus: FloatArray
    batch: FloatArray
    grad_s: FloatArray
    sync_s: FloatArray
    local_s: FloatArray  # part of sync_s, over the links within a VM
    line_s: FloatArray  # least over the network
    memory: MemoryFit

    @property
    def step_s(self) -> FloatArray:
        return joined(self.grad_s, self.sync_s, OVERLAP)

    @property
    def sync_share(self) -> FloatArray:
        """Growth of a step, in %, per 1 % more synchronization; the rest is the gradients'."""
        return (self.sync_s / self.step_s) ** OVERLAP


def nominal_steps(
    workload: Workload,
    machine: Machine,
    precision: Precision,
    vms: FloatArray,
    memory: MemoryFit | None = None,
) -> Steps:
    """Steps of a workload on clusters of these sizes; ``memory``: how it was run, if known."""
    gpu = machine.accelerator
    gpus = vms * machine.gpus
    if memory is None:
        exchanged, memory, batch, grad = fitted(workload, gpu, precision, tuple(gpus.tolist()))
    else:
        exchanged, memory, batch, grad = _passes(workload, gpu, precision, gpus, memory)
    link = gpu.link_gb_per_s * 1e9
    network = machine.interconnect.gb_per_s * 1e9
    growth = 1.0 + machine.interconnect.per_gpu * np.maximum(gpus - 2, 0)
    local = exchanged * 2.0 * (1.0 - 1.0 / machine.gpus) / link
    # A ring passes every link and every network: the slowest decides.
    between = np.where(vms > 1, exchanged * _BETWEEN_VMS, 0.0)
    sync = np.maximum(between / network * growth, local)
    line = between / (machine.interconnect.line_gb_per_s * 1e9)
    return Steps(vms, gpus, batch, grad, sync, local, line, memory)


def roofs_s(
    workload: Workload, gpu: Accelerator, precision: Precision, *, checkpointing: bool
) -> tuple[float, float]:
    """Least seconds per sample on one GPU: for operations, and for the bytes they move."""
    wide = 1.0
    if precision.is_full:
        wide = 2.0
    flop = workload.flop_of_step(checkpointing=checkpointing)
    # What is done twice moves them twice
    moved = workload.moved_bytes * wide * flop / workload.flop_of_step(checkpointing=False)
    shares = [reached / gpu.peak_tflops[p] for p, reached in gpu.matmul_tflops.items()]
    usual = gpu.peak_tflops[precision.value] * min([USUAL_MATMUL, *shares])
    flops = gpu.matmul_tflops.get(precision.value, usual) * 1e12
    # Caches: 5 % more for each doubling of the last one from 4 MB
    gb_per_s = gpu.memory_gb_per_s * (1.0 + 0.05 * math.log2(gpu.cache_mb / 4.0))
    return flop / (flops * COMPUTE_SHARE), moved / (gb_per_s * 1e9 * MEMORY_SHARE)


def computing_share(
    workload: Workload, gpu: Accelerator, precision: Precision, *, checkpointing: bool
) -> float:
    """Growth of a sample's time, in %, per 1 % more compute time; the rest is memory's."""
    computing, moving = roofs_s(workload, gpu, precision, checkpointing=checkpointing)
    return float(1.0 / (1.0 + (moving / computing) ** _ROOFS[workload.model.family]))


class StepComponents(NamedTuple):
    """What of a step does not depend on the network, by :func:`exchanged_bytes`; (GPUs,)."""

    exchanged: FloatArray
    memory: MemoryFit
    batch: FloatArray
    grad_s: FloatArray


@lru_cache(maxsize=256)
def fitted(
    workload: Workload, gpu: Accelerator, precision: Precision, gpus: tuple[float, ...]
) -> StepComponents:
    """How it is run where it fits: the same on all types of VM with these GPUs."""
    counts = np.array(gpus)
    return _passes(workload, gpu, precision, counts, fit_memory(workload, gpu, precision, counts))


def _passes(
    workload: Workload, gpu: Accelerator, precision: Precision, gpus: FloatArray, memory: MemoryFit
) -> StepComponents:
    """On one GPU: passes, overlapped with kernel launches, and optimizer."""
    sharp = _ROOFS[workload.model.family]
    without, again = (
        float(np.linalg.norm(roofs_s(workload, gpu, precision, checkpointing=c), sharp))
        for c in (False, True)
    )
    sample_s = np.where(memory.checkpointing, again, without)  # forward and backward
    computed = sample_s * memory.micro_batch * memory.passes
    once, twice = (workload.flop_of_step(checkpointing=c) for c in (False, True))
    twice /= once
    launched = _LAUNCH_S * memory.passes * np.where(memory.checkpointing, twice, 1.0)
    own = workload.trained / (gpus if workload.method is Method.FSDP else 1.0)
    optimizer = own * _OPTIMIZER_BYTES / (gpu.memory_gb_per_s * 1e9 * MEMORY_SHARE)
    grad = (joined(computed, launched, _LAUNCHING) + optimizer) * gpus**STRAGGLING
    exchanged = exchanged_bytes(workload, precision, memory)
    return StepComponents(exchanged, memory, memory.micro_batch * memory.passes, grad)


def exchanged_bytes(workload: Workload, precision: Precision, memory: MemoryFit) -> FloatArray:
    """What is reduced over all GPUs in a step, bytes; what is gathered or scattered counts half.

    ddp: the gradients in 32 bits. fsdp: weights are gathered for the forward and the backward pass
    of each micro-batch and gradients are scattered, in the precision of the step. lora: the
    adapters' gradients, and the frozen weights where one GPU does not hold them.
    """
    parameters = workload.model.parameters
    wide = 2.0
    if precision.is_full:
        wide = 4.0
    if workload.method is Method.DDP:
        return np.full(memory.passes.shape, GRADIENT_BYTES * parameters)
    if workload.method is Method.FSDP:
        return 0.5 * 3.0 * wide * parameters * memory.passes
    adapters = GRADIENT_BYTES * workload.trained
    return adapters + memory.sharded * 0.5 * 2.0 * wide * parameters * memory.passes


def memory_needed(
    workload: Workload, machine: Machine, precision: Precision, least_vms: int, most_vms: int
) -> str:
    """What a workload lacks on so many VMs of this machine, in words."""
    gpu = machine.accelerator
    name = workload.model.name
    per_vm = round(machine.gpus)
    gpus = least_vms * per_vm
    if workload.scaling is Scaling.STRONG and workload.batch < gpus:
        return (
            f"a global batch of {workload.batch:g} has no sample for each of {gpus} GPUs; give a"
            " larger one"
        )
    least = least_gpus(workload, gpu, precision)
    most = fit_memory(
        workload, gpu, precision, np.array([float(most_vms * per_vm if least else MOST_GPUS)])
    )
    state = gpu.memory_bytes - float(most.free_bytes[0])
    sample = float(most.sample_bytes[0])
    has = (
        f"{a_or_an(gpu.name)} of {gpu.memory_gib:g} GiB has {format_bytes(round(gpu.memory_bytes))}"
        " for a program"
    )
    if least is not None:
        least = -(-least // per_vm) * per_vm
        return (
            f"{has}, {name} needs {format_bytes(round(state + sample))} of each; it fits on {least}"
            " or more of them"
        )
    each = (
        f"{name} needs {format_bytes(round(state))} of each and {format_bytes(round(sample))} for a"
        " sample"
    )
    cure = "the layers in use are too large for it"
    if workload.method is Method.DDP:
        cure = "fsdp splits it, lora trains less of it"
    elif sample > state:
        cure = "a shorter --seq needs less"
    return f"{has}; {each}, however many there are: {cure}"
