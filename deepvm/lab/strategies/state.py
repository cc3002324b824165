"""All that a training needs to go on exactly: weights, optimizer, schedule, sampler, and each rank's random numbers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from deepvm.lab.geometry import ResumableSampler


def random_states() -> dict[str, Any]:
    """The generators of this process: Python's, NumPy's, torch's."""
    found = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state_all()
    return found


def set_random_states(states: dict[str, Any]) -> None:
    """Go on with them."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_all(seed: int, rank: int) -> None:
    """Other random numbers on each rank, the same in each run."""
    random.seed(f"{seed}-{rank}")
    np.random.seed((seed * 1009 + rank) % 2**32)
    torch.manual_seed(seed * 1009 + rank)


@dataclass
class State:
    """A training on one rank.

    Attributes:
        module: without DistributedDataParallel. trained: as it is trained, perhaps with it.
    """

    module: nn.Module
    trained: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: ResumableSampler
    rank: int
    world: int

    def everyones_random_states(self) -> list[dict[str, Any]] | None:
        """Those of all ranks, on rank 0: dropout differs between ranks. Collective."""
        mine = random_states()
        if self.world == 1:
            return [mine]
        found: list[dict[str, Any]] | None = [{}] * self.world if not self.rank else None
        dist.gather_object(mine, found)
        return found

    def pack(self, randoms: list[dict[str, Any]], *, clone: bool) -> dict[str, Any]:
        """What is saved; without ``clone`` it changes with the training."""
        whole = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "sampler": self.sampler.state_dict(),
        }
        return {**(cloned(whole) if clone else whole), "random": randoms}  # which are copies already

    def unpack(self, found: dict[str, Any]) -> None:
        """Go on with what was saved."""
        self.module.load_state_dict(found["model"])
        self.optimizer.load_state_dict(found["optimizer"])
        self.scheduler.load_state_dict(found["scheduler"])
        self.sampler.load_state_dict(found["sampler"])
        randoms = found["random"]
        set_random_states(randoms[self.rank] if self.rank < len(randoms) else randoms[0])


def cloned(value: Any) -> Any:
    """A copy on the host, with all tensors in it, that training does not change."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: cloned(one) for key, one in value.items()}
    if isinstance(value, list):
        return [cloned(one) for one in value]
    return tuple(cloned(one) for one in value) if isinstance(value, tuple) else value
