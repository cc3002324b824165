"""What changed between two catalogs: types, prices and figures.

Types are matched by exact name, prices compared as exact decimals. All fields of a type are compared, future ones
included, except what says nothing about the machines: the catalog's name and origin, since when a zone has its price,
and what an account calls the zone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal

import numpy as np

from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market
from deepvm.core.cluster.speedup import SpeedupCurve

Plain = str | int | float | bool | None
"""A printable figure; complex ones in words."""

_NOT_FIGURES = frozenset({"name", "on_demand_usd_per_hour", "spot_usd_per_hour", "spot_zones", "gpu", "speedups"})


@dataclass(frozen=True)
class PriceChange:
    """One changed price.

    Attributes:
        instance_type: the type. market: where. zone: id of the zone, empty for the price of the region.
        old: $/h before, None where it was not sold. new: $/h now, None where it is not sold any more.
    """

    instance_type: str
    market: Market
    old: Decimal | None
    new: Decimal | None
    zone: str = ""

    @property
    def difference(self) -> Decimal | None:
        """Increase in $/h, exact; None where there was or is no price."""
        return None if self.old is None or self.new is None else self.new - self.old

    @property
    def percent(self) -> Decimal | None:
        """The same in % of the old price."""
        if self.old is None or self.difference is None:
            return None
        return self.difference / self.old * 100


@dataclass(frozen=True)
class FigureChange:
    """One changed figure.

    Attributes:
        instance_type: the type, empty for a figure of the catalog itself. figure: its name.
        old: before, None when unknown or absent. new: now.
    """

    instance_type: str
    figure: str
    old: Plain
    new: Plain


@dataclass(frozen=True)
class CatalogDiff:
    """What changed from one catalog to another.

    Attributes:
        old: the first catalog. new: the second.
        added: types that only the new one has. removed: types that only the old one has.
        prices: prices of common types, the largest change first: those that came or went, then by the size in %, then
            in $/h, then by name.
        figures: other figures, the catalog's own first, then in the order of the old catalog.
    """

    old: Catalog
    new: Catalog
    added: tuple[InstanceType, ...]
    removed: tuple[InstanceType, ...]
    prices: tuple[PriceChange, ...]
    figures: tuple[FigureChange, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing changed."""
        return not (self.added or self.removed or self.prices or self.figures)


def diff_catalogs(old: Catalog, new: Catalog) -> CatalogDiff:
    """Compare two catalogs."""
    common = [(i, new.by_name[i.name]) for i in old if i.name in new.by_name]
    prices = [change for before, after in common for change in _price_changes(before, after)]
    figures = [*_catalog_changes(old, new), *(c for before, after in common for c in _figure_changes(before, after))]
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
        before, after = old.usd_per_hour(market), new.usd_per_hour(market)
        if before != after:
            yield PriceChange(old.name, market, before, after)
    zones_before = {z.zone: z.usd_per_hour for z in old.spot_zones}
    zones_after = {z.zone: z.usd_per_hour for z in new.spot_zones}
    for zone in sorted({*zones_before, *zones_after}):
        if zones_before.get(zone) != zones_after.get(zone):
            yield PriceChange(old.name, Market.SPOT, zones_before.get(zone), zones_after.get(zone), zone)


def _figure_changes(old: InstanceType, new: InstanceType) -> Iterator[FigureChange]:
    for field in fields(InstanceType):
        if field.name not in _NOT_FIGURES:
            yield from _changed(old.name, field.name, getattr(old, field.name), getattr(new, field.name))
    yield from _gpu_changes(old.name, old.gpu, new.gpu)
    before, after = _curves(old.speedups), _curves(new.speedups)
    for key in dict.fromkeys([*before, *after]):
        one, other = before.get(key), after.get(key)
        if one != other:
            yield from _changed(old.name, f"speedup {key}", one and _in_words(one), other and _in_words(other))


def _gpu_changes(name: str, old: Gpu | None, new: Gpu | None) -> Iterator[FigureChange]:
    if old is None or new is None:
        yield from _changed(name, "gpu", old and f"{old.count} x {old.name}", new and f"{new.count} x {new.name}")
        return
    for field in fields(Gpu):
        yield from _changed(name, f"gpu.{field.name}", getattr(old, field.name), getattr(new, field.name))


_SIZES = (2, 4, 8, 16, 32)
"""VMs for which a curve that changed shows S(n): its parameters and its source say little to a person."""


def _curves(curves: Sequence[SpeedupCurve]) -> dict[str, SpeedupCurve]:
    """Each curve by its kind and workload."""
    return {f"{c.kind} of {c.workload}" if c.workload is not None else c.kind: c for c in curves}


def _in_words(curve: SpeedupCurve) -> str:
    """S(n) at some sizes, then the parameters, then the source."""
    speedups = curve.speedup(np.array(_SIZES, dtype=np.float64))
    said = [f"S({n}) {float(s):.4g}" for n, s in zip(_SIZES, speedups, strict=True)]
    said += [f"{name} {value}" for name, value in _parameters(curve)]
    return ", ".join([*said, f"source {curve.source}"] if curve.source else said)


def _parameters(curve: SpeedupCurve) -> Iterator[tuple[str, str]]:
    for name in (f.name for f in fields(curve) if f.name not in ("workload", "source")):
        value = getattr(curve, name)
        if isinstance(value, SpeedupCurve):
            yield name, " ".join([value.kind, *(f"{n} {v}" for n, v in _parameters(value))])
        elif isinstance(value, tuple):
            yield name, " ".join(f"({n:.10g} {s:.10g})" for n, s in value)
        elif value is not None:
            yield name, f"{value:.10g}"


def _catalog_changes(old: Catalog, new: Catalog) -> Iterator[FigureChange]:
    for name in ("region", "description", "default_speedup", "eflops_unit"):
        yield from _changed("", name, getattr(old, name), getattr(new, name))
    yield from _changed("", "memory_nodes", old.memory_nodes.name, new.memory_nodes.name)
    for name in ("prices_as_of", "source", "basis"):
        yield from _changed("", name, getattr(old.provenance, name), getattr(new.provenance, name))
    yield from _rows(
        "n_sat at {} Gbit/s",
        {f"{g:g}": int(n) for g, n in zip(old.n_sat.network_gbps, old.n_sat.n_sat, strict=True)},
        {f"{g:g}": int(n) for g, n in zip(new.n_sat.network_gbps, new.n_sat.n_sat, strict=True)},
    )
    for what, unit in (("vcpus", "quota {} (vCPUs)"), ("in_use", "quota {} (vCPUs in use)")):
        yield from _rows(
            unit,
            _quotas(old, what),
            _quotas(new, what),
        )


def _quotas(catalog: Catalog, what: str) -> dict[str, int]:
    """A figure of each quota; a quota of which nothing is in use has none in use, and a limit of 0 is a limit."""
    rows = {f"{q.family} {q.market.value}": int(getattr(q, what)) for q in catalog.quotas}
    return {key: value for key, value in rows.items() if value or what != "in_use"}


def _rows(name: str, old: dict[str, int], new: dict[str, int]) -> Iterator[FigureChange]:
    for key in dict.fromkeys([*old, *new]):
        yield from _changed("", name.format(key), old.get(key), new.get(key))


def _changed(instance_type: str, figure: str, old: object, new: object) -> Iterator[FigureChange]:
    if old != new:
        yield FigureChange(instance_type, figure, _plain(old), _plain(new))


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (tuple, list)):
        return " ".join(f"({_plain(v)})" if isinstance(v, (tuple, list)) else str(_plain(v)) for v in value) or None
    return str(value)
