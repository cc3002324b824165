"""A small network under Hugging Face's Accelerate, which resumes in the middle of an epoch.

deepvm audit docs/examples/trainers/accelerate_loop.py --out {out}
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn

from deepvm.checkpoint.integrations.accelerate import checkpointed
from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between checkpoints")
parser.add_argument("--seedable", action="store_true", help="use_seedable_sampler")
parser.add_argument("--stateful", action="store_true", help="use_stateful_dataloader, of torchdata")
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--half", action="store_true", help="in float16, with a GradScaler")
options = parser.parse_args()


class Samples(torch.utils.data.Dataset):
    """Changed at random when they are loaded, as augmentation does."""

    def __init__(self):
        self.inputs = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, place):
        return self.inputs[place] + 0.1 * torch.randn(16), self.inputs[place, :4].argmax(), place


class Steps:
    """Counts them, with those that a GradScaler skips."""

    count = 0

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


torch.set_num_threads(1)
set_seed(0)
config = DataLoaderConfiguration(
    use_seedable_sampler=options.seedable, use_stateful_dataloader=options.stateful
)
accelerator = Accelerator(
    cpu=True, dataloader_config=config, gradient_accumulation_steps=options.accumulate
)
if options.half:  # Accelerate makes one on GPUs only
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=20)
model = nn.Sequential(
    nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
loader = torch.utils.data.DataLoader(
    Samples(), batch_size=16, shuffle=True, num_workers=options.loader_workers
)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

samples, losses, steps = [], [], Steps()
with checkpointed(
    accelerator,
    model=model,
    optimizer=optimizer,
    loader=loader,
    epochs=options.epochs,
    extra={"scheduler": scheduler, "steps": steps},
    tiers=options.out / "versions",
    every=options.every,
    job="network",
) as run:
    for epoch in run.epochs():
        for x, y, ids in loader:
            with accelerator.accumulate(model):
                with torch.autocast("cpu", torch.float16, enabled=options.half):
                    loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                samples, losses = [*samples, *ids.tolist()], [*losses, loss.item()]
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                log.step(steps.count, samples, sum(losses), epoch=epoch)
                samples, losses, steps.count = [], [], steps.count + 1
