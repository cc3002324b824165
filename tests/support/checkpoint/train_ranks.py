"""A training script that the tests start with torchrun: ``train_ranks.py TIER UNTIL EVERY OUT [kill
RANK]``.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Iterator

import numpy
import torch
from torch.nn.parallel import DistributedDataParallel

from deepvm.checkpoint import Checkpointer


class Sampler:
    """A position of each rank in its own data."""

    def __init__(self, rank: int) -> None:
        self.position = 1000 * rank

    def state_dict(self) -> dict[str, object]:
        return {"position": self.position, "seen": [self.position] * (self.position % 7)}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.position = int(str(state["position"]))

    def __iter__(self) -> Iterator[int]:
        """Makes it one that is read behind the step, and kept for each rank."""
        yield self.position


def bits(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    tier, until, every, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    victim = int(sys.argv[6]) if len(sys.argv) > 6 else -1
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256),
        torch.nn.BatchNorm1d(256),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(256, 64),
    )
    torch.manual_seed(rank)
    random.seed(rank)
    numpy.random.seed(rank)
    # DDP lays its buckets out anew behind its first iteration, and more than two summands depend on
    # their order: what finds unused parameters keeps the first layout, so that a run that goes on
    # adds as the one that was not cut.
    ddp = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters=world > 2)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    sampler = Sampler(rank)
    saver = Checkpointer(
        model=ddp,
        optimizer=optimizer,
        extra={"scheduler": scheduler, "sampler": sampler},
        tiers=[tier],
        every=every,
    )
    start = saver.restore_latest()
    for step in range(start, until):
        x = torch.randn(8, 64) * random.random() * numpy.random.random() + sampler.position / 1e4
        sampler.position += 1
        optimizer.zero_grad()
        ddp(x).square().mean().backward()
        if rank == victim and step == until - 2:
            # On a machine under load the version before may still be on its way
            saver._last.remote_done.result(60)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        scheduler.step()
        if os.environ.get("DRIFT") and rank and step == 1:
            with torch.no_grad():
                model[0].weight[0, 0] += 1e-3
    saver.save(block=True)
    state = [*model.state_dict().values()]
    found = {
        "start": start,
        "version": saver.version,
        "world": world,
        "parameters": bits([*model.parameters()]),
        "all": bits(
            state + [t for s in optimizer.state_dict()["state"].values() for t in s.values()]
        ),
        "lr": scheduler.get_last_lr()[0],
        "position": sampler.position,
        "random": random.random(),
        "disagreements": saver.metrics["disagreements"],
    }
    saver.close()
    with open(f"{out}.{rank}", "w") as file:
        json.dump(found, file)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    # Gloo's threads outlive the group, and may abort the interpreter's own end (torch 2.13)
    os._exit(0)
