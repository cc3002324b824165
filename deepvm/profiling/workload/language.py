"""Language models to measure machines with: transformers of a preset's size, on random tokens."""

import math
from itertools import chain

import torch
import torch.nn.functional as F  # noqa: N812  as all of torch's users call it
from torch import Tensor, nn
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from deepvm.catalog.published.workloads import find_model
from deepvm.core.training.workload import Model
from deepvm.profiling.workload.blocks import TransformerLayer
from deepvm.profiling.workload.train_step import Batches


class Language(nn.Module):
    """A preset's transformer: tokens (batch, sequence) to logits (batch, sequence, vocabulary)."""

    def __init__(self, model: Model, *, checkpointing: bool = False) -> None:
        super().__init__()
        shape = model.transformer
        assert shape is not None and shape.vocabulary
        each = model.parameters / shape.layers
        words = shape.vocabulary * shape.hidden
        attention = 4 * shape.hidden**2
        # As wide as the parameters allow; small models have one matrix of words for in and out
        width = (each - 2 * words / shape.layers - attention) / (2 * shape.hidden)
        tied = width < 2 * shape.hidden
        if tied:
            width += words / shape.layers / (2 * shape.hidden)
        wide = max(64, round(width / 64) * 64)
        # Of 64 or 128, as the families have them; of what the hidden size allows otherwise
        heads = shape.hidden // math.gcd(shape.hidden, 64 if shape.hidden < 2048 else 128)
        self.words = nn.Embedding(shape.vocabulary, shape.hidden)
        self.places = nn.Embedding(model.sequence, shape.hidden)
        causal = model.unit == "tokens"
        self.layers = nn.ModuleList(
            TransformerLayer(shape.hidden, wide, heads, causal=causal) for _ in range(shape.layers)
        )
        self.last = nn.LayerNorm(shape.hidden)
        if tied:
            self.out = None
        else:
            self.out = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        self._checkpointing = checkpointing

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            if self._checkpointing:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        x = self.last(x)
        if self.out is None:
            logits: Tensor = F.linear(x, self.words.weight)
        else:
            logits = self.out(x)
        return logits


def preset(name: str, sequence: int | None) -> Model:
    """A preset that is a language model, of this length. Raises RequestError."""
    model = find_model(name)
    if sequence in (None, model.sequence):
        return model
    return model.with_sequence(sequence or 1)


def on_meta(model: Model, *, checkpointing: bool = False) -> Language:
    """The model without memory for its weights."""
    with torch.device("meta"):
        return Language(model, checkpointing=checkpointing)


def shard(model: Language, kind: torch.dtype, device: torch.device, world: int) -> None:
    """Shard a model on meta (FSDP2) by layer; it computes in ``kind``. Collective."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = device_mesh.init_device_mesh(device.type, (world,))
    policy = MixedPrecisionPolicy(param_dtype=kind, reduce_dtype=torch.float32)
    for part in chain(model.layers, (model,)):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    fill(model, device)


def fill(model: Language, device: torch.device) -> None:
    """Give a model without memory random weights on the device."""
    model.to_empty(device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            # Each shard on its own
            if isinstance(parameter, DTensor):
                own = parameter.to_local()
            else:
                own = parameter
            own.normal_(1.0 if own.dim() == 1 else 0.0, 0.02)  # what has one dimension scales


def synthetic_text(batch: int, model: Model, device: torch.device) -> Batches:
    """The same random tokens at every step."""
    assert model.transformer is not None
    tokens = torch.randint(model.transformer.vocabulary, (batch, model.sequence + 1), device=device)
    return lambda: (tokens[:, :-1], tokens[:, 1:])
