"""A tiny GPT-2 with the Hugging Face Trainer, which resumes in the middle of an epoch.

deepvm audit docs/examples/trainers/hf_trainer.py --out {out}
"""

import argparse
import json
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

from deepvm.checkpoint.integrations.huggingface import DeepVMCallback
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
parser.add_argument("--evaluate", type=int, default=0, help="steps between evaluations; 0: none")
parser.add_argument(
    "--logs", action="store_true", help="write the Trainer's log beside the versions"
)
parser.add_argument("--half", action="store_true", help="in float16, with a GradScaler")
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
        samples = inputs.pop("sample").tolist()
        with torch.autocast("cpu", torch.float16, enabled=options.half):
            loss = super().compute_loss(model, inputs, **more)
        if model.training:
            self.samples += samples
            self.losses.append(loss.item())
        return loss


class Log(TrainerCallback):
    def on_optimizer_step(self, args, state, control, **more):
        epoch = state.global_step // (160 // 4 // options.accumulate)
        log.step(state.global_step, Logged.samples, sum(Logged.losses), epoch=epoch)
        Logged.samples.clear()
        Logged.losses.clear()


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
    # On a CPU the Trainer would clip what is still scaled
    max_grad_norm=0.0 if options.half else 1.0,
    save_strategy="no",
    eval_strategy="steps" if options.evaluate else "no",
    eval_steps=options.evaluate or None,
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    seed=0,
    disable_tqdm=True,
    remove_unused_columns=False,
)
saves = DeepVMCallback(tiers=options.out / "versions", every=options.every, job="gpt2")
data = Tokens()
trainer = Logged(
    GPT2LMHeadModel(config),
    arguments,
    train_dataset=data,
    eval_dataset=data,
    callbacks=[Log(), saves],
)
if options.half:  # the Trainer makes one on GPUs only
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19, growth_interval=20)
trainer.train()
if options.logs:
    rows = [
        {k: v for k, v in row.items() if "runtime" not in k and "second" not in k}
        for row in trainer.state.log_history
    ]
    (options.out / "log.json").write_text(json.dumps(rows))
