"""What is trained: a model, how it is spread over GPUs, the batch, and the amount of work."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from deepvm.core.training.model import Model

FloatArray = npt.NDArray[np.float64]


class Method(str, Enum):
    """How a model is spread over GPUs, and what of it is trained."""

    DDP = "ddp"  # every GPU has all of it; gradients are summed
    FSDP = "fsdp"  # weights, gradients and optimizer are split over all GPUs (ZeRO stage 3)
    # Weights are frozen in 16 bits and split over the GPUs where they must be; adapters are trained
    LORA = "lora"


class Precision(str, Enum):
    """Numbers that a step computes with."""

    AUTO = "auto"  # bf16 where the GPU has it, else fp16, else fp32
    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"  # mixed: weights and optimizer in fp32
    BF16 = "bf16"
    FP8 = "fp8"
    FP4 = "fp4"


class Scaling(str, Enum):
    """What stays the same when GPUs are added."""

    WEAK = "weak"  # the batch of each GPU
    STRONG = "strong"  # the batch of all GPUs together


STATE_BYTES = 16
"""Weights, gradients and Adam's two moments in 32 bits (ZeRO, Rajbhandari 2020, section 3.1)."""
SAVED_BYTES = 12
"""Of a parameter in a checkpoint: the weights and Adam's moments in 32 bits."""
LORA_RANK = 16
_LORA_LAYERS = 4 / 3
"""Parameters of adapters on all linear layers, over rank / hidden size of the model's: 0.5 % of
Llama-3 8B (42 M of rank 16), 0.26 % of 70B.
"""
_ADAPTER_BYTES = 250
"""Moved per layer, token and hidden unit by adapters on all linear layers: their output is written,
scaled and added to the layer's, about 10 hidden sizes wide, forward and backward.
"""
FROZEN_BYTES = 2
"""Of a weight that is not trained."""
PROVEN_IMAGES = 8192
"""Images of a step up to which ResNet-50 trains as well as with few (Goyal et al. 2017, 5.1)."""
_PROVEN_TOKENS, _PROVEN_PARAMETERS, _MOST_TOKENS = 2**19, 1.25e8, 2**22
"""Tokens of a step: half a million for 125 M parameters (GPT-3, Brown et al. 2020, table 2.1), 4
million from 7 B on (Llama 2, Touvron et al. 2023, section 2.2), between them with the root of the
parameters.
"""


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        batch: samples of a step on each GPU, with strong scaling of all GPUs together.
        checkpointing: activation checkpointing; None: for large language models that are sharded,
            and else where the batch does not fit without it.
        samples: how many samples the job trains on in all, None if unknown.
    """

    model: Model
    method: Method = Method.DDP
    precision: Precision = Precision.AUTO
    batch: float = 1
    scaling: Scaling = Scaling.WEAK
    checkpointing: bool | None = None
    samples: float | None = None

    @property
    def trained(self) -> float:
        """Parameters that are trained."""
        shape = self.model.transformer
        if self.method is not Method.LORA or shape is None:
            return self.model.parameters
        return self.model.parameters * min(1.0, _LORA_LAYERS * LORA_RANK / shape.hidden)

    @property
    def state_bytes(self) -> float:
        """Bytes of weights, gradients and optimizer of the whole model, over all GPUs."""
        frozen = 0.0
        if self.method is Method.LORA:
            frozen = FROZEN_BYTES * self.model.parameters
        return STATE_BYTES * self.trained + frozen

    @property
    def saved_bytes(self) -> int:
        """Size of one checkpoint."""
        return math.ceil(SAVED_BYTES * self.trained)

    @property
    def proven_samples(self) -> float:
        """The most samples of a step known to train as well as few; infinite if unknown.

        Infinite, too, with strong scaling, where the user says how many they are.
        """
        if (
            self.scaling is Scaling.STRONG
            or self.model.family == "diffusion"
            or self.model.unit == "samples"
        ):
            return math.inf
        if self.model.unit == "images":
            return PROVEN_IMAGES
        tokens = _PROVEN_TOKENS * math.sqrt(max(1.0, self.model.parameters / _PROVEN_PARAMETERS))
        return min(_MOST_TOKENS, tokens) / self.model.units_per_sample

    @property
    def units(self) -> str:
        """Of the throughput: ``tokens/s``."""
        return f"{self.model.unit}/s"

    def flop_of_step(self, *, checkpointing: bool) -> float:
        """FLOP of a sample's step; checkpointing repeats the forward pass, LoRA halves backward."""
        passes = (2.0 if self.method is Method.LORA else 3.0) + (1.0 if checkpointing else 0.0)
        return passes * self.model.flop

    @property
    def moved_bytes(self) -> float:
        """As :attr:`Model.moved_bytes`, plus what adapters add to outputs of linear layers."""
        shape = self.model.transformer
        moved = self.model.moved_bytes
        if self.method is not Method.LORA or shape is None:
            return moved
        return moved + _ADAPTER_BYTES * shape.layers * shape.hidden * self.model.sequence

    def useful_flop(self) -> float:
        """As :meth:`flop_of_step` without what is done twice: what MFU counts."""
        return self.flop_of_step(checkpointing=False)

    def batch_on(self, gpus: int) -> float:
        """Samples of a step on each of ``gpus`` GPUs."""
        if self.scaling is Scaling.STRONG:
            return self.batch / gpus
        return float(self.batch)

    def batch_in_all(self, gpus: int) -> float:
        """Samples of a step on so many GPUs together."""
        return self.batch_on(gpus) * gpus

    def samples_of_step(self, gpus: FloatArray) -> FloatArray:
        """Samples of a step on all of so many GPUs together."""
        if self.scaling is Scaling.STRONG:
            return np.full(gpus.shape, float(self.batch))
        return gpus * self.batch

    def __str__(self) -> str:
        """``llama-8b, sharded, bf16, 2048 tokens, batch 8 a GPU``; without ``auto``."""
        how = {Method.DDP: "data parallel", Method.FSDP: "sharded", Method.LORA: "LoRA"}[
            self.method
        ]
        length = ""
        if self.model.sequence > 1 and self.model.unit != "images":
            length = f", {self.model.sequence} tokens"
        batch = "a GPU"
        if self.scaling is Scaling.STRONG:
            batch = "in all"
        if self.precision is Precision.AUTO:
            number = ""
        else:
            number = f", {self.precision.value}"
        return f"{self.model.name}, {how}{number}{length}, batch {self.batch:.10g} {batch}"
