"""Signals of a region joined into a catalog, each figure with its signal's source and age."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.market.eflops_estimates import performance_table
from deepvm.catalog.market.price_filter import (
    drop_implausible_changes,
    drop_implausible_prices,
    refuse,
)
from deepvm.catalog.public.public_market import wanted_source
from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.catalog.serialization import build_quotas
from deepvm.catalog.signals.cloud import Cloud
from deepvm.catalog.signals.signal import (
    ADVISOR,
    HISTORY,
    OFFERINGS,
    ON_DEMAND,
    QUOTAS,
    SPECS,
    SPOT,
    ZONES,
    Signal,
    base,
    title,
)
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, ZonePrice
from deepvm.core.cluster.prices import PriceBasis, PricePoint, price_over_time
from deepvm.core.cluster.provenance import Origin, Provenance
from deepvm.core.spelling import listed, one_of
from deepvm.core.units import counted
from deepvm.errors import MissingDataError, RequestError

MOST_HISTORY_DAYS = 90
"""How long AWS keeps spot prices."""

_NAMED = 4
"""So many prices that cannot be true are named."""

LISTED_ALIKE = "every type in every region, whether or not there are any"

_PRICES = (ON_DEMAND, SPOT)


class SignalMissingError(MissingDataError):
    """A region's catalog lacks something (``what``) that signals of some ``kinds`` would tell."""

    def __init__(self, what: str, kinds: Sequence[str], region: str, cloud: Cloud) -> None:
        """Make the message, which says how to fetch the signals."""
        self.what = what
        self.kinds = tuple(kinds)
        history = kinds[0].partition(":")[2]
        command = f"--cloud {cloud.name}"
        if cloud.has_api:
            command = f"--region {region}"
            if history:
                command += f" --days {history}"
        message = f"{what}: 'deepvm catalog refresh {command}' fetches them"
        if history and not cloud.has_api:
            message = f"{what}, and no public catalog has them"
        super().__init__(message)


@dataclass(frozen=True)
class MarketRequest:
    """How to get prices: the options of :func:`deepvm.catalog.store.load_catalog`.

    ``network`` None means ``peak``.

    ``source``: the public catalog to use, ``auto`` or ``none``.
    ``price_history``: a clone of skypilot-catalog, whose stored versions are the history; empty:
    the cloud's.
    """

    prices: str = "auto"
    offline: bool = False
    profile: str = ""
    zone: str = ""
    price_basis: str = PriceBasis.CURRENT.value
    days: int | str = 30
    network: str | None = None
    source: str = "auto"
    price_history: str = ""

    def __post_init__(self) -> None:
        """Check the values, else raise a RequestError.

        ``days`` becomes a number, ``price_basis`` a plain string.
        """
        for option, value, allowed in (
            ("prices", self.prices, ["auto", "live", "snapshot"]),
            ("price_basis", self.price_basis, [b.value for b in PriceBasis]),
            ("network", "peak" if self.network is None else self.network, ["peak", "baseline"]),
        ):
            if value not in allowed:
                raise RequestError(option, value, " or ".join(allowed))
        if self.offline and self.prices == "live":
            raise RequestError("prices", self.prices, "auto or snapshot together with offline")
        days = str(self.days).strip()
        if not re.fullmatch("[0-9]{1,3}", days) or not 1 <= int(days) <= MOST_HISTORY_DAYS:
            raise RequestError("days", self.days, f"a whole number from 1 to {MOST_HISTORY_DAYS}")
        object.__setattr__(self, "source", wanted_source(self.source))
        object.__setattr__(self, "days", int(days))
        object.__setattr__(self, "price_basis", PriceBasis(self.price_basis).value)

    @property
    def history(self) -> str:
        """The signal that the basis needs, empty when it needs none."""
        if self.price_basis == PriceBasis.CURRENT.value:
            return ""
        return f"{HISTORY}:{self.days}"


