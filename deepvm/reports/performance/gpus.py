"""What can be rented to train a model: one row for each GPU model and number of them in a VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.prediction import OwnSteps
from deepvm.catalog.published.workloads import WorkloadOptions, read_workload
from deepvm.core.answer import Rows
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.interval import Interval
from deepvm.core.meanings import meant_gpu, none_of
from deepvm.core.spelling import joined
from deepvm.core.training.hardware import WITHOUT_WHEELS
from deepvm.core.training.speed import Source, Training, TrainingSpeed
from deepvm.core.training.workload import Workload
from deepvm.errors import RequestError
from deepvm.planner.request import with_tables
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
    ``waits``: whether the GPUs may wait for the vCPUs of the type to read samples.
    """

    name: str
    count: int
    memory_gib: float | None
    spot: InstanceType | None
    on_demand: InstanceType | None
    speed: Interval | None
    source: str
    why: str
    waits: bool = False

    @property
    def units_per_usd(self) -> float | None:
        """Units of the workload that a dollar trains at the lowest price.

        None where the speed is not known.
        """
        prices = [
            *([self.spot.spot_usd_per_hour] if self.spot else []),
            *([self.on_demand.on_demand_usd_per_hour] if self.on_demand else []),
        ]
        lowest = min((float(p) for p in prices if p is not None), default=None)
        return None if lowest is None or self.speed is None else self.speed.value * _HOUR_S / lowest


@dataclass(frozen=True, repr=False)
class Gpus(Rows[GpuRow]):
    """What can be rented to train a workload, the most work for a dollar first."""

    catalog: Catalog
    workload: Workload
    rows: tuple[GpuRow, ...]

    def __repr__(self) -> str:
        """How many rows, and the first."""
        best, unit = self.rows[0], self.workload.units
        speed = "speed unknown" if best.speed is None else f"{short(best.speed.value)} {unit}"
        return (
            f"<Gpus for {self.workload.model.name}: {best.count} x {best.name}, {speed};"
            f" {len(self.rows) - 1} more>"
        )


def gpus(
    catalog: Catalog,
    gpu: str = "*",
    *,
    software: str = "eager",
    tables: OwnSteps | None = None,
    **workload: Unpack[WorkloadOptions],
) -> Gpus:
    """List GPUs with memory, prices, and how fast one VM trains a model.

    The most work for a dollar comes first.

    ``gpu``: a glob of GPU models. ``tables``: measured on your own machines,
    ``deepvm.load_tables()``. ``software`` and the rest say what is trained, as for
    :func:`deepvm.predict`.

    Raises:
        RequestError: no such GPU in the catalog, or a workload that cannot be. CatalogFormatError:
            a bad model file.
    """
    with_tables(catalog, None)  # refuses what is no catalog
    speeds = PublishedPerformance(software)
    speeds = speeds if tables is None else tables.speeds(speeds, catalog.by_name)
    training = Training(read_workload(**workload), speeds)
    found = [
        r if gpu.casefold() == r.name.casefold() else _built(r) for r in _rows_of(catalog, training)
    ]
    found.sort(key=lambda r: (-(r.units_per_usd or 0.0), r.name, r.count))
    rows = tuple(r for r in found if fnmatchcase(r.name.casefold(), gpu.casefold()))
    if not rows:
        names = sorted({r.name for r in found})
        raise RequestError("gpu", gpu, none_of(gpu, names, meant_gpu(gpu, names)))
    return Gpus(catalog, training.workload, rows)


def _rows_of(catalog: Catalog, training: Training) -> list[GpuRow]:
    """One row for each GPU model and number of them."""
    kinds: dict[tuple[str, int, float | None], list[InstanceType]] = {}
    for instance in catalog:
        if instance.gpu is not None and not instance.unusable:
            gpu = instance.gpu
            kinds.setdefault((gpu.name, gpu.count, gpu.memory_gib), []).append(instance)
    return [_row(*kind, types, training) for kind, types in kinds.items()]


def _built(row: GpuRow) -> GpuRow:
    """The row without a speed, unless measured, where PyTorch would have to be built for it."""
    why = WITHOUT_WHEELS.get(row.name)
    if why is None or row.source == Source.MEASURED.value:
        return row
    return replace(
        row, speed=None, source="", why=f"{why}; with a build of your own: --gpu {row.name}"
    )


