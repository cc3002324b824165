"""DistributedDataParallel on two machines: if either is preempted, both save the same step."""

import argparse
import time

import torch
import torch.distributed as dist

from deepvm.checkpoint import Checkpointer

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
steps = parser.parse_args().steps

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
    for step in checkpointer.steps(steps):
        inputs = torch.rand(32, 16, generator=torch.Generator().manual_seed(2 * step + rank))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
if rank == 0:
    print(f"loss {loss.item():.6f} after {steps} steps")
dist.destroy_process_group()
