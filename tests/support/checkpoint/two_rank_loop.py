"""Ranks with dropout, BatchNorm and samples that change when they are read.

Replicas, or ``--sharded``.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from deepvm.checkpoint import training_run
from deepvm.lab import SampleLog
from support.checkpoint.loaders import Items


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument(
        "--sharded", action="store_true", help="fully_shard, and final.pt at the end"
    )
    parser.add_argument("--die-at", type=int, default=-1, help="kill all ranks after this step")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
    )
    trained: nn.Module = (
        fully_shard(model) if options.sharded else nn.parallel.DistributedDataParallel(model)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(dist.get_rank() + 1)
    data = Items()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, 3, sampler=sampler, num_workers=options.loader_workers)
    log, step = SampleLog(), 0
    with training_run(
        model=trained,
        optimizer=optimizer,
        loader=loader,
        epochs=8,
        tiers=options.out / "v",
        every=options.every,
        job="two",
    ) as run:
        for epoch in run.epochs():
            sampler.set_epoch(epoch)
            for places, noise in run.loader:
                loss = trained(torch.stack([places.float() / 22, noise.float()], 1)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                time.sleep(options.sleep)
                step = epoch * len(loader) + run.loader.batch
                log.step(step - 1, places, loss, epoch=epoch)
                if run.step == options.die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
    if options.sharded:
        whole = {
            k: v.full_tensor() if hasattr(v, "full_tensor") else v
            for k, v in model.state_dict().items()
        }
        if not dist.get_rank():
            torch.save(whole, options.out / "final.pt")
        dist.barrier()
    dist.destroy_process_group()
    # Threads of gloo outlive the group, and abort an interpreter that ends, now and then (torch
    # 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
