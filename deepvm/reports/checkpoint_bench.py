"""What checkpoints cost, as a table; the picture is :func:`deepvm.reports.pictures.draw_bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepvm.reports.tables import Column, print_lines, print_table

if TYPE_CHECKING:
    from deepvm.checkpoint.bench.run import Bench


def print_bench(bench: Bench) -> None:
    """Seconds and ratios of every method, and below them where they were measured."""
    names = ["stall s", "durable s", "extra s", "stall ratio", "durable ratio", "extra ratio"]
    columns = [Column("method"), *(Column(n, "right") for n in names)]
    rows = []
    for name, own in bench.methods.items():
        figures = [own.stall_s, own.durable_s, own.extra_s, own.stall_ratio, own.durable_ratio, own.extra_ratio]
        rows.append([name, *("-" if f is None else f"{f:.3f}" for f in figures)])
    print_table(columns, rows)
    machine = bench.machine
    print_lines(
        [
            "",
            f"{bench.model}, {bench.bytes / 1e6:.0f} MB of state, {bench.steps} steps of {bench.step_s:.3f} s after "
            f"each save; medians of {bench.reps}, ratios to torch.save with fsync",
            f"{machine.processor}, {machine.cores} cores, {machine.file_system}, torch {machine.torch}",
        ]
    )
