"""A plain training loop that resumes correctly.

With --forget it leaves one thing out, as many loops do.

deepvm audit docs/examples/audit/plain_loop.py --out {out}
deepvm audit docs/examples/audit/plain_loop.py --out {out} --forget rng
"""

import argparse
import os
from pathlib import Path

import torch
from torch import nn

from deepvm.lab import ResumableSampler, SampleLog

WHAT = ("rng", "sampler", "scheduler", "momentum", "buffers", "atomic", "checkpoint")

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
parser.add_argument(
    "--forget",
    choices=WHAT,
    help="what checkpoints lack; atomic: they are written over the last one",
)
options = parser.parse_args()
forget = options.forget

torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(320, 16)
targets = inputs[:, :4].argmax(1)
model = nn.Sequential(
    nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
sampler = ResumableSampler(len(inputs), global_batch=16, seed=1)
log = SampleLog()

file = options.out / "checkpoint.pt"
step = 0
if file.exists():
    saved = torch.load(file)
    step = saved["step"]
    weights = saved["model"]
    if forget == "buffers":
        weights = {name: value for name, value in weights.items() if "running" not in name}
    model.load_state_dict(weights, strict=forget != "buffers")
    if forget != "momentum":
        optimizer.load_state_dict(saved["optimizer"])
    if forget != "scheduler":
        scheduler.load_state_dict(saved["scheduler"])
    if forget != "sampler":
        sampler.load_state_dict(saved["sampler"])
    if forget != "rng":
        torch.set_rng_state(saved["rng"])

while step < options.steps:
    epoch = sampler.epoch
    for ids in sampler:
        loss = nn.functional.cross_entropy(model(inputs[ids]), targets[ids])
        optimizer.zero_grad()
        loss.backward()
        sampler.step()
        optimizer.step()
        scheduler.step()
        log.step(step, ids, loss, epoch=epoch)
        step += 1
        if step % options.every == 0 and forget != "checkpoint":
            state = {
                "step": step,
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "sampler": sampler.state_dict(),
                "rng": torch.get_rng_state(),
            }
            if forget == "atomic":
                torch.save(state, file)
            else:
                torch.save(state, file.with_suffix(".tmp"))
                os.replace(file.with_suffix(".tmp"), file)
        if step == options.steps:
            break
torch.save(model.state_dict(), options.out / "final.pt")
