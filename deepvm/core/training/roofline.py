"""The step time by data sheets: parameters of the law where nothing was measured.

T_grad: operations over a nominal share of what matrix products reach, and bytes over a nominal
share of the memory's bandwidth, of which the longer counts (the roofline, Williams et al. 2009), of
a transformer both; at least the launch of its kernels; and the optimizer. T_sync: bytes that are
exchanged over the *effective* bandwidth. Nominal shares are corrected by published measurements
(:mod:`deepvm.core.training.evidence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from deepvm.core.training.gpu_memory import MemoryFit, fit_memory
from deepvm.core.training.hardware import Accelerator, Machine
from deepvm.core.training.steptime import joined
from deepvm.core.training.workload import Method, Precision, Workload

FloatArray = npt.NDArray[np.float64]

COMPUTE_SHARE, MEMORY_SHARE = 0.55, 0.42
"""Nominal: of what large matrix products reach, and of the memory's peak."""
OVERLAP = 2.5
"""Nominal g of the step-time law: fits to published rows give 1.4 to 3.3."""
STRAGGLING = 0.02
"""Nominal d of the step-time law."""
_ROOFS = {"transformer": 1.0, "convolution": 3.0, "diffusion": 3.0}
"""How sharp the corner between the roofs is, by family.

Convolutions compute while they wait for memory; a transformer's matrix products and what lies
between them come one after the other, and their times add up.
"""
_LAUNCH_S, _LAUNCHING = 0.02, 3.0
"""Seconds of a pass at any size for kernel launches, which count if the GPU is done sooner; and how
sharp that corner is.
"""
_OPTIMIZER_BYTES = 28
"""Bytes per parameter: Adam reads weight, gradient and two moments, writes all but the gradient."""
_BETWEEN_VMS = 1.5
"""How often each VM sends what is reduced; in a ring of n, 2 (n-1)/n times, as within a VM. In
published steps 2, 4 and 8 VMs take about the same time for it.
"""
GRADIENT_BYTES = 4


@dataclass(frozen=True)
class Steps:
    """Nominal steps on clusters of n VMs, arrays of the shape of n; seconds.

    ``local_s``: what synchronisation takes over the links within a VM, which ``sync_s`` includes;
    ``line_s``: what it takes at least over the network.
    """

    vms: FloatArray
    gpus: FloatArray
    batch: FloatArray
    grad_s: FloatArray
    sync_s: FloatArray
    local_s: FloatArray
    line_s: FloatArray
    memory: MemoryFit

    @property
    def step_s(self) -> FloatArray:
        """T of the step-time law."""
        return joined(self.grad_s, self.sync_s, OVERLAP)

    @property
    def sync_share(self) -> FloatArray:
        """Growth of a step, in %, per 1 % more synchronization; the rest is the gradients'."""
        return np.asarray((self.sync_s / self.step_s) ** OVERLAP)


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


def _sample_s(
    workload: Workload, gpu: Accelerator, precision: Precision, memory: MemoryFit
) -> FloatArray:
    """Seconds of forward and backward for one sample on one GPU."""
    sharp = _ROOFS[workload.model.family]
    without, again = (
        float(np.linalg.norm(roofs_s(workload, gpu, precision, checkpointing=c), sharp))
        for c in (False, True)
    )
    return np.where(memory.checkpointing, again, without)


def roofs_s(
    workload: Workload, gpu: Accelerator, precision: Precision, *, checkpointing: bool
) -> tuple[float, float]:
    """Least seconds per sample on one GPU: for operations, and for the bytes they move."""
    wide = 1.0
    if precision in (Precision.FP32, Precision.TF32):
        wide = 2.0
    flop = workload.flop_of_step(checkpointing=checkpointing)
    # What is done twice moves them twice
    moved = workload.moved_bytes * wide * flop / workload.useful_flop()
    return flop / (gpu.matmul_flops(precision) * COMPUTE_SHARE), moved / (
        gpu.traffic_gb_per_s * 1e9 * MEMORY_SHARE
    )


def computing_share(
    workload: Workload, gpu: Accelerator, precision: Precision, *, checkpointing: bool
) -> float:
    """Growth of a sample's time, in %, per 1 % more compute time; the rest is memory's."""
    computing, moving = roofs_s(workload, gpu, precision, checkpointing=checkpointing)
    return float(1.0 / (1.0 + (moving / computing) ** _ROOFS[workload.model.family]))


class StepComponents(NamedTuple):
    """What of a step does not depend on the network; arrays of the shape of the GPUs.

    ``exchanged``: bytes, see :func:`exchanged_bytes`. ``batch``: samples of each GPU. ``grad_s``:
    seconds.
    """

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
    grad = _gradients_s(workload, gpu, precision, gpus, memory) * gpus**STRAGGLING
    return StepComponents(
        exchanged_bytes(workload, precision, memory),
        memory,
        memory.micro_batch * memory.passes,
        grad,
    )


def _gradients_s(
    workload: Workload, gpu: Accelerator, precision: Precision, gpus: FloatArray, memory: MemoryFit
) -> FloatArray:
    """Seconds of a step on one GPU: passes, overlapped with kernel launches, and optimizer."""
    computed = _sample_s(workload, gpu, precision, memory) * memory.micro_batch * memory.passes
    twice = workload.flop_of_step(checkpointing=True) / workload.useful_flop()
    launched = _LAUNCH_S * memory.passes * np.where(memory.checkpointing, twice, 1.0)
    own = workload.trained / (gpus if workload.method is Method.FSDP else 1.0)
    optimizer = own * _OPTIMIZER_BYTES / (gpu.memory_gb_per_s * 1e9 * MEMORY_SHARE)
    return np.asarray(joined(computed, launched, _LAUNCHING) + optimizer)


def exchanged_bytes(workload: Workload, precision: Precision, memory: MemoryFit) -> FloatArray:
    """What is reduced over all GPUs in a step, bytes.

    What is only gathered or scattered counts half.

    ddp: the gradients in 32 bits. fsdp: weights are gathered for the forward and the backward pass
    of each micro-batch and gradients are scattered, in the precision of the step. lora: the
    adapters' gradients, and the frozen weights where one GPU does not hold them.
    """
    parameters = workload.model.parameters
    wide = 2.0
    if precision in (Precision.FP32, Precision.TF32):
        wide = 4.0
    if workload.method is Method.DDP:
        return np.full(memory.passes.shape, GRADIENT_BYTES * parameters)
    if workload.method is Method.FSDP:
        return np.asarray(0.5 * 3.0 * wide * parameters * memory.passes)
    adapters = GRADIENT_BYTES * workload.trained
    return np.asarray(adapters + memory.sharded * 0.5 * 2.0 * wide * parameters * memory.passes)
