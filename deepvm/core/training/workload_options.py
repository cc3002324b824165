"""What is trained, as users write it, each option declared once.

The module is light, because ``--help`` loads it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from deepvm.core.options import TRAINING, option

_METHODS = ("auto", "ddp", "fsdp", "lora")
_PRECISIONS = ("auto", "fp32", "tf32", "fp16", "bf16", "fp8")


def _said(help: str, metavar: str, group: str = TRAINING) -> Any:
    return option(None, help, metavar, group=group)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class WorkloadOptions:
    """What is trained; numbers may be text, ``model`` an object too."""

    model: Any = option(
        "",
        "A preset of 'deepvm performance models', or a .yaml file.",
        "NAME|FILE",
        group=TRAINING,
        complete="complete_model",
    )
    params: Any = _said("Instead: a language model of this size, such as 7B.", "COUNT")
    seq: Any = _said("Tokens of a sample; default: the model's.", "TOKENS")
    method: str = option(
        "auto",
        "All on each GPU, sharded, or adapters only; auto: by size.",
        group=TRAINING,
        choices=_METHODS,
    )
    precision: str = option(
        "auto", "auto, bf16, fp16, fp8, tf32 or fp32.", "NAME", group=TRAINING, choices=_PRECISIONS
    )
    batch_per_gpu: Any = _said("Samples of a step on each GPU; default: the model's.", "N")
    global_batch: Any = _said("Instead: samples of a step on all GPUs together.", "N")
    activation_checkpointing: bool | None = option(
        None,
        "Recompute activations to save memory.",
        None,
        "--activation-checkpointing/--no-activation-checkpointing",
        group=TRAINING,
        kind=bool,
    )

    @property
    def names_a_model(self) -> bool:
        """Whether a model is named, or its size."""
        return bool(self.model) or self.params is not None


@dataclass(frozen=True, kw_only=True, eq=False, repr=False, init=False)
class AmountOptions(WorkloadOptions):
    """Adds how much is trained in all; ``epochs`` are of the data set, in the model's unit."""

    tokens: Any = _said("Tokens to train on, such as 2B: adds time and bill.", "COUNT")
    samples: Any = _said("Instead: samples to train on, such as 50M.", "COUNT")
    epochs: Any = _said("Instead: passes over a data set, with --dataset-size.", "N", "")
    dataset_size: Any = _said("Its samples; of a language model its tokens.", "COUNT", "")


def workload_keywords(options: WorkloadOptions, usual_model: str = "") -> dict[str, Any]:
    """The options by name, with ``usual_model`` where none is named."""
    names = [f.name for f in fields(AmountOptions) if hasattr(options, f.name)]
    values = {name: getattr(options, name) for name in names}
    if not options.names_a_model:
        values["model"] = usual_model
    return values
