"""Whether a workload fits into GPU memory, and in what micro-batches (``gpu-memory``).

Of each GPU: weights, gradients and Adam's moments (ZeRO, section 3: 16 bytes a parameter), what the
GPU needs besides, and the activations of at least one sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.core.training.hardware import Accelerator
from deepvm.core.training.workload import FROZEN_BYTES, STATE_BYTES, Method, Precision, Workload

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_CONTEXT_BYTES = 1.2e9
"""CUDA's context, NCCL's buffers, cuBLAS' workspace."""
_FRAGMENTS = 1.1
"""What the allocator takes for a byte of activations."""
_LAYERS_AT_ONCE = 3
"""Layers whose full weights FSDP holds: one computing, one arriving, one leaving."""
_FEW_PASSES = 4
MOST_GPUS = 4096
LARGE = 3e9
"""Parameters from which the usual recipes (torchtune, torchtitan...) checkpoint activations."""


@dataclass(frozen=True)
class MemoryFit:
    """How a workload fits on clusters of K GPUs; arrays of the shape of K.

    Attributes:
        fits: whether at least one sample fits on each GPU. checkpointing: whether activations are
            checkpointed.
        micro_batch: samples that are computed at once. passes: micro-batches of a step (gradient
            accumulation).
        free_bytes: what state and context leave of a GPU, negative where not even they fit.
            sample_bytes: activations of the smallest batch, one sample.
    """

    fits: BoolArray
    checkpointing: BoolArray
    micro_batch: FloatArray
    passes: FloatArray
    free_bytes: FloatArray
    sample_bytes: FloatArray
    sharded: BoolArray

    @classmethod
    def known(
        cls, *, micro_batch: float, passes: int, checkpointing: bool, sharded: bool
    ) -> MemoryFit:
        """Of one run that is known to fit."""
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
    mixed = precision not in (Precision.FP32, Precision.TF32)
    shards = gpus if sharded else np.ones(gpus.shape)
    layers = 16
    if workload.model.transformer:
        layers = workload.model.transformer.layers
    shape = workload.model.transformer
    # The first and the last layer, gathered together
    ends = 0.0
    if shape:
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
    full_precision = precision in (Precision.FP32, Precision.TF32)
    whole, less = (
        _FRAGMENTS * workload.model.kept_bytes(checkpointing=c, full_precision=full_precision)
        for c in (False, True)
    )
    room = accelerator.memory_bytes - _CONTEXT_BYTES
    # Frozen weights are cheap to hold and dear to gather: they are split only where they must be.
    sharded = np.full(gpus.shape, workload.method is Method.FSDP)
    if workload.method is Method.LORA:
        kept = {None: min(whole, less), True: less, False: whole}[workload.checkpointing]
        sharded = (gpus > 1) & (room - whole_state < kept)
    free = room - np.where(sharded, shared_state, whole_state)
    chosen = usual_checkpointing(workload)
    # Computing activations again takes a third longer; a few more passes hardly do, unless each
    # gathers the weights.
    least = np.where(sharded, batch, np.ceil(batch / _FEW_PASSES))
    if chosen is None:
        checkpointing = np.asarray(free < whole * least)
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
