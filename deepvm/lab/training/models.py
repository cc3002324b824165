"""Models of the lab, deterministic by seed: ResNets for small images, and a small GPT."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  as all of torch's users call it
from torch import Tensor, nn

from deepvm.lab.training.datasets import Samples
from deepvm.profiling.workload.blocks import TransformerLayer, convolution, residual_layers


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(max(1, channels // 8), channels)


def _resnet(
    depths: Sequence[int], expansion: int
) -> Callable[[Samples, int, str, float], nn.Module]:
    def build(samples: Samples, width: int, norm: str, dropout: float) -> nn.Module:
        normalize = nn.BatchNorm2d if norm == "batch" else _group_norm
        layers = [*convolution(samples.inputs.shape[1], width, 3, norm=normalize), nn.ReLU()]
        layers += residual_layers(width, depths, expansion, normalize)
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        outside = expansion * width * 2 ** (len(depths) - 1)
        return nn.Sequential(*layers, nn.Linear(outside, samples.classes))

    return build


class _Gpt(nn.Module):
    def __init__(self, words: int, length: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.places = nn.Embedding(length, hidden)
        heads = max(1, hidden // 16)
        self.layers = nn.Sequential(
            *(
                TransformerLayer(hidden, 4 * hidden, heads, bias=True, dropout=dropout)
                for _ in range(layers)
            )
        )
        self.last = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits: Tensor = self.out(self.last(self.layers(x)))
        return logits


def _gpt(samples: Samples, width: int, norm: str, dropout: float) -> nn.Module:
    return _Gpt(samples.classes, samples.inputs.shape[1], width, 2, dropout)


# By the names of matrix files: (samples, width, norm, dropout) -> model
MODELS: Mapping[str, Callable[[Samples, int, str, float], nn.Module]] = {
    "resnet8": _resnet((1, 1, 1), 1),
    "resnet18": _resnet((2, 2, 2, 2), 1),
    "resnet50": _resnet((3, 4, 6, 3), 4),
    "gpt-tiny": _gpt,
}
# Channels of the first layer, or the hidden size, if a matrix does not say
WIDTHS = {"resnet8": 16, "resnet18": 64, "resnet50": 64, "gpt-tiny": 64}


def build(
    name: str, samples: Samples, *, seed: int, width: int | None, norm: str, dropout: float
) -> nn.Module:
    """A model with a seed's weights; the process's other random numbers stay unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](samples, width or WIDTHS[name], norm, dropout)


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all targets. Shape ()."""
    logits = model(inputs)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
