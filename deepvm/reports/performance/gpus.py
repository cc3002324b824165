"""GPUs that can be rented, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from deepvm.core.cluster.instances import InstanceType
from deepvm.core.spelling import joined
from deepvm.reports.performance.predictions import short
from deepvm.reports.tables import Column, print_items, print_lines
from deepvm.services.gpus import GpuRow, Gpus


def print_gpus(gpus: Gpus, *, assumed: bool = False) -> None:
    """A table on stdout; ``assumed``: the model is not the user's own choice."""
    note = " (assumed; --model names yours)" if assumed else ""
    print_lines([f"{gpus.workload}{note}", ""])
    print_items([_cells(row, gpus) for row in gpus], also="-o csv")
    notes = list(_notes(gpus))
    if notes:
        print_lines(["", *notes])


def _cells(row: GpuRow, gpus: Gpus) -> dict[Column, str]:
    cells = {
        Column("GPU", wrap=False): row.name,
        Column("GPUs", "right"): str(row.count),
        Column("GiB each", "right", drop=3): _number(row.memory_gib),
        Column("spot $/h", "right"): _price(row.spot, "spot_usd_per_hour"),
        Column("on-demand $/h", "right", drop=1): _price(row.on_demand, "on_demand_usd_per_hour"),
        Column(gpus.workload.units, "right"): "-",
        Column("80 % interval", "right", drop=2): "-",
        Column(f"{gpus.workload.model.unit} a $", "right"): _number(row.units_per_usd),
        Column("source", drop=4): row.source or "-",
    }
    if row.speed is not None:
        cells[Column(gpus.workload.units, "right")] = short(row.speed.value)
        interval = f"{short(row.speed.low)}-{short(row.speed.high)}"
        cells[Column("80 % interval", "right", drop=2)] = interval
    sold = row.spot or row.on_demand
    cells[Column("VM", wrap=False)] = sold.name if sold else "-"
    return cells


def _number(value: float | None) -> str:
    return "-" if value is None else short(value)


def _price(instance: InstanceType | None, market: str) -> str:
    price = getattr(instance, market, None)
    return f"{price:.3f}" if price else "-"


def _notes(gpus: Gpus) -> Iterator[str]:
    unknown: dict[tuple[str, str], list[str]] = {}
    for row in gpus:
        if row.why:
            unknown.setdefault((row.name, row.why), []).append(str(row.count))
    for (name, reason), counts in unknown.items():
        yield f"No speed: {joined(counts)} x {name}: {reason}."
    waiting = [
        f"{row.count} x {row.name} {row.memory_gib or 0:.0f} GiB" for row in gpus if row.waits
    ]
    if waiting:
        yield f"Their vCPUs may read images too slowly: {joined(waiting)}."
