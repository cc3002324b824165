"""What can be rented to train a model: one row for each GPU model and number of them in a VM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.prediction import OwnSteps
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.answer import Rows
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.meanings import meant_gpu, none_of
from deepvm.core.training.roofline import WITHOUT_WHEELS
from deepvm.core.training.speed import Source, Training, TrainingSpeed
from deepvm.core.training.workload import Workload
from deepvm.core.units import Interval
from deepvm.errors import RequestError
from deepvm.planner.candidates import speed_of_one
from deepvm.planner.request import with_tables

_HOUR_S = 3600


@dataclass(frozen=True)
class GpuRow:
    """A GPU model in VMs of ``count``: each market's cheapest type, and how fast one VM trains.

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
    def spot_offer(self) -> dict[str, Any] | None:
        """Type and price of the cheapest spot VM."""
        return _offer(self.spot, "spot_usd_per_hour")

    @property
    def on_demand_offer(self) -> dict[str, Any] | None:
        """Type and price of the cheapest on-demand VM."""
        return _offer(self.on_demand, "on_demand_usd_per_hour")

    @property
    def units_per_usd(self) -> float | None:
        """Units of the workload that a dollar trains at the lowest price.

        None where the speed is not known.
        """
        sold = self.spot or self.on_demand  # the same type, if both are there
        if sold is None or self.speed is None:
            return None
        return self.speed.value * _HOUR_S / _lowest(sold)


def _offer(instance: InstanceType | None, market: str) -> dict[str, Any] | None:
    if instance is None:
        return None
    return {"name": instance.name, "price": getattr(instance, market)}


@dataclass(frozen=True, repr=False)
class Gpus(Rows[GpuRow]):
    """What can be rented to train a workload, the most work for a dollar first."""

    catalog: Catalog
    workload: Workload
    rows: tuple[GpuRow, ...]

    @property
    def unknown(self) -> dict[tuple[str, str], list[str]]:
        """Numbers of GPUs without a speed, by the GPU's name and the reason."""
        counts: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.why:
                counts.setdefault((row.name, row.why), []).append(str(row.count))
        return counts

    def __repr__(self) -> str:
        best = self.rows[0]
        speed = "speed unknown"
        if best.speed is not None:
            speed = f"{best.speed.value:.3g} {self.workload.units}"
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
    **workload: Any,
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
    if tables is not None:
        speeds = tables.speeds(speeds, catalog.by_name)
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
    speeds = [(t, speed_of_one(t, training)) for t in types]
    known = [(t, s) for t, s in speeds if isinstance(s, TrainingSpeed)]
    if not known:
        why = next(s for _, s in speeds if isinstance(s, str))
        cheapest = min(types, key=lambda t: (_lowest(t), t.name))
        return GpuRow(name, count, memory, *_sold(cheapest), None, "", why)
    measured = [k for k in known if k[1].source is Source.MEASURED]
    best, speed = min(
        measured or known, key=lambda k: (_lowest(k[0]) / k[1].interval.value, k[0].name)
    )
    source = speed.source.value
    return GpuRow(name, count, memory, *_sold(best), speed.interval, source, "", speed.waits(0))


def _lowest(instance: InstanceType) -> float:
    """The lower price, $/h; infinite where it is not sold."""
    prices = (instance.spot_usd_per_hour, instance.on_demand_usd_per_hour)
    return min((float(p) for p in prices if p is not None), default=float("inf"))


def _sold(instance: InstanceType) -> tuple[InstanceType | None, InstanceType | None]:
    """The type where it is sold on the spot market, and on demand."""
    spot = instance.spot_usd_per_hour
    on_demand = instance.on_demand_usd_per_hour
    return instance if spot is not None else None, instance if on_demand is not None else None
