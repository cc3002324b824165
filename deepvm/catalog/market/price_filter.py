"""Implausible prices: dropped from a market's lists and histories, doubts in users' files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

from deepvm.catalog.signals.signal import ON_DEMAND, SPOT, Signal
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.cluster.prices import IMPLAUSIBLE, PricedType, PriceSanityCheck, PriceWarning

_ON_DEMAND = -1
"""In place of the number of a zone."""


def drop_implausible_prices(
    instances: Sequence[InstanceType],
) -> tuple[list[InstanceType], dict[str, list[str]]]:
    """Leave out prices that cannot be true next to those of comparable types, zone by zone.

    Returns:
        The types that still have a price; and what was left out, by kind of signal.
    """
    refused: dict[str, list[str]] = defaultdict(list)
    bad: dict[str, set[int]] = defaultdict(set)
    for instance, zone, doubt in _doubts(instances):
        bad[instance.name].add(zone)
        kind = SPOT
        where = "on the spot market"
        if zone == _ON_DEMAND:
            kind = ON_DEMAND
            where = "on demand"
        elif instance.spot_zones:
            where += f" in {instance.spot_zones[zone].zone}"
        refused[kind].append(f"{instance.name} {where} at {doubt}")
    cleaned = [_without(i, bad[i.name]) if i.name in bad else i for i in instances]
    return [i for i in cleaned if i is not None], refused


def drop_implausible_changes(
    history: Signal, specs: Mapping[str, Any], on_demand: Mapping[str, str]
) -> tuple[Signal, int]:
    """Leave out the prices of a history that cannot be true; the one before each holds on.

    Also says how many these are.
    """
    priced = {}
    for name, spec in specs.items():
        zones = history.data.get(name, {})
        prices = [Decimal(price) for changes in zones.values() for _, price in changes]
        own = Decimal(on_demand[name]) if name in on_demand else None
        priced[name] = PricedType(spec["vcpus"], own, _median(prices))
    check = PriceSanityCheck(priced)
    data: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    count = 0
    for name, zones in history.data.items():
        for zone, changes in zones.items():
            # Types without specifications are in no catalog.
            kept = [c for c in changes if name not in priced or not check.spot(name, Decimal(c[1]))]
            count += len(changes) - len(kept)
            if kept:
                data[name][zone] = kept
    return replace(refuse(history, count), data=data), count


def refuse(signal: Signal, count: int) -> Signal:
    """The signal, of which so many prices more are refused as implausible."""
    if not count:
        return signal
    refused = {**signal.refused, IMPLAUSIBLE: signal.refused.get(IMPLAUSIBLE, 0) + count}
    return replace(signal, refused=refused)


def _median(prices: Sequence[Decimal]) -> Decimal | None:
    """The higher median: statistics.median_high takes 10 ms to import."""
    if not prices:
        return None
    return sorted(prices)[len(prices) // 2]


def _without(instance: InstanceType, bad: set[int]) -> InstanceType | None:
    """The type without some prices; None if it has no others."""
    zones = tuple(z for number, z in enumerate(instance.spot_zones) if number not in bad)
    if _ON_DEMAND in bad:
        on_demand = None
    else:
        on_demand = instance.on_demand_usd_per_hour
    spot = None if 0 in bad else instance.spot_usd_per_hour
    if zones:
        spot = zones[0].usd_per_hour
    if on_demand is None and spot is None:
        return None
    return replace(
        instance, on_demand_usd_per_hour=on_demand, spot_usd_per_hour=spot, spot_zones=zones
    )


def file_doubts(catalog: Catalog) -> Iterator[tuple[tuple[str | int, ...], PriceWarning]]:
    """Prices of a user's own file that cannot be AWS's, with their places in its document.

    They stay: reserved VMs and credits have prices of their own.
    """
    numbers = {instance.name: number for number, instance in enumerate(catalog)}
    for instance, zone, doubt in _doubts(catalog):
        path: tuple[str | int, ...] = ("spot_zones", zone, "usd_per_hour")
        if zone == 0:  # the first zone has the type's price
            path = ("spot_usd_per_hour",)
        elif zone == _ON_DEMAND:
            path = ("on_demand_usd_per_hour",)
        yield ("instances", numbers[instance.name], *path), doubt


def _doubts(instances: Iterable[InstanceType]) -> Iterator[tuple[InstanceType, int, PriceWarning]]:
    """Prices that cannot be true: of which type, and in which of its zones."""
    spot_prices: dict[str, list[Decimal]] = {}
    priced = {}
    for i in instances:
        prices = [z.usd_per_hour for z in i.spot_zones]
        if i.spot_usd_per_hour is not None:
            prices[:1] = [i.spot_usd_per_hour]
        spot_prices[i.name] = prices
        priced[i.name] = PricedType(i.vcpus, i.on_demand_usd_per_hour, _median(prices))
    judged = PriceSanityCheck(priced)
    for instance in instances:
        name = instance.name
        on_demand = instance.on_demand_usd_per_hour
        if on_demand is None:
            doubt = None
        else:
            doubt = judged.on_demand(name, on_demand)
        if doubt is not None:
            yield instance, _ON_DEMAND, doubt
        for zone, price in enumerate(spot_prices[name]):
            doubt = judged.spot(name, price)
            if doubt is not None:
                yield instance, zone, doubt
