"""eFLOPS of a machine, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from deepvm.profiling.eflops.measure_eflops import Eflops

_UNITS = ("", "k", "M", "G", "T", "P", "E")


def print_eflops(found: Sequence[Eflops]) -> None:
    """One row for each model, and below them what the numbers mean; ``found`` is of one machine and one request."""
    items = [
        {
            Column("model"): one.workload.model,
            Column("eFLOPS", "right"): f"{scaled(one.eflops)}FLOP/s",
            Column("images/s", "right", drop=2): f"{one.images_per_s:,.1f}",
            Column("spread", "right", drop=1): f"{one.spread:.1%}",
            Column("forward pass", "right", drop=3): f"{scaled(one.forward_flops)}FLOP",
        }
        for one in found
    ]
    print_items(items, also="-o json")
    first = found[0]
    workload, machine = first.workload, first.machine
    images = "random images" if first.data == "synthetic" else f"images of {first.data}"
    gpus = ", ".join(machine["gpus"][: first.processes])
    processes = "1 process" if first.processes == 1 else f"{first.processes} processes"
    cpu = f"{machine['processor']}, {processes} x {first.threads} of {machine['cores']} cores"
    built = f" for CUDA {machine['cuda']}" if machine["cuda"] else ""
    print_lines(
        [
            "",
            "eFLOPS: operations a second in training, 3 x forward pass x images/s; medians of "
            f"{len(first.windows)} windows. spread: (fastest - slowest) / median.",
            f"Each number belongs to its model and to batch {workload.batch}, {images} of {workload.resolution} x "
            f"{workload.resolution}, {workload.dtype}, {workload.optimizer}: one machine has several times as many "
            "eFLOPS with one workload as with another, so compare machines by the same.",
            f"{gpus if first.device == 'cuda' else cpu}, torch {machine['torch']}{built}",
        ]
    )


def scaled(number: float) -> str:
    """Three digits and the prefix of the unit that follows: ``1.23 G``."""
    power = 0
    # 999.5 would be shown as 1e+03.
    while number >= 999.5 and power < len(_UNITS) - 1:
        number, power = number / 1000, power + 1
    digits = f"{number:#.3g}".rstrip(".")
    return f"{digits} {_UNITS[power]}"
