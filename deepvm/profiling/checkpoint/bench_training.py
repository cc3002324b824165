"""The training loop in which everything is measured: a model, Adam, and the same synthetic images at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from deepvm.profiling.workload.resnet import resnet


@dataclass(frozen=True)
class BenchModel:
    """A model and synthetic images, so few and small that a step takes a fraction of a second on a CPU.

    Attributes:
        make: the model. batch: images of a step. pixels: their height and width.
    """

    make: Callable[[], nn.Module]
    batch: int
    pixels: int


MODELS = {
    "resnet18": BenchModel(lambda: resnet("resnet18"), batch=4, pixels=96),
    "resnet152": BenchModel(lambda: resnet("resnet152"), batch=2, pixels=64),
}
"""By the name that ``--model`` takes; a new one is one line here."""


class Training:
    """A training on the processor, deterministic but for the time that it takes."""

    def __init__(self, own: BenchModel, seed: int = 0) -> None:
        """Make the model and do one step, after which Adam's state has its full size."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = own.make()
            self._images = torch.randn(own.batch, 3, own.pixels, own.pixels)
            self._labels = torch.randint(1000, (own.batch,))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self._loss = nn.CrossEntropyLoss()
        self.step()

    def step(self) -> None:
        """Forward, backward, and the optimizer's step."""
        self.optimizer.zero_grad()
        self._loss(self.model(self._images), self._labels).backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """What every method saves."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def state_bytes(self) -> int:
        """Bytes of all tensors of the state."""
        inside = [*self.model.state_dict().values()]
        inside += [
            t for values in self.optimizer.state.values() for t in values.values() if isinstance(t, torch.Tensor)
        ]
        return sum(t.numel() * t.element_size() for t in inside)
