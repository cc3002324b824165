"""Ranks under DistributedDataParallel with dropout, BatchNorm and samples that change when they are read."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
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
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    trained = nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(dist.get_rank() + 1)
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
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo outlive the group, and abort an interpreter that ends, now and then (torch 2.13)


if __name__ == "__main__":
    main()
