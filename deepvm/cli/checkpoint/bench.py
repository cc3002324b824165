"""``deepvm ckpt bench``: what a checkpoint costs, against what torch brings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepvm.cli.output import TableJson, check_plot, print_document, say
from deepvm.cli.signal_handling import cleaning_up

if TYPE_CHECKING:
    from deepvm.profiling.checkpoint.bench import Bench


def bench(
    model: Annotated[
        Literal["resnet18", "resnet152"], typer.Option(help="What is trained: 140 or 723 MB of state with Adam.")
    ] = "resnet18",
    reps: Annotated[int, typer.Option(help="Rounds of saves, after three that do not count.")] = 5,
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Separated by commas: dcp, dcp-async, torchsnapshot, deepvm-file, deepvm-memory, "
            "deepvm-memory-durable. All that can be used here unless given; torch.save always.",
        ),
    ] = "",
    folder: Annotated[
        str, typer.Option("--dir", metavar="FOLDER", help="Where to write; what was written is removed.  [default: .]")
    ] = "",
    steps: Annotated[int, typer.Option(help="Steps of training after each save.")] = 4,
    plot: Annotated[str, typer.Option(metavar="FILE", help="Draw the ratios as well: a .png or .svg.")] = "",
    output: TableJson = "table",
) -> None:
    """Measure how long training stands still for a checkpoint, and how long until it is safe.

    All methods save the same training in turn, on the same disk; medians, and ratios to torch.save with fsync.

    Example: deepvm ckpt bench --model resnet18 --reps 5 --dir /mnt/ckpt
    """
    check_plot(plot)
    names = [n.strip() for n in methods.split(",") if n.strip()]
    found = _run(model, reps, names, Path(folder or "."), steps)
    if output == "json":
        print_document(found.document())
    else:
        from deepvm.reports.profiling.checkpoint_bench import print_bench

        print_bench(found)
    if plot:
        from deepvm.reports.pictures import save_picture
        from deepvm.reports.profiling.checkpoint_bench import bench_figure

        save_picture(bench_figure(found), Path(plot))


def _run(model: str, reps: int, methods: list[str], folder: Path, steps: int) -> Bench:
    from deepvm.errors import MissingExtraError

    try:
        from deepvm.profiling.checkpoint.bench import run_bench
    except ImportError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("model", "torch", "train") from None

    with cleaning_up():  # gigabytes must not stay behind
        return run_bench(model, reps, methods=methods, folder=folder, steps=steps, say=say)
