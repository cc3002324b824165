"""Implausible prices: dropped from a market's lists and histories, warnings in users' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from deepvm.catalog.signals.signal import ON_DEMAND, SPOT
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.prices import PricedType, PricePoint, PriceSanityCheck, PriceWarning

SpotPrices = Mapping[str, Mapping[Any, list[PricePoint]]]
"""By type and zone, or the path of a zone's price in a file."""


def drop_implausible_prices(
    vcpus: Mapping[str, int], on_demand: dict[str, Decimal], spot: SpotPrices
) -> dict[str, list[str]]:
    """Remove prices that are implausible given those of comparable types.

    In a history the previous price then holds longer.

    Returns:
        The dropped prices in words, by kind of signal.
    """
    refused: dict[str, list[str]] = {ON_DEMAND: [], SPOT: []}
    for name, zone, point, doubt in [*_doubts(vcpus, on_demand, spot)]:
        if point is None:
            del on_demand[name]
            refused[ON_DEMAND].append(f"{name} on demand at {doubt}")
        else:
            spot[name][zone].remove(point)
            where = f" in {zone}" if zone else ""
            refused[SPOT].append(f"{name} on the spot market{where} at {doubt}")
    return refused


def file_doubts(catalog: Catalog) -> Iterator[tuple[tuple[str | int, ...], PriceWarning]]:
    """Prices of a user's own file that cannot be AWS's, with their places in its document.

    They stay: reserved VMs and credits have prices of their own.
    """
    numbers = {instance.name: number for number, instance in enumerate(catalog)}
    on_demand = {}
    spot: dict[str, dict[Any, list[PricePoint]]] = {}
    for i in catalog:
        prices = [z.usd_per_hour for z in i.spot_zones]
        if i.spot_usd_per_hour is not None:
            prices[:1] = [i.spot_usd_per_hour]  # that of the first zone
        spot[i.name] = {}
        for zone, price in enumerate(prices):
            path = ("spot_zones", zone, "usd_per_hour") if zone else ("spot_usd_per_hour",)
            spot[i.name][path] = [PricePoint(0, price)]
        if i.on_demand_usd_per_hour is not None:
            on_demand[i.name] = i.on_demand_usd_per_hour
    for name, path, _, doubt in _doubts({i.name: i.vcpus for i in catalog}, on_demand, spot):
        yield ("instances", numbers[name], *(path or ("on_demand_usd_per_hour",))), doubt


def _doubts(
    vcpus: Mapping[str, int], on_demand: Mapping[str, Decimal], spot: SpotPrices
) -> Iterator[tuple[str, Any, PricePoint | None, PriceWarning]]:
    """Implausible prices with their type and zone; the point is None for on-demand prices."""
    priced = {}
    for name, size in vcpus.items():
        prices = sorted(p.usd_per_hour for points in spot.get(name, {}).values() for p in points)
        # The higher median: statistics.median_high takes 10 ms to import.
        median = prices[len(prices) // 2] if prices else None
        priced[name] = PricedType(size, on_demand.get(name), median)
    check = PriceSanityCheck(priced)
    for name, price in on_demand.items():
        doubt = check.on_demand(name, price)
        if doubt is not None:
            yield name, None, None, doubt
    for name, zones in spot.items():
        for zone, points in zones.items():
            for point in points:
                doubt = check.spot(name, point.usd_per_hour)
                if doubt is not None:
                    yield name, zone, point, doubt
