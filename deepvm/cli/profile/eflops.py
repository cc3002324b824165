"""``deepvm profile eflops``: what this machine does in training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from deepvm.cli.long_runs import cleaning_up
from deepvm.cli.output import TableJson, print_as, say
from deepvm.cli.parameters import opt
from deepvm.cli.profile.hosts import Device, ForceSpread, InstanceType, Resolution, Save
from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError

MODELS = ("resnet18", "resnet50", "resnet152", "efficientnet_v2_m")
ALL = "all"


def _complete_model(incomplete: str) -> list[str]:
    return [n for n in (*MODELS, ALL) if n.startswith(incomplete)]


Models = Annotated[
    list[str],
    opt(
        f"Model: {', '.join(MODELS)}, {ALL} of them, or module:function for your own; repeatable.",
        "NAME",
        autocompletion=_complete_model,
    ),
]
Seconds = Annotated[float, opt("Minimum length of a window of eFLOPS.", "SECONDS")]


def eflops(
    model: Models = ["resnet18"],  # noqa: B006  typer makes a copy
    batch: Annotated[int, opt("Images per step on each GPU, or in each process on the CPU.", "N")] = 128,
    resolution: Resolution = 32,
    windows: Annotated[int, opt("Timed windows, 3 or more; the result is their median.", "N")] = 5,
    seconds: Seconds = 2.0,
    device: Device = "auto",
    processes: Annotated[int | None, opt("DDP processes; default: one per GPU, one on the CPU.", "N")] = None,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], opt("float16 types: mixed precision.")] = "float32",
    optimizer: Annotated[Literal["adam", "sgd"], opt("Optimizer; the paper's is Adam.")] = "adam",
    data: Annotated[str, opt("Folder of CIFAR-10 or Fashion-MNIST; default: random images.", "DIR")] = "",
    timeout: Annotated[float, opt("Abort after so long without progress.", "SECONDS")] = 600,
    save: Save = False,
    instance_type: InstanceType = "",
    force_spread: ForceSpread = False,
    output: TableJson = "table",
) -> None:
    """Measure eFLOPS: train on this machine's GPUs, or its CPU, and count operations per second.

    After a warm-up, the median of timed windows, and their spread. For several models, JSON is a list.

    Example: deepvm profile eflops --model resnet18 --batch 128 -o json
    """
    from deepvm.cli.profile.save import check_save, entry_from, put
    from deepvm.profiling.eflops.measure_eflops import Eflops, measure_eflops
    from deepvm.profiling.hosts.machine import describe
    from deepvm.reports.profiling.eflops import print_eflops

    names = models_of(model)
    if save:
        instance_type = instance_type or describe().instance_type
        check_save("eflops", instance_type=instance_type)  # before minutes of measuring
    found: list[Eflops] = []
    failure: DeepVMError | None = None
    with cleaning_up():
        for name in names:
            try:
                one = measure_eflops(
                    name,
                    batch,
                    resolution,
                    windows,
                    device,
                    dtype,
                    optimizer,
                    processes=processes,
                    data=Path(data) if data else None,
                    seconds=seconds,
                    timeout_s=timeout,
                    say=say,
                )
            except DeepVMError as error:
                failure = error
                break  # what was measured before is printed all the same
            found.append(one)
            for warning in one.warnings:
                say(f"Warning: {name}: {warning}")
    if found:
        documents = [one.document() for one in found]
        several = len(model) > 1 or ALL in model
        print_as(output, lambda: print_eflops(found), lambda: documents if several else documents[0])
        if save:
            put([entry_from(d, instance_type=instance_type) for d in documents], force_spread=force_spread)
    if failure is not None:
        raise failure


def is_own(model: str) -> bool:
    """Whether a model is named as ``module:function``."""
    return re.fullmatch(r"[\w.]+:\w+", model) is not None


def models_of(names: list[str]) -> tuple[str, ...]:
    """Each model that is named, once; deepvm's own for ``all``. Raises RequestError."""
    for name in names:
        if name not in (*MODELS, ALL) and not is_own(name):
            own = ", or module:function for a model of your own"
            raise RequestError("model", name, one_of(name, (*MODELS, ALL), ", ", also=own))
    return tuple(dict.fromkeys(m for name in names for m in (MODELS if name == ALL else (name,))))
