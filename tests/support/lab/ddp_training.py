"""Two ranks under DistributedDataParallel, with dropout; ``--forget rng``: all ranks get the random
state of rank 0.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from deepvm.lab import ResumableSampler, SampleLog


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--forget", default="")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(160, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
    trained = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    sampler = ResumableSampler(len(inputs), global_batch=16, rank=rank, world=world)
    torch.manual_seed(rank + 1)
    log, file, step = SampleLog(), options.out / "checkpoint.pt", 0
    if file.exists():
        saved = torch.load(file)
        step = saved["step"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        sampler.load_state_dict(saved["sampler"])
        torch.set_rng_state(saved["rng"][0 if options.forget == "rng" else rank])
    while step < 40:
        for ids in sampler:
            loss = trained(inputs[ids]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            sampler.step()
            optimizer.step()
            log.step(step, ids, loss)
            step += 1
            if step % 6 == 0:
                states = [torch.empty_like(torch.get_rng_state()) for _ in range(world)]
                dist.all_gather(states, torch.get_rng_state())
                if not rank:
                    state = {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                    }
                    state |= {"sampler": sampler.state_dict(), "rng": states}
                    torch.save(state, file.with_suffix(".tmp"))
                    os.replace(file.with_suffix(".tmp"), file)
            if step == 40:
                break
    dist.destroy_process_group()
    # Threads of gloo outlive the group, and abort an interpreter that ends, now and then (torch
    # 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
