"""Train models of transformers and torchvision on one GPU: what predictions are compared with.

    python scripts/measure_transformers.py --out runs.csv                 # all of them, about ten
    minutes python scripts/measure_transformers.py --only llama-8b --out runs.csv # one model's

It needs torch, transformers and torchvision, and peft for LoRA; not deepvm, and no network: models
are built from their configurations with random weights. Each run has a process of its own, so that
one without memory ends no other. A line says what was trained, how fast (tokens or images a second,
by the median step), and the memory that PyTorch took: the peak of what was allocated and reserved.
On 26 November 2026 all of them ran on an H100 and some on an H200: tests/recorded/gpu_runs.csv, and
the source "deepvm" in data/performance/published.csv (BERT in samples a second).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

LLAMA = {
    "llama-1b": (2048, 8192, 16, 32, 8, 128256, True),
    "llama-3b": (3072, 8192, 28, 24, 8, 128256, True),
    "llama-8b": (4096, 14336, 32, 32, 8, 128256, False),
}
"""Hidden and inner size, layers, heads, KV heads, vocabulary, tied weights (Llama 3's config)."""


class Run(NamedTuple):
    """One measurement; ``tokens``: of a sample, None for images."""

    model: str
    method: str
    batch: int
    tokens: int | None
    precision: str = "bf16"
    checkpointing: bool = False


RUNS = [
    *(Run("llama-8b", "lora", batch, 2048) for batch in (1, 2, 4)),
    *(Run("llama-8b", "lora", batch, 2048, checkpointing=True) for batch in (4, 8, 16)),
    *(Run("llama-1b", "ddp", batch, 2048) for batch in (2, 4, 8)),
    Run("llama-1b", "ddp", 8, 2048, checkpointing=True),
    Run("llama-3b", "ddp", 4, 2048, checkpointing=True),
    Run("llama-3b", "lora", 4, 2048),
    *(Run("gpt2", "ddp", batch, 1024) for batch in (8, 16, 32)),
    *(Run("bert-base", "ddp", batch, 512) for batch in (16, 32, 64)),
    *(Run("bert-large", "ddp", batch, 512) for batch in (16, 32)),
    *(Run("vit-b", "ddp", batch, None) for batch in (64, 256)),
    Run("vit-l", "ddp", 64, None),
    *(Run("resnet50", "ddp", batch, None) for batch in (64, 128, 256)),
    Run("resnet50", "ddp", 128, None, "tf32"),
    Run("resnet152", "ddp", 128, None),
    Run("efficientnet-v2-m", "ddp", 32, None),
]


def language(name: str, tokens: int) -> Any:
    """A model of Transformers with random weights."""
    import transformers as hf

    if name in LLAMA:
        hidden, inner, layers, heads, kv_heads, words, tied = LLAMA[name]
        return hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=hidden,
                intermediate_size=inner,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                vocab_size=words,
                tie_word_embeddings=tied,
                max_position_embeddings=max(8192, tokens),
                use_cache=False,
            )
        )
    if name == "gpt2":
        return hf.GPT2LMHeadModel(hf.GPT2Config(use_cache=False))
    large = {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    }
    return hf.BertForMaskedLM(hf.BertConfig(**(large if name == "bert-large" else {})))


def images(name: str) -> tuple[Any, int]:
    """A model of torchvision, and the side of its images."""
    import torchvision.models as vision

    if name.startswith("vit"):
        return (vision.vit_b_16() if name == "vit-b" else vision.vit_l_16()), 224
    return getattr(vision, name.replace("-", "_"))(), (
        384 if name.startswith("efficientnet") else 224
    )


def measure(run: Run, steps: int, warmup: int) -> dict[str, Any]:
    """Samples or tokens per second of the median step, and memory, of this process's GPU."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = (
        run.precision != "fp32"
    )
    torch.manual_seed(0)
    model: Any
    with torch.device("cuda"):
        if run.tokens is None:
            model, pixels = images(run.model)
            model = model.to(memory_format=torch.channels_last)
            given = torch.randn(run.batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
            labels = torch.randint(1000, (run.batch,))
        else:
            if run.method == "lora":  # frozen weights are kept in 16 bits
                torch.set_default_dtype(torch.bfloat16)
            model = language(run.model, run.tokens)
            torch.set_default_dtype(torch.float32)
            given = labels = torch.randint(model.config.vocab_size, (run.batch, run.tokens))
    if run.method == "lora":
        import peft

        model = peft.get_peft_model(
            model, peft.LoraConfig(r=16, target_modules="all-linear", lora_dropout=0.0)
        )
    if run.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    mixed = torch.autocast("cuda", torch.bfloat16, enabled=run.precision == "bf16")
    times: list[float] = []
    for step in range(warmup + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        with mixed:
            if run.tokens is None:
                loss = nn.functional.cross_entropy(model(given), labels)
            else:
                loss = model(input_ids=given, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= warmup:
            times.append(time.perf_counter() - start)
    step_s = statistics.median(times)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "trained": sum(p.numel() for p in trained),
        "throughput": run.batch * (run.tokens or 1) / step_s,
        "step_s": step_s,
        "spread": (max(times) - min(times)) / step_s,
        "allocated_gib": torch.cuda.max_memory_allocated() / 2**30,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30,
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
    }


def main() -> int:
    """Run them all, one after the other; or one, in this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="CSV file")
    parser.add_argument("--only", action="append", help="a model of the list; repeatable")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(Run(**json.loads(asked.one)), asked.steps, asked.warmup)))
        return 0
    rows: list[dict[str, Any]] = []
    for run in RUNS:
        if asked.only and run.model not in asked.only:
            continue
        own = [sys.executable, __file__, "--steps", str(asked.steps), "--warmup", str(asked.warmup)]
        done = subprocess.run(
            [*own, "--one", json.dumps(run._asdict())], capture_output=True, text=True
        )
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or ["no message"]
            print(f"{run}: {why[0][:300]}", file=sys.stderr, flush=True)
            rows.append(
                {
                    **run._asdict(),
                    "error": "out of memory" if "OutOfMemory" in done.stderr else why[0][:80],
                }
            )
        else:
            rows.append({**run._asdict(), **json.loads(done.stdout.splitlines()[-1]), "error": ""})
            print(rows[-1], file=sys.stderr, flush=True)
        if asked.out:
            names = list(dict.fromkeys(name for row in rows for name in row))
            with asked.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, names)
                writer.writeheader()
                writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
