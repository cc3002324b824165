"""Blocks of networks that measurements and the lab train: residual and transformer layers."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  as all of torch's users call it
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]  # Makes the normalization of so many channels


def convolution(
    inside: int,
    outside: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    norm: Norm = nn.BatchNorm2d,
) -> list[nn.Module]:
    """A convolution that keeps the size of images, but for the stride, and its normalization."""
    layer = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, norm(outside)]


class _Residual(nn.Module):
    """Two 3x3 convolutions, or a 3x3 one between two 1x1 (a bottleneck), next to a shortcut."""

    def __init__(self, inside: int, width: int, outside: int, stride: int, norm: Norm) -> None:
        super().__init__()
        shapes = [(inside, width, 3, stride), (width, width, 3)]
        if outside != width:
            shapes = [(inside, width, 1), (width, width, 3, stride), (width, outside, 1)]
        layers: list[nn.Module] = []
        for shape in shapes:
            layers += [*convolution(*shape, norm=norm), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside or stride > 1:
            self.shortcut = nn.Sequential(*convolution(inside, outside, 1, stride, norm=norm))

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.body(images) + self.shortcut(images))


def residual_layers(
    width: int, depths: Sequence[int], expansion: int, norm: Norm = nn.BatchNorm2d
) -> list[nn.Module]:
    """The blocks of a ResNet (He et al., 2016); ``depths``: of each width, which doubles.

    Their output is ``expansion`` times as wide.
    """
    layers: list[nn.Module] = []
    inside = width
    for number, depth in enumerate(depths):
        for place in range(depth):
            stride = 2 if number and not place else 1
            layers.append(_Residual(inside, width, expansion * width, stride, norm))
            inside = expansion * width
        width *= 2
    return layers


class TransformerLayer(nn.Module):
    """Attention and two linear maps, each next to a shortcut."""

    def __init__(
        self,
        hidden: int,
        width: int,
        heads: int,
        *,
        causal: bool = True,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.before = nn.LayerNorm(hidden)
        self.between = nn.LayerNorm(hidden)
        self.ask = nn.Linear(hidden, 3 * hidden, bias=bias)
        self.answer = nn.Linear(hidden, hidden, bias=bias)
        self.wide = nn.Linear(hidden, width, bias=bias)
        self.narrow = nn.Linear(width, hidden, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self._heads = heads
        self._causal = causal

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        split = (
            self.ask(self.before(x)).view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        )
        seen = F.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=self._causal)
        x = x + self.dropout(self.answer(seen.transpose(1, 2).reshape(batch, length, hidden)))
        narrowed: Tensor = x + self.dropout(self.narrow(F.gelu(self.wide(self.between(x)))))
        return narrowed
