"""GPUs that can be rented to train a model: a row for each GPU model and number of them in a VM."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from deepvm.catalog.published.performance import OwnSteps, PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.core.answer import Rows
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType
from deepvm.core.meanings import meant_gpu, none_of
from deepvm.core.training.roofline import WITHOUT_WHEELS
from deepvm.core.training.speed import Source, Training, TrainingSpeed
from deepvm.core.training.workload import Workload
from deepvm.errors import RequestError
from deepvm.planner.candidates import speed_of_one
from deepvm.planner.request import with_tables
from deepvm.records import dataclass, replace

_HOUR_S = 3600


@dataclass(frozen=True)
class GpuRow:
    """A GPU model and number of them in a VM: the type that trains most for its price."""

    instance: InstanceType
    speed: TrainingSpeed | None
    why: str = ""

    @property
    def gpu(self) -> Gpu:
        assert self.instance.gpu is not None
        return self.instance.gpu

    @property
    def waits(self) -> bool:
        return self.speed is not None and self.speed.waits(0)

    @property
    def units_per_usd(self) -> float | None:
        """Units of the workload that a dollar trains at the lowest price."""
        if self.speed is None:
            return None
        return self.speed.interval.value * _HOUR_S / _lowest(self.instance) or None


@dataclass(frozen=True, repr=False)
class Gpus(Rows[GpuRow]):
    """GPUs that can be rented to train a workload, the most work for a dollar first."""

    catalog: Catalog
    workload: Workload
    rows: tuple[GpuRow, ...]

    def __repr__(self) -> str:
        best = self.rows[0]
        speed = "speed unknown"
        if best.speed is not None:
            speed = f"{best.speed.interval.value:.3g} {self.workload.units}"
        return (
            f"<Gpus for {self.workload.model.name}: {best.gpu.count} x {best.gpu.name}, {speed};"
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
    """List GPUs with memory, prices, and how fast one VM trains a model, the best value first.

    ``gpu``: a glob of GPU models. ``tables``: measured on your own machines,
    ``deepvm.load_tables()``. ``software`` and the rest say what is trained, as for
    :func:`deepvm.predict`.

    Raises:
        RequestError: no such GPU in the catalog, or a workload that cannot be. CatalogFormatError:
            a bad model file.
    """
    with_tables(catalog, None)  # raises for other objects than catalogs
    speeds = PublishedPerformance(software)
    if tables is not None:
        speeds = tables.speeds(speeds, catalog.by_name)
    training = Training(read_workload(**workload), speeds)
    kinds: dict[tuple[str, int, float | None], list[InstanceType]] = {}
    for one in catalog:
        if one.gpu is not None and not one.unusable:
            kind = (one.gpu.name, one.gpu.count, one.gpu.memory_gib)
            kinds.setdefault(kind, []).append(one)
    every_row = [_row_of(types, training, gpu) for types in kinds.values()]
    every_row.sort(key=lambda r: (-(r.units_per_usd or 0.0), r.gpu.name, r.gpu.count))
    rows = tuple(r for r in every_row if fnmatchcase(r.gpu.name.casefold(), gpu.casefold()))
    if not rows:
        names = sorted({r.gpu.name for r in every_row})
        raise RequestError("gpu", gpu, none_of(gpu, names, meant_gpu(gpu, names)))
    return Gpus(catalog, training.workload, rows)


def _row_of(types: Sequence[InstanceType], training: Training, asked: str) -> GpuRow:
    speeds = [(t, speed_of_one(t, training)) for t in types]
    rows = [GpuRow(t, speed) for t, speed in speeds if not isinstance(speed, str)]
    measured = [row for row in rows if row.speed and row.speed.source is Source.MEASURED]
    if rows:
        best = min(measured or rows, key=lambda r: (-(r.units_per_usd or 0.0), r.instance.name))
    else:
        why = next(speed for _, speed in speeds if isinstance(speed, str))
        best = GpuRow(min(types, key=lambda t: (_lowest(t), t.name)), None, why)
    name = best.gpu.name
    why_not = WITHOUT_WHEELS.get(name)
    if why_not is None or measured or asked.casefold() == name.casefold():
        return best
    return replace(best, speed=None, why=f"{why_not}; with a build of your own: --gpu {name}")


def _lowest(instance: InstanceType) -> float:
    prices = (instance.spot_usd_per_hour, instance.on_demand_usd_per_hour)
    return min((float(p) for p in prices if p is not None), default=float("inf"))
