"""A small network under Lightning's Trainer, which resumes in the middle of an epoch.

deepvm audit docs/examples/trainers/lightning_loop.py --out {out}
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from torch import nn

from deepvm.checkpoint.integrations.lightning import DeepVMCallback
from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between checkpoints")
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--ranks", type=int, default=1, help="under torchrun")
parser.add_argument("--validate", type=int, default=0, help="steps between validations; 0: none")
parser.add_argument("--half", action="store_true", help="in float16, with a GradScaler")
options = parser.parse_args()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.ids, self.losses = [], []
        self.layers = nn.Sequential(
            nn.Linear(16, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(options.dropout),
            nn.Linear(64, 4),
        )

    def training_step(self, batch, number):
        inputs, targets, ids = batch
        loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        self.ids, self.losses = [*self.ids, *ids.tolist()], [*self.losses, loss.item()]
        return loss

    def validation_step(self, batch, number):
        torch.rand(3)

    def optimizer_step(self, *args, **more):
        step = self.global_step
        super().optimizer_step(*args, **more)
        log.step(step, self.ids, sum(self.losses), epoch=self.current_epoch)
        self.ids, self.losses = [], []

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


class Samples(torch.utils.data.Dataset):
    """Changed at random when they are loaded, as augmentation does."""

    def __init__(self):
        self.inputs = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, place):
        return self.inputs[place] + 0.1 * torch.randn(16), self.inputs[place, :4].argmax(), place


torch.set_num_threads(1)
lightning.seed_everything(0)
# By itself it looks for MPI, and fails where that is half installed.
plugins = [TorchElasticEnvironment() if options.ranks > 1 else LightningEnvironment()]
if options.half:  # Lightning makes one on GPUs only
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=20)
    plugins.append(MixedPrecision("16-mixed", "cpu", scaler))
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=options.ranks,
    strategy="ddp" if options.ranks > 1 else "auto",
    max_epochs=options.epochs,
    accumulate_grad_batches=options.accumulate,
    val_check_interval=options.validate or None,
    limit_val_batches=2 if options.validate else 0,
    callbacks=[DeepVMCallback(tiers=options.out / "versions", every=options.every, job="network")],
    enable_checkpointing=False,
    logger=False,
    enable_progress_bar=False,
    default_root_dir=options.out,
    plugins=plugins,
)
Loader = torch.utils.data.DataLoader
data = Samples()
trainer.fit(
    Network(),
    Loader(data, batch_size=16, shuffle=True, num_workers=options.loader_workers),
    Loader(data, batch_size=16),
)
