"""``deepvm profile eflops``: what this machine does in training."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepvm.cli.output import TableJson, print_document, say
from deepvm.cli.profile.save import ForceSpread, InstanceType, Save, check_save, entry_from, put
from deepvm.cli.signal_handling import cleaning_up
from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError

if TYPE_CHECKING:
    from deepvm.profiling.eflops.measure_eflops import Eflops

MODELS = ("resnet18", "resnet50", "resnet152", "efficientnet_v2_m")
ALL = "all"
_OR_OWN = ", or module:function for a model of your own"


def _complete_model(incomplete: str) -> list[str]:
    return [n for n in (*MODELS, ALL) if n.startswith(incomplete)]


Models = Annotated[
    list[str],
    typer.Option(
        metavar="NAME",
        autocompletion=_complete_model,
        help=f"What is trained: {', '.join(MODELS)}, {ALL} of them, or module:function for a model of your own; may "
        "be repeated.",
    ),
]
Resolution = Annotated[int, typer.Option(metavar="PIXELS", help="Height and width of the images.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: all GPUs, or else the CPU.")]
Seconds = Annotated[float, typer.Option(help="The least length of a window of eFLOPS.")]


def eflops(
    model: Models = ["resnet18"],  # noqa: B006  typer makes a copy
    batch: Annotated[int, typer.Option(help="Images of a step on each GPU, or in each process on the CPU.")] = 128,
    resolution: Resolution = 32,
    windows: Annotated[int, typer.Option(help="Timed windows, 3 or more; the answer is their median.")] = 5,
    seconds: Seconds = 2.0,
    device: Device = "auto",
    processes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Processes that train together by DDP. One for each GPU; one on the CPU."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="The last two are mixed precision.")
    ] = "float32",
    optimizer: Annotated[Literal["adam", "sgd"], typer.Option(help="The paper's is Adam.")] = "adam",
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Train on CIFAR-10 (binary version) or Fashion-MNIST (idx files) from this folder. Random images "
            "unless given.",
        ),
    ] = "",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="End a training that is silent for so long.")] = 600,
    save: Save = False,
    instance_type: InstanceType = "",
    force_spread: ForceSpread = False,
    output: TableJson = "table",
) -> None:
    """Measure eFLOPS: train on this machine's GPUs, or its CPU, and count operations a second.

    After a warm-up, the median of timed windows, and their spread. Of several models, JSON is a list.

    Example: deepvm profile eflops --model resnet18 --batch 128 -o json
    """
    from deepvm.profiling.eflops.measure_eflops import measure_eflops

    names = models_of(model)
    if save:
        from deepvm.profiling.hosts.machine import describe

        instance_type = instance_type or describe()["instance_type"]
        check_save("eflops", instance_type=instance_type)  # before minutes of measuring
    several = len(model) > 1 or ALL in model
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
    if found:
        _print(found, several, output)
        if save:
            put([entry_from(one.document(), instance_type=instance_type) for one in found], force_spread=force_spread)
    if failure is not None:
        raise failure


def is_own(model: str) -> bool:
    """Whether a model is named as ``module:function``."""
    return re.fullmatch(r"[\w.]+:\w+", model) is not None


def models_of(names: list[str]) -> tuple[str, ...]:
    """Each model that is named, once; deepvm's own for ``all``. Raises RequestError."""
    for name in names:
        if name not in (*MODELS, ALL) and not is_own(name):
            raise RequestError("model", name, one_of(name, (*MODELS, ALL), ", ", also=_OR_OWN))
    return tuple(dict.fromkeys(m for name in names for m in (MODELS if name == ALL else (name,))))


def _print(found: list[Eflops], several: bool, output: str) -> None:
    for one in found:
        for warning in one.warnings:
            say(f"Warning: {one.workload.model}: {warning}")
    if output == "json":
        documents = [one.document() for one in found]
        print_document(documents if several else documents[0])
        return
    from deepvm.reports.profiling.eflops import print_eflops

    print_eflops(found)
