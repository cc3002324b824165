"""ResNets (He et al., 2016, Table 1) in torch alone: 11.7 million parameters of ResNet-18, 60.2 of ResNet-152.

The layers and sizes of torchvision's, whose weights are not needed. With Adam these two have 140 and 723 MB of state;
ACUTE reports 134 MB for ResNet-18 with Adam, in units of 2**20 bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES = 1000


class Basic(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inside: int, width: int, stride: int) -> None:
        """``inside`` channels come in, ``width`` go out."""
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inside, width, 3, stride), nn.ReLU(inplace=True), *_convolution(width, width, 3, 1)
        )
        self.shortcut = _shortcut(inside, width, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) in and out."""
        return torch.relu(self.body(images) + self.shortcut(images))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, beside a shortcut."""

    expansion = 4

    def __init__(self, inside: int, width: int, stride: int) -> None:
        """``inside`` channels come in, four times ``width`` go out."""
        super().__init__()
        outside = width * self.expansion
        self.body = nn.Sequential(
            *_convolution(inside, width, 1, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, outside, 1, 1),
        )
        self.shortcut = _shortcut(inside, outside, stride)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, height, width) in and out."""
        return torch.relu(self.body(images) + self.shortcut(images))


RESNETS: dict[str, tuple[type[Basic] | type[Bottleneck], tuple[int, int, int, int]]] = {
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet152": (Bottleneck, (3, 8, 36, 3)),
}
"""What each is made of, and how many blocks have 64, 128, 256 and 512 channels inside."""


def resnet(name: str, classes: int = CLASSES) -> nn.Sequential:
    """A ResNet for images of any size from 32 x 32.

    Args:
        name: a key of :data:`RESNETS`.
        classes: numbers that come out for each image.
    """
    block, depths = RESNETS[name]
    layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for number, depth in enumerate(depths):
        width = 64 * 2**number
        for place in range(depth):
            layers.append(block(inside, width, 2 if number and not place else 1))
            inside = width * block.expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def _convolution(inside: int, outside: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outside)


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    if inside == outside and stride == 1:
        return nn.Identity()
    return nn.Sequential(*_convolution(inside, outside, 1, stride))