def assemble(
    region: str,
    signals: Mapping[str, Signal],
    request: MarketRequest,
    now: datetime,
    notes: Sequence[str] = (),
    cloud: Cloud = DEFAULT_CLOUD,
) -> Catalog:
    """Join a region's signals.

    ``now`` (UTC) ends the window of a history, ``notes`` become part of the provenance.

    Implausible prices are left out, counted and noted; so are types without a price, see
    ``Catalog.absent``.

    Raises:
        SignalMissingError: no specifications, no prices at all, or what ``request`` needs is not
            there.
        RequestError: the region has no such zone.
    """
    if SPECS not in signals:
        raise SignalMissingError(f"no specifications of region {region}", (SPECS,), region, cloud)
    if not any(kind in signals for kind in _PRICES):
        raise SignalMissingError(f"no prices of region {region}", _PRICES, region, cloud)
    signals = dict(signals)
    data: defaultdict[str, Any] = defaultdict(dict, {k: s.data for k, s in signals.items()})
    zone = _zone_id(request.zone, region, data, cloud)
    doubted = []
    if request.history in signals:
        history, count = drop_implausible_changes(
            signals[request.history], data[SPECS], data[ON_DEMAND]
        )
        signals[request.history] = history
        data[request.history] = history.data
        if count:
            doubted.append(_left_out(request.history, region, count))
    spot = _spot_prices(region, signals, data, request, now, cloud)
    offered = data[OFFERINGS]
    table = performance_table()
    absent = dict(table.absent)
    instances: list[InstanceType] = []
    for name, spec in sorted(data[SPECS].items()):
        if zone and offered and zone not in offered.get(name, ()):
            absent[name] = f"{name} is not offered in zone {zone}"
            continue
        zones = tuple(z for z in spot.get(name, ()) if zone in ("", z.zone))
        instance = _instance(name, spec, data, zones, cloud)
        if instance is not None:
            instances.append(instance)
    instances, refused = drop_implausible_prices(instances)
    priced = {i.name for i in instances}
    for name in data[SPECS]:
        if name not in priced:
            absent.setdefault(name, f"{name} has no price in {region}")
    for kind, texts in refused.items():
        if kind == SPOT and request.history:
            kind = request.history
        signals[kind] = refuse(signals[kind], len(texts))
        doubted.append(f"{_left_out(kind, region, len(texts))}: {listed(texts, _NAMED)}")
    if not instances and zone:
        others = sorted({z for zones in offered.values() for z in zones} - {zone})
        sold = one_of(request.zone, others, ", ")
        raise RequestError("zone", request.zone, f"a zone in which something is offered: {sold}")
    if not instances:
        raise _no_price(region, doubted, cloud)
    return Catalog(
        name=f"{cloud.name}-{region}",
        instances=tuple(instances),
        region=region,
        quotas=build_quotas(data[QUOTAS], cloud),
        default_speedup="ring",
        eflops_unit=table.eflops_unit,
        description=f"{cloud.title}'s types and prices in {region}",
        provenance=_provenance(signals, request, (*notes, *doubted)),
        absent=absent,
        rates=rates_of(cloud.name, region),
        grace_s=cloud.rules.grace_s,
        unsure=f"{cloud.title} is listed with {LISTED_ALIKE}" if cloud.rules.regions_alike else "",
    )


def _no_price(region: str, doubted: Sequence[str], cloud: Cloud) -> MissingDataError:
    none = f"no type has a price in region {region}"
    if not doubted:
        return SignalMissingError(none, _PRICES, region, cloud)
    # To fetch the same prices again would not help.
    others_have = "'--prices snapshot' has others, and in a --catalog file any price counts"
    return MissingDataError(f"{none} that can be true; {'; '.join(doubted)}; {others_have}")


def _left_out(kind: str, region: str, count: int) -> str:
    return f"{title(kind)} of {region}: {counted(count, 'price')} left out that cannot be true"


def _instance(
    name: str,
    spec: Mapping[str, Any],
    data: Mapping[str, Any],
    zones: tuple[ZonePrice, ...],
    cloud: Cloud,
) -> InstanceType | None:
    """One type with its spot prices by zone, cheapest first; None when it has no price."""
    on_demand = data[ON_DEMAND].get(name) if spec.get("on_demand", True) else None
    zones = zones if spec.get("spot", True) else ()
    if on_demand is None and not zones:
        return None
    gpu = Gpu(**spec["gpu"]) if "gpu" in spec else None
    unusable = spec.get("unusable", "")
    if not unusable and gpu is None and not cloud.rules.has_cpu_vms:
        unusable = f"{cloud.title} has no VMs without GPUs that could hold checkpoints"
    baseline = spec.get("baseline_gbps")
    return InstanceType(
        name=name,
        vcpus=spec["vcpus"],
        memory_gib=spec.get("memory_gib"),
        network_gbps=spec.get("peak_gbps", baseline),
        on_demand_usd_per_hour=on_demand,
        spot_usd_per_hour=zones[0].usd_per_hour if zones else None,
        gpu=gpu,
        **performance_table().of(name, gpu, baseline)._asdict(),
        quota_family=cloud.quota_family(name),
        network_baseline_gbps=baseline,
        cpu_architecture=spec.get("arch", ""),
        burstable=spec.get("burstable", False),
        current_generation=spec.get("current", True),
        interruption_band=data[ADVISOR].get(name),
        spot_zones=zones if zones and zones[0].zone else (),
        zones=tuple(data[OFFERINGS].get(name, ())),
        unusable=unusable,
    )


