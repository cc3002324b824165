"""What can be rented to train a model: one row for each GPU model and number of them in a VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import WorkloadOptions, read_workload
from deepvm.core.answer import Rows
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.interval import Interval
from deepvm.core.spelling import one_of
from deepvm.core.training.speed import Training
from deepvm.core.training.workload import Workload
from deepvm.errors import RequestError
from deepvm.planner.workload.trained import speed_of_one
from deepvm.reports.performance.predictions import short
from deepvm.reports.tables import Column, print_items, print_lines

if TYPE_CHECKING:
    from typing import Unpack

SCHEMA_VERSION = "deepvm.gpus/1"
_HOUR_S = 3600


@dataclass(frozen=True)
class GpuRow:
    """A GPU model in VMs of ``count``: the cheapest type of each market, and how fast one VM trains.

    ``speed`` is None where it is not known or the model does not fit; ``why`` says which.
    """

    name: str
    count: int
    memory_gib: float | None
    spot: InstanceType | None
    on_demand: InstanceType | None
    speed: Interval | None
    source: str
    why: str

    @property
    def units_per_usd(self) -> float | None:
        """Units of the workload that a dollar trains at the lowest price; None where the speed is not known."""
        prices = [
            *([self.spot.spot_usd_per_hour] if self.spot else []),
            *([self.on_demand.on_demand_usd_per_hour] if self.on_demand else []),
        ]
        lowest = min((float(p) for p in prices if p is not None), default=None)
        return None if lowest is None or self.speed is None else self.speed.value * _HOUR_S / lowest


@dataclass(frozen=True, repr=False)
class Gpus(Rows[GpuRow]):
    """What can be rented to train a workload, the most work for a dollar first."""

    workload: Workload
    rows: tuple[GpuRow, ...]

    def __repr__(self) -> str:
        """How many rows, and the first."""
        best, unit = self.rows[0], self.workload.units
        speed = "speed unknown" if best.speed is None else f"{short(best.speed.value)} {unit}"
        return f"<Gpus for {self.workload.model.name}: {best.count} x {best.name}, {speed}; {len(self.rows) - 1} more>"


def gpus(catalog: Catalog, gpu: str = "*", **workload: Unpack[WorkloadOptions]) -> Gpus:
    """List GPUs with memory, prices, and how fast one VM trains a model; the most work for a dollar comes first.

    ``gpu``: a glob of GPU models. The rest says what is trained, as for :func:`deepvm.predict`.

    Raises:
        RequestError: no such GPU in the catalog, or a workload that cannot be. CatalogFormatError: a bad model file.
    """
    training = Training(read_workload(**workload), PublishedPerformance())
    found = _rows_of(catalog, training)
    rows = tuple(r for r in found if fnmatchcase(r.name.casefold(), gpu.casefold()))
    if not rows:
        raise RequestError("gpu", gpu, one_of(gpu, sorted({r.name for r in found}), ", "))
    return Gpus(training.workload, rows)


def _rows_of(catalog: Catalog, training: Training) -> list[GpuRow]:
    """One row for each GPU model and number of them, the best units a dollar first, the rest by name."""
    kinds: dict[tuple[str, int, float | None], list[InstanceType]] = {}
    for instance in catalog:
        if instance.gpu is not None and not instance.unusable:
            gpu = instance.gpu
            kinds.setdefault((gpu.name, gpu.count, gpu.memory_gib), []).append(instance)
    rows = [_row(*kind, types, training) for kind, types in kinds.items()]
    return sorted(rows, key=lambda r: (-(r.units_per_usd or 0.0), r.name, r.count))


def _row(name: str, count: int, memory: float | None, types: Sequence[InstanceType], training: Training) -> GpuRow:
    spot = min((t for t in types if t.spot_usd_per_hour), key=lambda t: t.spot_usd_per_hour or 0, default=None)
    sold = [t for t in types if t.on_demand_usd_per_hour]
    on_demand = min(sold, key=lambda t: t.on_demand_usd_per_hour or 0, default=None)
    found = speed_of_one(types[0], training)
    if isinstance(found, str):
        return GpuRow(name, count, memory, spot, on_demand, None, "", found)
    return GpuRow(name, count, memory, spot, on_demand, found.interval(0), found.source.value, "")


def print_gpus(found: Gpus) -> None:
    """A table on stdout."""
    unit = found.workload.units
    items = [
        {
            Column("GPU"): r.name,
            Column("GPUs", "right"): str(r.count),
            Column("GiB each", "right", drop=3): "-" if r.memory_gib is None else f"{r.memory_gib:g}",
            Column("spot $/h", "right"): _price(r.spot, spot=True),
            Column("on-demand $/h", "right", drop=1): _price(r.on_demand, spot=False),
            Column(unit, "right"): "-" if r.speed is None else f"{short(r.speed.value)}",
            Column("80 % interval", "right", drop=2): (
                "-" if r.speed is None else f"{short(r.speed.low)}-{short(r.speed.high)}"
            ),
            Column(f"{found.workload.model.unit} a $", "right"): (
                "-" if r.units_per_usd is None else short(r.units_per_usd)
            ),
            Column("source", drop=4): r.source or "-",
            Column("smallest VM", drop=5, wrap=False): (r.spot or r.on_demand or _NONE).name,
        }
        for r in found
    ]
    print_items(items, also="-o csv")
    unknown = [f"{r.count} x {r.name}: {r.why}" for r in found if r.why]
    print_lines(["", *(f"No speed: {text}." for text in unknown)] if unknown else [])


_NONE = InstanceType("-", 1)


def _price(instance: InstanceType | None, *, spot: bool) -> str:
    price = instance and (instance.spot_usd_per_hour if spot else instance.on_demand_usd_per_hour)
    return "-" if not price else f"{price:.3f}"


def document(found: Gpus) -> dict[str, Any]:
    """For programs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "model": found.workload.model.name,
        "unit": found.workload.units,
        "gpus": [
            {
                "gpu_name": r.name,
                "gpus_per_vm": r.count,
                "gpu_memory_gib": r.memory_gib,
                "spot": r.spot and {"instance_type": r.spot.name, "usd_per_hour": float(r.spot.spot_usd_per_hour or 0)},
                "on_demand": r.on_demand
                and {
                    "instance_type": r.on_demand.name,
                    "usd_per_hour": float(r.on_demand.on_demand_usd_per_hour or 0),
                },
                "throughput": r.speed and r.speed.as_document(),
                "units_per_usd": r.units_per_usd,
                "source": r.source or None,
                "reason": r.why or None,
            }
            for r in found
        ],
    }
