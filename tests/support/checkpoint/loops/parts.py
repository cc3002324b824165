"""What loops are made of: small models, batches, and objects with a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from support.checkpoint.loops.run import Run

WIDTH, INPUTS, CLASSES, BATCH = 32, 16, 4, 16
ROWS = torch.randn(1000, INPUTS, generator=torch.Generator().manual_seed(5))
LABELS = torch.randint(0, CLASSES, (1000,), generator=torch.Generator().manual_seed(6))


def mlp(
    *, batch_norm: bool = True, dropout: float = 0.1, inputs: int = INPUTS, outputs: int = CLASSES
) -> Any:
    norm: nn.Module = nn.BatchNorm1d(WIDTH) if batch_norm else nn.Identity()
    return nn.Sequential(
        nn.Linear(inputs, WIDTH), norm, nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outputs),
    )  # fmt: skip


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr)


def momentum_sgd(model: nn.Module, lr: float = 0.05) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr, momentum=0.9)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Random rows and classes, from torch's generator."""
    return torch.randn(BATCH, INPUTS), torch.randint(0, CLASSES, (BATCH,))


def rows(position: int, count: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a data set from a position."""
    index = torch.arange(position, position + count) % len(ROWS)
    return ROWS[index], LABELS[index]


def numbered(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of this step: nothing is drawn, and no position advances."""
    return rows(run.step * BATCH, BATCH)


def classify(model: Any, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(inputs), labels)


class Fields:
    """An object whose state is the given attributes."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


class OwnGenerator:
    """A torch generator of the loop's own."""

    def __init__(self, number: int = 3) -> None:
        self.generator = torch.Generator().manual_seed(number)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])
