"""A training with everything that may go wrong after a resume: dropout, BatchNorm, schedulers, a
scaler that skips.
"""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader

from support.checkpoint.loaders import Items

EPOCHS = 3


class Parts:
    """Its objects, built anew; always with the same values."""

    def __init__(self, workers: int = 0) -> None:
        torch.manual_seed(5)
        random.seed(5)
        numpy.random.seed(5)
        self.model = nn.Sequential(
            nn.Linear(2, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.7)
        # Skips, and grows again
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
        self.loader = DataLoader(Items(), 4, shuffle=True, num_workers=workers)
        self.extra = {"scheduler": self.scheduler, "scaler": self.scaler}

    def step(self, batch: Any) -> float:
        places, noise = batch
        inputs = torch.stack([places.float() / 22, noise.float()], 1)
        loss = self.model(inputs).square().mean()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return float(loss.detach())

    def after_epoch(self) -> None:
        self.scheduler.step()
        self.model.eval()
        next(iter(DataLoader(Items(), 4, shuffle=True)))  # a validation draws, too
        self.model.train()

    def final(self) -> list[Any]:
        return [*self.model.state_dict().values(), torch.get_rng_state()]


def undisturbed(workers: int = 0) -> tuple[list[float], list[Any]]:
    """Its losses and its end, without any of our code."""
    parts, losses = Parts(workers), []
    for _ in range(EPOCHS):
        losses += [parts.step(batch) for batch in parts.loader]
        parts.after_epoch()
    return losses, parts.final()
