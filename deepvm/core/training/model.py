"""A model as performance and memory see it: parameters, operations, bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from deepvm.errors import RequestError

FAMILIES = ("transformer", "convolution", "diffusion")
"""Kinds of models that use GPUs alike."""

_WIDTH_OVER_DEPTH = 128
"""Hidden size over layers of GPT-3 13B, Llama and their like (Brown et al. 2020, Table 2.1)."""
_ACTIVATION_BYTES = 34
"""Bytes that a transformer layer keeps per token and hidden unit, in 16 bits, with fused attention
(Korthikanti et al. 2022, eq. 2 without the term of the attention matrix).
"""
_GATED_BYTES = 52
"""The same with a gated MLP (SwiGLU, GeGLU), three matrices wide: what PyTorch takes for Llamas of
1, 3 and 8 billion parameters in Transformers (scripts/measure_transformers.py).
"""
_LOGIT_BYTES = 10
"""Bytes per token and word of the vocabulary: logits in 16 bits, a copy and gradient in 32."""
_MOVED, _LOGITS_MOVED = 4, 3
"""How often each kept byte passes the GPU's memory: written, read by what follows, read again in
the backward pass, and its gradient; of logits gradients are kept already.
"""


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
        """What the loss keeps of a token, bytes."""
        return float(_LOGIT_BYTES * self.vocabulary)

    @classmethod
    def of_size(cls, parameters: float) -> Transformer:
        """The usual shape for so many parameters, P = 12 layers x hidden^2."""
        layers = max(2, round((parameters / (12 * _WIDTH_OVER_DEPTH**2)) ** (1 / 3)))
        hidden = max(64, round((parameters / (12 * layers)) ** 0.5 / 64) * 64)
        return cls(layers, hidden, 32_000, gated=True)


@dataclass(frozen=True)
class Model:
    """A model, and one sample of what it is trained on.

    Attributes:
        family: one of :data:`FAMILIES`. unit: what throughput is counted in, ``tokens``, ``images``
            or ``samples``.
        sequence: tokens of a sample; 1 where samples are not sequences.
        forward_flop: operations of one sample's forward pass; None for a transformer, where they
            follow from its shape and the sequence.
        activation_bytes: what the backward pass of one sample needs of the forward pass, in 16
            bits; None as above.
        traffic_bytes: what a training step reads and writes of the GPU's memory for one sample, in
            16 bits; 0 for a transformer, where it follows from its shape, and where the operations
            decide.
        reads_per_vcpu: samples a second that one vCPU reads, decodes and prepares; None where that
            is no limit.
        batch: samples on each GPU unless the user says.
        positions: tokens of its longest sample; 0 where any number will do.
        pixels: height and width of its images; 0 where that is not known, or samples are no images.
        source: of these figures, in words.
    """

    name: str
    family: str
    parameters: float
    unit: str
    sequence: int = 1
    transformer: Transformer | None = None
    forward_flop: float | None = None
    activation_bytes: float | None = None
    traffic_bytes: float = 0.0
    reads_per_vcpu: float | None = None
    batch: int = 1
    positions: int = 0
    pixels: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        """Raise a RequestError for figures that cannot be true."""
        if self.family not in FAMILIES:
            raise RequestError("family", self.family, " or ".join(FAMILIES))
        if self.transformer is None and (
            self.forward_flop is None or self.activation_bytes is None
        ):
            raise RequestError(
                "forward_flop", self.forward_flop, "operations and activation_bytes of one sample"
            )

    def with_sequence(self, sequence: int) -> Model:
        """The model trained on sequences of another length.

        Raises a RequestError if its samples are no sequences.
        """
        if self.unit != "tokens" and self.sequence == 1:
            raise RequestError(
                "seq",
                sequence,
                f"no sequence length: a sample of {self.name} is 1 {self.unit.removesuffix('s')}",
            )
        if self.transformer is None:
            raise RequestError(
                "seq", sequence, f"none: the operations of {self.name} are those of its own samples"
            )
        if 0 < self.positions < sequence:
            raise RequestError(
                "seq",
                sequence,
                f"at most {self.positions}: {self.name} has learned so many positions",
            )
        return replace(self, sequence=sequence)

    @property
    def units_per_sample(self) -> int:
        """Tokens of a sample where tokens are counted, else 1."""
        if self.unit == "tokens":
            return self.sequence
        return 1

    @property
    def flop(self) -> float:
        """Operations of a forward pass: 2 P per token, 4 layers x hidden x sequence (attention).

        Backward takes twice that; together 6 P a token and the attention term, as PaLM's MFU counts
        (Chowdhery et al. 2022, appendix B).
        """
        if self.transformer is None:
            assert self.forward_flop is not None
            return self.forward_flop
        shape = self.transformer
        s = self.sequence
        return s * (2.0 * self.parameters + 4.0 * shape.layers * shape.hidden * s)

    @property
    def moved_bytes(self) -> float:
        """Bytes (16-bit) that a step moves per sample; transformers: without matrix products."""
        shape = self.transformer
        if shape is None or self.traffic_bytes:
            return self.traffic_bytes
        return self.sequence * (_MOVED * shape.layer_bytes + _LOGITS_MOVED * shape.logit_bytes)

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