def _zone_id(wanted: str, region: str, data: Mapping[str, Any], cloud: Cloud) -> str:
    """The id of a zone, which may be given by name."""
    if not wanted:
        return ""
    names: Mapping[str, str] = data[ZONES]
    priced = [types for kind, types in data.items() if base(kind) in (SPOT, HISTORY)]
    ids = {*names, *(z for types in priced for zones in types.values() for z in zones if z)}
    if not ids and not {ZONES, OFFERINGS} & {*cloud.kinds}:
        raise RequestError("zone", wanted, f"none: no catalog tells zones of {cloud.title} apart")
    if not ids:
        what = f"--zone {wanted}: the prices of {region} at hand are not told apart by zone"
        raise SignalMissingError(what, (ZONES, SPOT), region, cloud)
    if wanted in ids:
        return wanted
    for zone, name in names.items():
        if name == wanted:
            return zone
    known = ", ".join(f"{i} ({names[i]})" if i in names else i for i in sorted(ids))
    raise RequestError("zone", wanted, f"a zone of {region}: {known}")


def _spot_prices(
    region: str,
    signals: Mapping[str, Signal],
    data: Mapping[str, Any],
    request: MarketRequest,
    now: datetime,
    cloud: Cloud,
) -> dict[str, list[ZonePrice]]:
    """Each type's spot price by zone, cheapest first."""
    names: Mapping[str, str] = data[ZONES]
    shuffled = ZONES in cloud.kinds  # else a zone's id is its name for everybody
    prices: dict[str, list[ZonePrice]] = defaultdict(list)

    def add(name: str, zone: str, price: Decimal, since: str = "") -> None:
        own_name = names.get(zone, "" if shuffled else zone)
        prices[name].append(ZonePrice(zone, price, own_name, since))

    if not request.history:
        for name, zones in data[SPOT].items():
            for zone, (price, since) in zones.items():
                add(name, zone, Decimal(price), since)
    elif request.history not in signals:
        needs = f"the spot prices of the last {_days(request)} in {region}"
        what = f"--price-basis {request.price_basis} needs {needs}, which are not known"
        raise SignalMissingError(what, (request.history,), region, cloud)
    else:
        end = int(now.timestamp())
        start = int((now - timedelta(days=int(request.days))).timestamp())
        # A zone without a price today sells none, whatever it cost before.
        spot = signals.get(SPOT)
        today = spot.data if spot and spot.origin in ("live", "cache") else None
        for name, zones in data[request.history].items():
            for zone, changes in zones.items():
                if today is not None and zone not in today.get(name, ()):
                    continue
                points = [PricePoint(int(t), Decimal(p)) for t, p in changes]
                over_time = price_over_time(points, start, end, PriceBasis(request.price_basis))
                if over_time is not None:
                    add(name, zone, over_time)
    for sold in prices.values():
        sold.sort(key=lambda z: (z.usd_per_hour, z.zone))
    return prices


def _provenance(
    signals: Mapping[str, Signal], request: MarketRequest, notes: Sequence[str]
) -> Provenance:
    origins = []
    for kind, s in signals.items():
        if kind != SPOT or not request.history:
            origin = "embedded" if s.origin == "snapshot" else s.origin
            refused = tuple(sorted(s.refused.items()))
            origins.append(Origin(s.kind, origin, s.observed_at, s.source, refused, s.dated))
    prices = [o for o in origins if o.signal in (*_PRICES, request.history)]
    kinds = {o.kind for o in prices}
    return Provenance(
        kind=kinds.pop() if len(kinds) == 1 else "mixed",
        prices_as_of=min(o.observed_at for o in prices).date(),
        source="; ".join(dict.fromkeys(f"{o.signal}: {o.source}" for o in prices)),
        origins=tuple(origins),
        basis=f"{request.price_basis} of {_days(request)}" if request.history else "",
        notes=tuple(notes),
    )


def _days(request: MarketRequest) -> str:
    return "day" if request.days == 1 else f"{request.days} days"
