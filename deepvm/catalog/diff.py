"""What changed between two catalogs: types, prices and figures."""

from collections.abc import Iterator, Mapping
from decimal import Decimal

import numpy as np

from deepvm.core.cluster.instances import Catalog, InstanceType, Market
from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.records import dataclass, fields

Plain = str | int | float | bool | None  # A printable figure; complex ones in words
_NOT_FIGURES = frozenset(
    {"name", "on_demand_usd_per_hour", "spot_usd_per_hour", "spot_zones", "gpu", "speedups"}
)
# VMs for which a changed curve is shown as S(n): its parameters alone are hard to read
_SIZES = (2, 4, 8, 16, 32)


@dataclass(frozen=True)
class PriceChange:
    """$/h before and now, None where it was or is not sold; ``zone`` is empty for the region."""

    instance_type: str
    market: Market
    old: Decimal | None
    new: Decimal | None
    zone: str = ""

    @property
    def difference(self) -> Decimal | None:
        """Increase in $/h, exact; None where there was or is no price."""
        if self.old is None or self.new is None:
            return None
        return self.new - self.old

    @property
    def percent(self) -> Decimal | None:
        if self.old is None or self.difference is None:
            return None
        return self.difference / self.old * 100


@dataclass(frozen=True)
class FigureChange:
    """Before and now, None where unknown or absent; ``instance_type``: empty for the catalog's."""

    instance_type: str
    figure: str
    old: Plain
    new: Plain


@dataclass(frozen=True)
class CatalogDiff:
    """What changed from one catalog to another."""

    old: Catalog
    new: Catalog
    added: tuple[InstanceType, ...]
    removed: tuple[InstanceType, ...]
    prices: tuple[PriceChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def empty(self) -> bool:
        return not (self.added or self.removed or self.prices or self.figures)


def diff_catalogs(old: Catalog, new: Catalog) -> CatalogDiff:
    """Compare two catalogs."""
    common = [(i, new.by_name[i.name]) for i in old if i.name in new.by_name]
    prices = [change for before, after in common for change in _price_changes(before, after)]
    figures = [*_changes("", _catalog_figures(old), _catalog_figures(new))]
    for before, after in common:
        gpus = before.gpu is not None and after.gpu is not None
        figures += _changes(before.name, _figures(before, gpus), _figures(after, gpus))
    return CatalogDiff(
        old=old,
        new=new,
        added=tuple(i for i in new if i.name not in old.by_name),
        removed=tuple(i for i in old if i.name not in new.by_name),
        prices=tuple(sorted(prices, key=_by_size)),
        figures=tuple(figures),
    )


def _by_size(change: PriceChange) -> tuple[int, Decimal, Decimal, str, str, str]:
    last = (change.instance_type, change.market.value, change.zone)
    if change.difference is None or change.percent is None:
        return (0, Decimal(0), -(change.old or change.new or Decimal(0)), *last)
    return (1, -abs(change.percent), -abs(change.difference), *last)


def _price_changes(old: InstanceType, new: InstanceType) -> Iterator[PriceChange]:
    for market in Market:
        before = old.usd_per_hour(market)
        after = new.usd_per_hour(market)
        if before != after:
            yield PriceChange(old.name, market, before, after)
    zones, zones_now = ({z.zone: z.usd_per_hour for z in i.spot_zones} for i in (old, new))
    for zone in sorted({*zones, *zones_now}):
        if zones.get(zone) != zones_now.get(zone):
            yield PriceChange(old.name, Market.SPOT, zones.get(zone), zones_now.get(zone), zone)


def _changes(
    instance_type: str, old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[FigureChange]:
    for figure in dict.fromkeys([*old, *new]):
        before = old.get(figure)
        after = new.get(figure)
        # Only differing values are put in words: those of a curve need scipy.
        if before != after and _plain(before) != _plain(after):
            yield FigureChange(instance_type, figure, _plain(before), _plain(after))


def _figures(instance: InstanceType, gpu_parts: bool) -> dict[str, object]:
    figures = {name: value for name, value in vars(instance).items() if name not in _NOT_FIGURES}
    gpu = instance.gpu
    if gpu is not None and gpu_parts:
        figures |= {f"gpu.{name}": value for name, value in vars(gpu).items()}
    elif gpu is not None:
        figures["gpu"] = f"{gpu.count} x {gpu.name}"
    for curve in instance.speedups:
        workload = ""
        if curve.workload is not None:
            workload = f" of {curve.workload}"
        figures[f"speedup {curve.kind}{workload}"] = curve
    return figures


def _catalog_figures(catalog: Catalog) -> dict[str, object]:
    # A quota of 0 is a limit; none in use is no figure.
    about = catalog.provenance
    figures: dict[str, object] = {
        "region": catalog.region,
        "description": catalog.description,
        "default_speedup": catalog.default_speedup,
        "eflops_unit": catalog.eflops_unit,
        "memory_nodes": catalog.memory_nodes.name,
        "prices_as_of": about.prices_as_of,
        "source": about.source,
        "basis": about.basis,
    }
    for gbps, n_sat in zip(catalog.n_sat.network_gbps, catalog.n_sat.n_sat, strict=True):
        figures[f"n_sat at {gbps:g} Gbit/s"] = n_sat
    for quota in catalog.quotas:
        figures[f"quota {quota.family} {quota.market.value} (vCPUs)"] = quota.vcpus
    for quota in catalog.quotas:
        figures[f"quota {quota.family} {quota.market.value} (vCPUs in use)"] = quota.in_use or None
    return figures


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, SpeedupCurve):
        return _in_words(value)
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or None
    return str(value)


def _in_words(curve: SpeedupCurve) -> str:
    speedups = curve.speedup(np.array(_SIZES, dtype=np.float64))
    words = [f"S({n}) {float(s):.4g}" for n, s in zip(_SIZES, speedups, strict=True)]
    words += _parameters(curve)
    if curve.source:
        words.append(f"source {curve.source}")
    return ", ".join(words)


def _parameters(curve: SpeedupCurve) -> Iterator[str]:
    for name in (f.name for f in fields(curve) if f.name not in ("workload", "source")):
        value = getattr(curve, name)
        if isinstance(value, SpeedupCurve):
            yield " ".join([name, value.kind, *_parameters(value)])
        elif isinstance(value, tuple):
            yield " ".join([name, *(f"({n:.10g} {s:.10g})" for n, s in value)])
        elif value is not None:
            yield f"{name} {value:.10g}"
