"""What checkpoints cost, as a table; the picture is :func:`deepvm.reports.pictures.draw_bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
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
