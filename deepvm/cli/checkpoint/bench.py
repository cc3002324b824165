"""``deepvm ckpt bench``: what a checkpoint costs, compared with torch.save and others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from deepvm.cli.long_runs import cleaning_up
from deepvm.cli.output import TableJson, check_plot, print_as, say
from deepvm.cli.parameters import opt


def bench(
    model: Annotated[
        Literal["resnet18", "resnet152"], opt("Model to train: 140 or 723 MB of state with Adam.")
    ] = "resnet18",
    reps: Annotated[int, opt("Rounds of saves, after three of warm-up.", "N")] = 5,
    methods: Annotated[
        str,
        opt(
            "Comma-separated: dcp, dcp-async, torchsnapshot, deepvm-file, deepvm-memory, deepvm-memory-durable; "
            "default: all available. torch.save always runs.",
            "NAMES",
        ),
    ] = "",
    folder: Annotated[str, opt("Where to write; emptied at the end.", "FOLDER", "--dir")] = ".",
    steps: Annotated[int, opt("Training steps after each save.", "N")] = 4,
    plot: Annotated[str, opt("Also draw the ratios, as .png or .svg.", "FILE")] = "",
    output: TableJson = "table",
) -> None:
    """Measure how long a checkpoint blocks training, and how long until it is safe.

    All methods save the same training in turn, on the same disk; medians, and ratios to torch.save with fsync.

    Example: deepvm ckpt bench --model resnet18 --reps 5 --dir /mnt/ckpt
    """
    check_plot(plot)
    from deepvm.profiling.checkpoint.bench import run_bench
    from deepvm.reports.profiling.checkpoint_bench import print_bench

    names = [n.strip() for n in methods.split(",") if n.strip()]
    with cleaning_up():  # gigabytes must not stay behind
        found = run_bench(model, reps, methods=names, folder=Path(folder or "."), steps=steps, say=say)
    print_as(output, lambda: print_bench(found), found.document)
    if plot:
        from deepvm.reports.pictures import draw_bench

        draw_bench(found, Path(plot))
