"""All state for an exact resume: weights, optimizer, schedule, sampler, random numbers."""

from __future__ import annotations

import pickle
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
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Go on with them."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


class GatheredRandomStates:
    """Those of all ranks, on their way to rank 0: dropout differs between ranks.

    They are what they were when this was made; how they travel does not hold the training up.
    """

    _ROOM = 1 << 15
    """Bytes for each rank's: with one size for all a single collective is enough.

    The three generators take 14 kB, each GPU's 100 bytes more.
    """

    def __init__(self, rank: int, world: int) -> None:
        """Collective."""
        mine = pickle.dumps(random_states())
        if len(mine) > self._ROOM:
            raise ValueError(
                f"The random states of rank {rank} take {len(mine)} bytes; the room is"
                f" {self._ROOM}."
            )
        sent = torch.zeros(self._ROOM, dtype=torch.uint8)
        sent[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        self._received = [sent]
        self._work = None
        if world > 1:
            self._received = [torch.empty_like(sent) for _ in range(0 if rank else world)]
            self._work = dist.gather(sent, self._received or None, async_op=True)

    def wait(self) -> list[dict[str, Any]]:
        """One for each rank, on rank 0; RuntimeError when a rank has died."""
        if self._work is not None:
            self._work.wait()
        # Our own ranks sent them
        return [pickle.loads(one.numpy().tobytes()) for one in self._received]


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

    def pack(self, *, clone: bool) -> dict[str, Any]:
        """What is saved besides random numbers; without ``clone`` it changes with the training."""
        whole = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "sampler": self.sampler.state_dict(),
        }
        return cloned(whole) if clone else whole

    def unpack(self, saved: dict[str, Any]) -> None:
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.sampler.load_state_dict(saved["sampler"])
        randoms = saved["random"]
        set_random_states(randoms[self.rank] if self.rank < len(randoms) else randoms[0])


def cloned(value: Any) -> Any:
    """A copy on the host, with all tensors in it, that training does not change."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {key: cloned(one) for key, one in value.items()}
    if isinstance(value, list):
        return [cloned(one) for one in value]
    if isinstance(value, tuple):
        return tuple(cloned(one) for one in value)
    return value
