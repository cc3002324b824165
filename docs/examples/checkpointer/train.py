"""A plain training loop: the checkpointer finds tiers, job and agent in its environment."""

import argparse
import time
from pathlib import Path

import torch

from deepvm.checkpoint import Checkpointer

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
steps = parser.parse_args().steps

torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.Adam(model.parameters())
with Checkpointer(model=model, optimizer=optimizer) as checkpointer:
    for step in checkpointer.steps(steps):
        # The same after a restart
        inputs = torch.rand(32, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
Path("outputs").mkdir(exist_ok=True)
torch.save(model.state_dict(), "outputs/model.pt")
print(f"{steps} steps: outputs/model.pt")
