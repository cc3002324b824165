"""A tiny GPT-2 with the Hugging Face Trainer, resumed as the documentation shows.

deepvm audit docs/examples/audit/hf_trainer.py --out {out}
"""

import argparse
from pathlib import Path

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from deepvm.lab import SampleLog

log = SampleLog()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--every", type=int, default=7, help="steps between checkpoints")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument(
    "--augment", action="store_true", help="samples with random changes, as augmentation makes them"
)
parser.add_argument(
    "--newest-whole", action="store_true", help="resume from the newest checkpoint that is complete"
)
options = parser.parse_args()


class Tokens(torch.utils.data.Dataset):
    def __init__(self):
        self.ids = torch.randint(0, 64, (160, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        ids = self.ids[place].clone()
        if options.augment:
            ids[torch.rand(16) < 0.1] = 0
        return {"input_ids": ids, "labels": self.ids[place], "sample": place}


class Logged(Trainer):
    samples, losses = [], []

    def compute_loss(self, model, inputs, **more):
        self.samples += inputs.pop("sample").tolist()
        loss = super().compute_loss(model, inputs, **more)
        self.losses.append(float(loss))
        return loss


class Log(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **more):
        epoch = state.global_step // (160 // 4 // options.accumulate)
        log.step(state.global_step, Logged.samples, sum(Logged.losses), epoch=epoch)
        Logged.samples.clear()
        Logged.losses.clear()


def newest(folder):
    if not options.newest_whole:
        return get_last_checkpoint(folder) if folder.is_dir() else None
    # It is written last
    whole = [path.parent for path in folder.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.split("-")[1]))) if whole else None


torch.set_num_threads(1)
set_seed(0)
config = GPT2Config(
    vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
)
arguments = TrainingArguments(
    output_dir=str(options.out),
    num_train_epochs=options.epochs,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=options.accumulate,
    dataloader_num_workers=options.loader_workers,
    learning_rate=1e-3,
    warmup_steps=5,
    save_steps=options.every,
    save_total_limit=3,
    report_to=[],
    use_cpu=True,
    seed=0,
    disable_tqdm=True,
    remove_unused_columns=False,
)
trainer = Logged(GPT2LMHeadModel(config), arguments, train_dataset=Tokens(), callbacks=[Log()])
trainer.train(resume_from_checkpoint=newest(options.out))
