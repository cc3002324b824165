"""All state for an exact resume: weights, optimizer, schedule, sampler, random numbers."""

import pickle
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from deepvm.core.json_types import JsonDict
from deepvm.lab.geometry import ResumableSampler
from deepvm.records import dataclass


def random_states() -> JsonDict:
    """The generators of this process."""
    states = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_states(states: JsonDict) -> None:
    """Continue with them."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])


class GatheredRandomStates:
    """Those of all ranks, on their way to rank 0 while training continues."""

    # Bytes for each rank's, of one size for a single collective: 14 kB, and 100 for a GPU
    _ROOM = 1 << 15

    def __init__(self, rank: int, world: int) -> None:
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

    def wait(self) -> list[JsonDict]:
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
    """A training on one rank."""

    module: nn.Module
    trained: nn.Module  # perhaps with DistributedDataParallel around it
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    sampler: ResumableSampler
    rank: int
    world: int

    def pack(self, *, clone: bool) -> JsonDict:
        """All but random numbers; without ``clone`` it changes with the training."""
        whole = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "sampler": self.sampler.state_dict(),
        }
        return cloned(whole) if clone else whole

    def unpack(self, saved: JsonDict) -> None:
        self.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.scheduler.load_state_dict(saved["scheduler"])
        self.sampler.load_state_dict(saved["sampler"])
        randoms = saved["random"]
        set_random_states(randoms[self.rank] if self.rank < len(randoms) else randoms[0])

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def of_first_rank(self, value: Any) -> Any:
        values = [value]
        if self.world > 1:
            dist.broadcast_object_list(values)
        return values[0]


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