def _row(
    name: str, count: int, memory: float | None, types: Sequence[InstanceType], training: Training
) -> GpuRow:
    """The row of the type that trains most for its price.

    Types with the same GPUs differ in vCPUs and networks.
    """
    found = [(t, speed_of_one(t, training)) for t in types]
    known = [
        (t, s.interval(0), s.source.value, s.waits(0))
        for t, s in found
        if isinstance(s, TrainingSpeed)
    ]
    if not known:
        why = next(s for _, s in found if isinstance(s, str))
        shown = min(types, key=lambda t: (_lowest(t), t.name))
        return GpuRow(name, count, memory, *_sold(shown), None, "", why)
    measured = [k for k in known if k[2] == Source.MEASURED.value]
    known = measured or known
    shown, speed, source, waits = min(known, key=lambda k: (_lowest(k[0]) / k[1].value, k[0].name))
    return GpuRow(name, count, memory, *_sold(shown), speed, source, "", waits)


def _lowest(instance: InstanceType) -> float:
    """The lower price, $/h; infinite where it is not sold."""
    prices = (instance.spot_usd_per_hour, instance.on_demand_usd_per_hour)
    return min((float(p) for p in prices if p is not None), default=float("inf"))


def _sold(instance: InstanceType) -> tuple[InstanceType | None, InstanceType | None]:
    """The type where it is sold on the spot market, and on demand."""
    spot, on_demand = instance.spot_usd_per_hour, instance.on_demand_usd_per_hour
    return instance if spot is not None else None, instance if on_demand is not None else None


def print_gpus(found: Gpus, *, assumed: bool = False) -> None:
    """A table on stdout; ``assumed``: the model is not the user's own choice."""
    print_lines([f"{found.workload}{' (assumed; --model names yours)' if assumed else ''}", ""])
    unit = found.workload.units
    items = [
        {
            Column("GPU", wrap=False): r.name,
            Column("GPUs", "right"): str(r.count),
            Column("GiB each", "right", drop=3): (
                "-" if r.memory_gib is None else f"{r.memory_gib:.3g}"
            ),
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
            Column("VM", wrap=False): (r.spot or r.on_demand or _NONE).name,
        }
        for r in found
    ]
    print_items(items, also="-o csv")
    unknown: dict[tuple[str, str], list[str]] = {}
    for r in (r for r in found if r.why):
        unknown.setdefault((r.name, r.why), []).append(str(r.count))
    lines = [
        f"No speed: {joined(counts)} x {name}: {why}." for (name, why), counts in unknown.items()
    ]
    twice = {
        n for n in {r.name for r in found} if len({r.memory_gib for r in found if r.name == n}) > 1
    }
    sizes = {
        r: f"{r.name} {r.memory_gib:.0f} GiB" if r.name in twice and r.memory_gib else r.name
        for r in found
    }
    waiting = [f"{r.count} x {sizes[r]}" for r in found if r.waits]
    if waiting:
        lines.append(f"Their vCPUs may read images too slowly: {joined(waiting)}.")
    print_lines(["", *lines] if lines else [])


_NONE = InstanceType("-", 1)


def _price(instance: InstanceType | None, *, spot: bool) -> str:
    price = instance and (instance.spot_usd_per_hour if spot else instance.on_demand_usd_per_hour)
    return "-" if not price else f"{price:.3f}"


def document(found: Gpus) -> dict[str, Any]:
    """For programs."""
    as_of = found.catalog.provenance.prices_as_of
    return {
        "schema_version": SCHEMA_VERSION,
        "catalog": found.catalog.name,
        "region": found.catalog.region,
        "prices_as_of": as_of and as_of.isoformat(),
        "model": found.workload.model.name,
        "unit": found.workload.units,
        "gpus": [
            {
                "gpu_name": r.name,
                "gpus_per_vm": r.count,
                "gpu_memory_gib": r.memory_gib,
                "spot": (
                    r.spot
                    and {
                        "instance_type": r.spot.name,
                        "usd_per_hour": float(r.spot.spot_usd_per_hour or 0),
                    }
                ),
                "on_demand": (
                    r.on_demand
                    and {
                        "instance_type": r.on_demand.name,
                        "usd_per_hour": float(r.on_demand.on_demand_usd_per_hour or 0),
                    }
                ),
                "throughput": r.speed and r.speed.as_document(),
                "units_per_usd": r.units_per_usd,
                "source": r.source or None,
                "waits_for_vcpus": r.waits,
                "reason": r.why or None,
            }
            for r in found
        ],
    }
