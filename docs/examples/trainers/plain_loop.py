"""A small network in a loop of one's own, which resumes in the middle of an epoch.

deepvm audit docs/examples/trainers/plain_loop.py --out {out}
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from deepvm.checkpoint import training_run
from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between versions")
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--stateful", action="store_true", help="a loader of torchdata")
options = parser.parse_args()


class Samples(torch.utils.data.Dataset):
    """Changed at random when they are loaded, as augmentation does."""

    def __init__(self):
        self.inputs = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, place):
        return self.inputs[place] + 0.1 * torch.randn(16), self.inputs[place, :4].argmax(), place


torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)  # each epoch
# Skips its first step, and grows
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=20)
Loader = torch.utils.data.DataLoader
if options.stateful:
    from torchdata.stateful_dataloader import StatefulDataLoader as Loader
loader = Loader(Samples(), batch_size=16, shuffle=True, num_workers=options.loader_workers)

with training_run(
    model=model,
    optimizer=optimizer,
    loader=loader,
    epochs=options.epochs,
    extra={"scheduler": scheduler, "scaler": scaler},
    tiers=options.out / "versions",
    every=options.every,
    job="plain",
) as run:
    for epoch in run.epochs():
        for x, y, ids in run.loader:
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            scaler.scale(loss / options.accumulate).backward()
            batch = epoch * len(loader) + run.loader.batch  # from 1
            if batch % options.accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            log.step(batch - 1, ids, loss, epoch=epoch)
        scheduler.step()
        model.eval()
        torch.rand(3)  # an evaluation may draw, too
        model.train()
