"""What checkpoints cost: a table and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.checkpoint.bench import Bench


def print_bench(bench: Bench) -> None:
    """Seconds and ratios of every method, and below them where they were measured."""
    drops = {"stall s": 0, "safe s": 0, "in training s": 5, "extra s": 6}
    drops |= {"stall": 2, "safe": 1, "in training": 3, "extra": 4}
    columns = [Column("method"), *(Column(header, "right", drop) for header, drop in drops.items())]
    rows = []
    for name, own in bench.methods.items():
        seconds = [own.stall_s, own.durable_s, own.training_s, own.extra_s]
        figures = [*seconds, own.stall_ratio, own.durable_ratio, own.training_ratio, own.extra_ratio]
        rows.append([name, *("-" if f is None else f"{f:.3f}" for f in figures)])
    print_table(columns, rows, also="-o json")
    print_lines(
        [
            "",
            "stall: training stands still. safe: until the guarantee holds, with nothing else running, or in training.",
            "extra: how much longer the loop takes. Without a unit: over torch.save with fsync.",
            f"{bench.model}, {bench.bytes / 1e6:.0f} MB of state, {bench.steps} steps of {bench.step_s:.3f} s after "
            f"each save; medians of {bench.reps}",
            "{processor}, {cores} cores, {file_system}, torch {torch}".format(**bench.machine),
        ]
    )


def bench_figure(bench: Bench) -> Figure:
    """Bars of what a checkpoint costs with each method, over torch.save with fsync: the stall, and until it is safe.

    Args:
        bench: from :func:`deepvm.profiling.checkpoint.bench.run_bench`.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    names, own = list(bench.methods), list(bench.methods.values())
    bars = {"training stands still": [f.stall_ratio for f in own], "until it is safe": [f.durable_ratio for f in own]}
    with drawing(8.0, 1.7 + 0.55 * len(names)) as (figure, axes):
        for index, (label, values) in enumerate(bars.items()):
            places = np.arange(len(names)) + 0.4 * index - 0.2
            drawn = axes.barh(places, values, 0.38, label=label, color=STYLES[index].color)
            axes.bar_label(drawn, [f"{v:.3f}" for v in values], padding=3, fontsize="small")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        # Between the best and the worst lie two orders of magnitude.
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="0.4", linewidth=0.8)
        axes.margins(x=0.15)
        axes.set_xlabel("seconds over those of torch.save with fsync (no unit)")
        figure.suptitle(f"What a checkpoint costs: {bench.model}, {bench.bytes / 1e6:.0f} MB of state")
        machine = f"{short(bench.machine['processor'])}, {bench.machine['cores']} cores, {bench.machine['file_system']}"
        axes.set_title(f"{machine}; medians of {bench.reps}", fontsize="small")
        legend(figure, len(bars), handlelength=None)
    return figure
