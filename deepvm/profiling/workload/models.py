"""The models that are trained to measure a machine, with torchvision's layers and sizes."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from deepvm.core.spelling import refuse_unknown
from deepvm.profiling.workload.blocks import convolution, residual_layers

CLASSES = 10  # as CIFAR-10, the paper's data set, has them


def _resnet(depths: Sequence[int], expansion: int, classes: int) -> nn.Sequential:
    """ResNets of He et al., 2016, Table 1; ``depths``: blocks of 64, 128, 256, 512 channels."""
    layers = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    layers += residual_layers(64, depths, expansion)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(expansion * 512, classes)]
    return nn.Sequential(*layers)


class _Stage(NamedTuple):
    """Blocks in a row; a fused one has one full convolution for the 1x1 and the depthwise one."""

    fused: bool
    expand: int  # channels inside a block over those that come in
    stride: int  # of the first block
    inside: int
    outside: int
    blocks: int


_STAGES = (
    _Stage(True, 1, 1, 24, 24, 3),
    _Stage(True, 4, 2, 24, 48, 5),
    _Stage(True, 4, 2, 48, 80, 5),
    _Stage(False, 4, 2, 80, 160, 7),
    _Stage(False, 6, 1, 160, 176, 14),
    _Stage(False, 6, 2, 176, 304, 18),
    _Stage(False, 6, 1, 304, 512, 5),
)
_LAST_CHANNELS = 1280
_NORM = partial(nn.BatchNorm2d, eps=1e-3)
# Share of images that skip the last block in training; earlier blocks skip fewer
_DROPPED_BLOCKS = 0.2
_DROPPED_FEATURES = 0.3


def _activated(
    inside: int, outside: int, kernel: int, stride: int, groups: int = 1
) -> list[nn.Module]:
    layers = convolution(inside, outside, kernel, stride, groups, norm=_NORM)
    return [*layers, nn.SiLU(inplace=True)]


class _Excitation(nn.Module):
    """Squeeze and excitation: channels are weighted by what all pixels say."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.weigh = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        weighted: Tensor = images * self.weigh(images)
        return weighted


class _Block(nn.Module):
    """MBConv or Fused-MBConv, with a shortcut where the shapes allow it."""

    def __init__(self, stage: _Stage, inside: int, stride: int, dropped: float) -> None:
        super().__init__()
        wide = inside * stage.expand
        layers: list[nn.Module] = []
        if stage.fused:
            layers += _activated(inside, wide if stage.expand > 1 else stage.outside, 3, stride)
        else:
            layers += _activated(inside, wide, 1, 1)
            layers += _activated(wide, wide, 3, stride, groups=wide)
            layers.append(_Excitation(wide, max(1, inside // 4)))
        if not stage.fused or stage.expand > 1:
            layers += convolution(wide, stage.outside, 1, norm=_NORM)
        self.body = nn.Sequential(*layers)
        self.shortcut = stride == 1 and inside == stage.outside
        self.kept = 1 - dropped

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.body(images)
        if not self.shortcut:
            return found
        if self.training and self.kept < 1:
            chosen = torch.empty(found.shape[0], 1, 1, 1, dtype=found.dtype, device=found.device)
            found = found * chosen.bernoulli_(self.kept).div_(self.kept)
        return found + images


def _efficientnet_v2_m(classes: int) -> nn.Sequential:
    # Tan and Le, 2021, with the depths of the authors' code: the paper has no table for M
    layers = _activated(3, _STAGES[0].inside, 3, 2)
    total = sum(s.blocks for s in _STAGES)
    number = 0
    for stage in _STAGES:
        for place in range(stage.blocks):
            inside, stride = (stage.inside, stage.stride)
            if place:
                inside, stride = (stage.outside, 1)
            layers.append(_Block(stage, inside, stride, _DROPPED_BLOCKS * number / total))
            number += 1
    layers += _activated(_STAGES[-1].outside, _LAST_CHANNELS, 1, 1)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(_DROPPED_FEATURES, inplace=True)]
    return nn.Sequential(*layers, nn.Linear(_LAST_CHANNELS, classes))


# By the name of ``--model``: functions of the number of classes
MODELS: dict[str, Callable[[int], nn.Module]] = {
    "resnet18": partial(_resnet, (2, 2, 2, 2), 1),
    "resnet50": partial(_resnet, (3, 4, 6, 3), 4),
    "resnet152": partial(_resnet, (3, 8, 36, 3), 4),
    "efficientnet_v2_m": _efficientnet_v2_m,
}


def build(name: str, classes: int = CLASSES) -> nn.Module:
    """A model with random weights: one of :data:`MODELS`, or what ``module:function`` returns.

    It takes images (batch, 3, pixels, pixels) of at least 32 pixels and gives (batch, classes).
    Raises RequestError: no such model. ImportError, AttributeError: no such module or function.
    """
    if ":" in name:
        module, _, function = name.partition(":")
        made: nn.Module = getattr(import_module(module), function)()
        return made
    refuse_unknown("model", name, MODELS, ", ")
    return MODELS[name](classes)


def forward_flops(model: nn.Module, resolution: int) -> int:
    """Operations of the forward pass for one image; a multiplication and an addition are two.

    Training counts as three forward passes: torch 2.13 counts the weights' gradient of a
    convolution in groups as if it had none, which gives EfficientNetV2-M 16.
    """
    # Two images: batch normalization refuses single values in training
    tensors = (*model.named_parameters(), *model.named_buffers())
    state = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors}
    images = torch.empty(2, 3, resolution, resolution, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        functional_call(model, state, (images,))
    return int(counter.get_total_flops()) // len(images)
