"""What is trained: a model, how it is spread over GPUs, the batch, and the amount of work."""

import math
from enum import Enum

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.records import dataclass, replace

FAMILIES = ("transformer", "convolution", "diffusion")  # Kinds of models that use GPUs alike

# Hidden size over layers of GPT-3 13B, Llama and their like (Brown et al. 2020, Table 2.1).
_WIDTH_OVER_DEPTH = 128
# Bytes that a transformer layer keeps per token and hidden unit, in 16 bits, with fused attention
# (Korthikanti et al. 2022, eq. 2 without the term of the attention matrix).
_ACTIVATION_BYTES = 34
# The same with a gated MLP (SwiGLU, GeGLU), three matrices wide: what PyTorch takes for Llamas of
# 1, 3 and 8 billion parameters in Transformers (scripts/measure_transformers.py)
_GATED_BYTES = 52
# Bytes per token and word of the vocabulary: logits in 16 bits, a copy and gradient in 32
_LOGIT_BYTES = 10
# How often each kept byte passes the GPU's memory: written, read by what follows, read again in the
# backward pass, and its gradient; of logits gradients are kept already
_MOVED, _LOGITS_MOVED = 4, 3


@dataclass(frozen=True)
class Transformer:
    """A transformer's shape; ``vocabulary`` 0: no logits; ``gated``: a SwiGLU or GeGLU MLP."""

    layers: int
    hidden: int
    vocabulary: int = 0
    gated: bool = False

    @property
    def layer_bytes(self) -> float:
        """What all layers keep of a token for the backward pass, bytes in 16 bits."""
        return float(
            (_GATED_BYTES if self.gated else _ACTIVATION_BYTES) * self.layers * self.hidden
        )

    @property
    def logit_bytes(self) -> float:
        return float(_LOGIT_BYTES * self.vocabulary)

    @classmethod
    def of_size(cls, parameters: float) -> "Transformer":
        """The usual shape for so many parameters, P = 12 layers x hidden^2."""
        layers = max(2, round((parameters / (12 * _WIDTH_OVER_DEPTH**2)) ** (1 / 3)))
        hidden = max(64, round((parameters / (12 * layers)) ** 0.5 / 64) * 64)
        return cls(layers, hidden, 32_000, gated=True)


@dataclass(frozen=True)
class Model:
    """A model, and one sample of what it is trained on."""

    name: str
    family: str  # one of FAMILIES
    parameters: float
    unit: str  # of throughput: tokens, images or samples
    sequence: int = 1  # tokens of a sample; 1 where samples are not sequences
    transformer: Transformer | None = None
    forward_flop: float | None = None  # of one sample; None: by the shape
    activation_bytes: float | None = None  # that a sample's backward pass needs, in 16 bits
    traffic_bytes: float = 0.0  # that a step moves for a sample; 0: the operations decide
    reads_per_vcpu: float | None = None  # samples/s that one vCPU prepares; None: no limit
    batch: int = 1  # samples on each GPU unless the user says
    positions: int = 0  # tokens of its longest sample; 0 for any
    pixels: int = 0  # height and width of its images
    source: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise RequestError("family", self.family, " or ".join(FAMILIES))
        if self.transformer is None and (
            self.forward_flop is None or self.activation_bytes is None
        ):
            raise RequestError(
                "forward_flop", self.forward_flop, "operations and activation_bytes of one sample"
            )

    def with_sequence(self, sequence: int) -> "Model":
        """The model trained on sequences of another length. Raises a RequestError."""
        if self.unit != "tokens" and self.sequence == 1:
            reason = f"does not fit {self.name}, whose samples have no length"
            raise OptionMismatchError("seq", sequence, reason)
        if self.transformer is None:
            reason = f"does not fit {self.name}, whose operations are those of its own samples"
            raise OptionMismatchError("seq", sequence, reason)
        if 0 < self.positions < sequence:
            raise RequestError(
                "seq",
                sequence,
                f"at most {self.positions}: {self.name} has learned so many positions",
            )
        return replace(self, sequence=sequence)

    @property
    def units_per_sample(self) -> int:
        if self.unit == "tokens":
            return self.sequence
        return 1

    @property
    def flop(self) -> float:
        """Operations of a forward pass: 2 P per token, 4 layers x hidden x sequence (attention).

        Backward takes twice that, as PaLM's MFU counts (Chowdhery et al. 2022, appendix B).
        """
        if self.transformer is None:
            assert self.forward_flop is not None
            return self.forward_flop
        shape = self.transformer
        s = self.sequence
        return s * (2.0 * self.parameters + 4.0 * shape.layers * shape.hidden * s)

    def kept_bytes(self, *, checkpointing: bool, full_precision: bool) -> float:
        """Bytes of activations kept for backward (checkpointing: layer inputs and one layer)."""
        wide = 2.0 if full_precision else 1.0
        if self.transformer is None:
            assert self.activation_bytes is not None
            # About 2 / sqrt(layers)
            return self.activation_bytes * wide * (0.35 if checkpointing else 1.0)
        shape = self.transformer
        layers = shape.layer_bytes
        if checkpointing:
            layers = 2.0 * shape.layers * shape.hidden + layers / shape.layers
        return self.sequence * (layers * wide + shape.logit_bytes)


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

    @property
    def is_full(self) -> bool:
        """Whether weights and activations have 32 bits: no mixed precision."""
        return self in (Precision.FP32, Precision.TF32)


