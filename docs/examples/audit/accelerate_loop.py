"""A small network under Hugging Face's Accelerate, resumed as its guide to checkpointing has it.

deepvm audit docs/examples/audit/accelerate_loop.py --out {out}
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch import nn

from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between checkpoints")
parser.add_argument("--seedable", action="store_true", help="use_seedable_sampler")
parser.add_argument(
    "--late", action="store_true", help="restore torch's random state after the first batch"
)
options = parser.parse_args()

torch.set_num_threads(1)
set_seed(0)
project = ProjectConfiguration(project_dir=str(options.out), automatic_checkpoint_naming=True)
more = {}
if options.seedable:
    from accelerate.utils import DataLoaderConfiguration

    more["dataloader_config"] = DataLoaderConfiguration(use_seedable_sampler=True)
accelerator = Accelerator(cpu=True, project_config=project, **more)
inputs = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1), torch.arange(len(inputs)))
model = nn.Sequential(
    nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

step, late = 0, None
saved = sorted(
    (options.out / "checkpoints").glob("checkpoint_*"),
    key=lambda path: int(path.name.split("_")[1]),
)
if saved:
    accelerator.load_state(str(saved[-1]))
    accelerator.project_configuration.iteration = len(saved)
    step = len(saved) * options.every
    late = torch.get_rng_state() if options.late else None

first, skip = divmod(step, len(loader))
for epoch in range(first, options.epochs):
    loader.set_epoch(epoch)
    batches = accelerator.skip_first_batches(loader, skip) if epoch == first and skip else loader
    for x, y, ids in batches:
        if late is not None:  # the iterator of the data loader has drawn from it
            torch.set_rng_state(late)
            late = None
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        log.step(step, ids, loss, epoch=epoch)
        step += 1
        if step % options.every == 0:
            accelerator.save_state()
