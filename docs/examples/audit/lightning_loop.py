"""A small network with Lightning's Trainer, resumed from the last checkpoint.

deepvm audit docs/examples/audit/lightning_loop.py --out {out}
"""

import argparse
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import nn

from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between checkpoints")
parser.add_argument("--dropout", type=float, default=0.2)
parser.add_argument("--shuffle", default=True, action=argparse.BooleanOptionalAction)
options = parser.parse_args()


class Network(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 64),
            nn.BatchNorm1d(64),
            nn.ReLU(),
            nn.Dropout(options.dropout),
            nn.Linear(64, 4),
        )

    def training_step(self, batch, number):
        inputs, targets, self.ids = batch
        self.loss = nn.functional.cross_entropy(self.layers(inputs), targets)
        return self.loss

    def optimizer_step(self, *args, **more):
        step = self.global_step
        super().optimizer_step(*args, **more)
        log.step(step, self.ids, self.loss, epoch=self.current_epoch)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.5)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


torch.set_num_threads(1)
lightning.seed_everything(0)
inputs = torch.randn(640, 16, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, inputs[:, :4].argmax(1), torch.arange(len(inputs)))
keep = ModelCheckpoint(
    options.out, every_n_train_steps=options.every, save_last=True, save_top_k=1, monitor=None
)
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=1,
    max_epochs=options.epochs,
    callbacks=[keep],
    logger=False,
    enable_progress_bar=False,
    default_root_dir=options.out,
    # By itself it looks for MPI, and fails where that is half installed
    plugins=[LightningEnvironment()],
)
last = options.out / "last.ckpt"
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=options.shuffle)
trainer.fit(Network(), loader, ckpt_path=last if last.exists() else None)
