"""Models of the lab, deterministic by seed: ResNets for small images, and a small GPT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  as all of torch's users call it
from torch import Tensor, nn

from deepvm.lab.training.datasets import Samples


def _norm(kind: str, channels: int) -> nn.Module:
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(max(1, channels // 8), channels)


class _Block(nn.Module):
    """Two 3x3 convolutions, or a bottleneck of three, next to a shortcut (He et al., 2016)."""

    def __init__(
        self, inside: int, width: int, stride: int, norm: str, *, bottleneck: bool
    ) -> None:
        super().__init__()
        outside = 4 * width if bottleneck else width
        kernels = ((1, 1, inside, width), (3, stride, width, width), (1, 1, width, outside))
        if not bottleneck:
            kernels = ((3, stride, inside, width), (3, 1, width, width))  # type: ignore[assignment]
        parts: list[nn.Module] = []
        for kernel, step, before, after in kernels:
            parts += [
                nn.Conv2d(before, after, kernel, step, kernel // 2, bias=False),
                _norm(norm, after),
                nn.ReLU(),
            ]
        self.body = nn.Sequential(*parts[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), _norm(norm, outside)
            )
        self.outside = outside

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.body(images) + self.shortcut(images))


def _resnet(
    depths: Sequence[int], *, bottleneck: bool
) -> Callable[[Samples, int, str, float], nn.Module]:
    """ResNets with a 3x3 stem and no pooling after it, as for CIFAR: the images are small."""

    def build(samples: Samples, width: int, norm: str, dropout: float) -> nn.Module:
        channels = samples.inputs.shape[1]
        layers: list[nn.Module] = [
            nn.Conv2d(channels, width, 3, 1, 1, bias=False),
            _norm(norm, width),
            nn.ReLU(),
        ]
        inside = width
        for number, depth in enumerate(depths):
            for block_number in range(depth):
                stride = 2 if number and not block_number else 1
                block = _Block(inside, width * 2**number, stride, norm, bottleneck=bottleneck)
                layers.append(block)
                inside = block.outside
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        return nn.Sequential(*layers, nn.Linear(inside, samples.classes))

    return build


class _Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.before = nn.LayerNorm(hidden)
        self.between = nn.LayerNorm(hidden)
        self.ask = nn.Linear(hidden, 3 * hidden)
        self.answer = nn.Linear(hidden, hidden)
        self.wide = nn.Linear(hidden, 4 * hidden)
        self.narrow = nn.Linear(4 * hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self._heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        split = (
            self.ask(self.before(x)).view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        x = x + self.dropout(self.answer(seen.transpose(1, 2).reshape(batch, length, hidden)))
        narrowed: Tensor = x + self.dropout(self.narrow(F.gelu(self.wide(self.between(x)))))
        return narrowed


class _Gpt(nn.Module):
    def __init__(self, words: int, length: int, hidden: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(words, hidden)
        self.places = nn.Embedding(length, hidden)
        self.layers = nn.Sequential(
            *(_Attention(hidden, max(1, hidden // 16), dropout) for _ in range(layers))
        )
        self.last = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each next token. Shape (batch, length, words)."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits: Tensor = self.out(self.last(self.layers(x)))
        return logits


def _gpt(samples: Samples, width: int, norm: str, dropout: float) -> nn.Module:
    return _Gpt(samples.classes, samples.inputs.shape[1], width, 2, dropout)


MODELS: Mapping[str, Callable[[Samples, int, str, float], nn.Module]] = {
    "resnet8": _resnet((1, 1, 1), bottleneck=False),
    "resnet18": _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": _resnet((3, 4, 6, 3), bottleneck=True),
    "gpt-tiny": _gpt,
}
"""By the names of matrix files: (samples, width, norm, dropout) -> model."""
WIDTHS = {"resnet8": 16, "resnet18": 64, "resnet50": 64, "gpt-tiny": 64}
"""Channels of the first layer, or the hidden size, if a matrix does not say."""


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
