"""What ``ckpt bench`` measured: tables and a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.units import format_bytes
from deepvm.reports.pictures import STYLES, drawing, legend, short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from deepvm.profiling.checkpoint.bench import Bench
    from deepvm.profiling.checkpoint.node_bench import NodeBench, NodeRow

_METHOD = {
    "stall s": ("stall_s", 0),
    "safe s": ("durable_s", 0),
    "in training s": ("training_s", 5),
    "extra s": ("extra_s", 6),
    "stall x": ("stall_ratio", 2),
    "safe x": ("durable_ratio", 1),
    "in training x": ("training_ratio", 3),
    "extra x": ("extra_ratio", 4),
}


def print_bench(bench: Bench) -> None:
    """Seconds and ratios of every method, and below them where they were measured."""
    rows = []
    for name, method in bench.methods.items():
        cells = {Column("method"): name}
        for header, (field, drop) in _METHOD.items():
            cells[Column(header, "right", drop)] = _figure(getattr(method, field))
        rows.append(cells)
    print_items(rows, also="-o json")
    print_lines(
        [
            "",
            "stall: training waits. safe: until the guarantee holds, with nothing else running, or"
            " in training.",
            "extra: how much longer the loop takes; ~0: no longer than loops differ. x: times"
            " torch.save with fsync.",
            f"{bench.model}, {bench.bytes / 1e6:.0f} MB of state, {bench.steps} steps of"
            f" {bench.step_s:.3f} s after each save; medians of {bench.reps}",
            "{processor}, {cores} cores, {file_system}, torch {torch}, {measured_at}".format(
                **bench.machine
            ),
        ]
    )


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    # A loop that seems to be faster with a checkpoint tells only how much loops differ.
    return f"{value:.3f}" if value > 0 else "~0"


def print_node_bench(bench: NodeBench) -> None:
    """Speeds of a memory node by trainers and size, and below them what the machine can do."""
    print_items([_node_cells(row) for row in bench.rows], also="-o json")
    copy, write = (bench.limits[name] for name in ("memory_copy_bytes_s", "direct_write_bytes_s"))
    disk = "the disk takes no O_DIRECT"
    if write:
        disk = f"the disk written at {write / 1e9:.1f} GB/s (O_DIRECT)"
    problems = (row for row in bench.rows if row.problem)
    print_lines(
        [
            *(f"{row.trainers} x {format_bytes(row.bytes)}: {row.problem}" for row in problems),
            "",
            "Of all trainers together, until the node has verified the last one's version. TCP:"
            " plain connections of the same trainers, 1 or 2 each.",
            "ratio: to TCP x 2. fairness: time of the first trainer over the last's.",
            f"Memory is copied at {(copy or 0) / 1e9:.1f} GB/s, {disk}.",
            "{processor}, {cores} cores for all of it, {file_system}, {measured_at}".format(
                **bench.machine
            )
            + f"; medians of {bench.reps}",
        ]
    )


def _node_cells(row: NodeRow) -> dict[Column, str]:
    return {
        Column("trainers", "right"): str(row.trainers),
        Column("ranks", "right", drop=4): str(row.ranks),
        Column("state", "right"): format_bytes(row.bytes),
        Column("seconds", "right", drop=3): _or_dash(row.seconds, ".3f"),
        Column("GB/s", "right"): _gigabytes(row.bytes_s),
        Column("TCP x 1", "right", drop=2): _gigabytes(row.plain_1_bytes_s),
        Column("TCP x 2", "right", drop=1): _gigabytes(row.plain_2_bytes_s),
        Column("ratio", "right"): _or_dash(row.ratio, ".2f"),
        Column("fairness", "right"): _or_dash(row.fairness, ".2f"),
    }


def _gigabytes(speed: float | None) -> str:
    return _or_dash(speed and speed / 1e9, ".2f")


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def bench_figure(bench: Bench) -> Figure:
    """Bars of the stall and of the time until it is safe, over torch.save with fsync."""
    names, own = list(bench.methods), list(bench.methods.values())
    bars = {
        "training waits": [method.stall_ratio for method in own],
        "until it is safe": [method.durable_ratio for method in own],
    }
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
        state = f"{bench.bytes / 1e6:.0f} MB of state"
        figure.suptitle(f"What a checkpoint costs: {bench.model}, {state}")
        machine = "{cores} cores, {file_system}".format(**bench.machine)
        title = f"{short(bench.machine['processor'])}, {machine}; medians of {bench.reps}"
        axes.set_title(title, fontsize="small")
        legend(figure, len(bars), handlelength=None)
    return figure