class Scaling(str, Enum):
    """What stays the same when GPUs are added."""

    WEAK = "weak"  # the batch of each GPU
    STRONG = "strong"  # the batch of all GPUs together


# Weights, gradients and Adam's two moments in 32 bits (ZeRO, Rajbhandari 2020, section 3.1)
STATE_BYTES = 16
SAVED_BYTES = 12  # Of a parameter in a checkpoint: the weights and Adam's moments in 32 bits
LORA_RANK = 16
# Parameters of adapters on all linear layers, over rank / hidden size of the model's: 0.5 % of
# Llama-3 8B (42 M of rank 16), 0.26 % of 70B
_LORA_LAYERS = 4 / 3
# Moved per layer, token and hidden unit by adapters on all linear layers: their output is written,
# scaled and added to the layer's, about 10 hidden sizes wide, forward and backward
_ADAPTER_BYTES = 250
FROZEN_BYTES = 2  # Of a weight that is not trained
# Images of a step up to which ResNet-50 trains as well as with few (Goyal et al. 2017, 5.1).
PROVEN_IMAGES = 8192
# Tokens of a step: half a million for 125 M parameters (GPT-3, Brown et al. 2020, table 2.1), 4
# million from 7 B on (Llama 2, Touvron et al. 2023, section 2.2), between them with the root of the
# parameters.
_PROVEN_TOKENS, _PROVEN_PARAMETERS, _MOST_TOKENS = 2**19, 1.25e8, 2**22


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    model: Model
    method: Method = Method.DDP
    precision: Precision = Precision.AUTO
    batch: float = 1  # of a step on each GPU, with strong scaling of all together
    scaling: Scaling = Scaling.WEAK
    checkpointing: bool | None = None  # of activations; None: where it is usual or needed
    samples: float | None = None  # of the job in all, None if unknown

    @property
    def trained(self) -> float:
        shape = self.model.transformer
        if self.method is not Method.LORA or shape is None:
            return self.model.parameters
        return self.model.parameters * min(1.0, _LORA_LAYERS * LORA_RANK / shape.hidden)

    @property
    def state_bytes(self) -> float:
        frozen = 0.0
        if self.method is Method.LORA:
            frozen = FROZEN_BYTES * self.model.parameters
        return STATE_BYTES * self.trained + frozen

    @property
    def saved_bytes(self) -> int:
        return math.ceil(SAVED_BYTES * self.trained)

    @property
    def proven_samples(self) -> float:
        """The most samples of a step known to train as well as few, if not the user's choice."""
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
        return f"{self.model.unit}/s"

    def flop_of_step(self, *, checkpointing: bool) -> float:
        """FLOP of a sample's step; checkpointing repeats the forward pass, LoRA halves backward."""
        passes = (2.0 if self.method is Method.LORA else 3.0) + (1.0 if checkpointing else 0.0)
        return passes * self.model.flop

    @property
    def moved_bytes(self) -> float:
        """Bytes (16-bit) that a step moves per sample; transformers: without matrix products."""
        model = self.model
        shape = model.transformer
        moved = model.traffic_bytes
        if shape is not None and not moved:
            each = _MOVED * shape.layer_bytes + _LOGITS_MOVED * shape.logit_bytes
            moved = model.sequence * each
        if self.method is Method.LORA and shape is not None:  # outputs of linear layers
            moved += _ADAPTER_BYTES * shape.layers * shape.hidden * model.sequence
        return moved

    def batch_on(self, gpus: int) -> float:
        if self.scaling is Scaling.STRONG:
            return self.batch / gpus
        return float(self.batch)

    def batch_in_all(self, gpus: int) -> float:
        return self.batch_on(gpus) * gpus

    def samples_of_step(self, gpus: FloatArray) -> FloatArray:
        if self.scaling is Scaling.STRONG:
            return np.full(gpus.shape, float(self.batch))
        return gpus * self.batch

    def in_words(self, precision: str, note: str = "") -> str:
        """``llama-8b, sharded, bf16, 2048 tokens, batch 8 a GPU``; ``note``: after the name."""
        how = {Method.DDP: "data parallel", Method.FSDP: "sharded", Method.LORA: "LoRA"}
        parts = [self.model.name + note, how[self.method]]
        if precision:
            parts.append(precision)
        if self.model.sequence > 1 and self.model.unit != "images":
            parts.append(f"{self.model.sequence} tokens")
        batch = "a GPU"
        if self.scaling is Scaling.STRONG:
            batch = "in all"
        return ", ".join([*parts, f"batch {self.batch:.10g} {batch}"])

    def __str__(self) -> str:
        return self.in_words(self.precision.value.replace("auto", ""))
