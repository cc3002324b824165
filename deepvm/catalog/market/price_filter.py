"""Implausible prices: dropped from the cloud's signals, reported as doubts in users' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, SPECS, SPOT, Signal, base, title
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.prices import IMPLAUSIBLE, PricedType, PriceSanityCheck, PriceWarning
from deepvm.core.units import counted

_NAMED = 4


def drop_implausible_prices(
    signals: Mapping[str, Signal],
) -> tuple[dict[str, Signal], list[str], dict[str, str]]:
    """Leave out prices of a region that cannot be true beside those of comparable types, zone by zone.

    Returns:
        The signals, with such prices counted in ``refused``; a note for each signal that lost some;
        and why, by type.
    """
    judged = PriceSanityCheck(_priced(signals))
    found = dict(signals)
    notes = list[str]()
    doubts = dict[str, str]()
    for kind, signal in signals.items():
        if base(kind) not in (ON_DEMAND, SPOT, HISTORY):
            continue
        data, refused = _split(signal, judged)
        if refused:
            count = signal.refused.get(IMPLAUSIBLE, 0) + len(refused)
            found[kind] = replace(signal, data=data, refused={**signal.refused, IMPLAUSIBLE: count})
            named = "; ".join(dict.fromkeys(text for _, text in refused[:_NAMED]))
            more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
            what = (
                f"{title(kind)} of {signal.region}: {counted(len(refused), 'price')} left out that"
                " cannot be true"
            )
            notes.append(f"{what}: {named}{more}")
        for name, text in refused:
            doubts.setdefault(name, text)
    return found, notes, doubts


def file_doubts(catalog: Catalog) -> Iterator[tuple[tuple[str | int, ...], PriceWarning]]:
    """Prices of a user's own file that cannot be AWS's, with their places in its document.

    They stay: reserved VMs and credits have prices of their own.
    """
    judged = PriceSanityCheck(
        {
            i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour, i.spot_usd_per_hour)
            for i in catalog
        }
    )
    for number, instance in enumerate(catalog):
        prices: list[tuple[tuple[str | int, ...], Decimal | None]] = [
            (("on_demand_usd_per_hour",), instance.on_demand_usd_per_hour),
            (("spot_usd_per_hour",), instance.spot_usd_per_hour),
            # The first zone has the type's price.
            *(
                (("spot_zones", n, "usd_per_hour"), z.usd_per_hour)
                for n, z in enumerate(instance.spot_zones)
                if n
            ),
        ]
        for place, price in prices:
            judge = judged.on_demand if place[0] == "on_demand_usd_per_hour" else judged.spot
            doubt = None if price is None else judge(instance.name, price)
            if doubt is not None:
                yield ("instances", number, *place), doubt


def _prices(signal: Signal) -> Iterator[tuple[str, str, Any, str]]:
    """Type, zone (empty on demand), row and price of every price of a signal."""
    for name, sold in signal.data.items():
        if signal.kind == ON_DEMAND:
            yield name, "", sold, sold
        elif signal.kind == SPOT:
            yield from ((name, zone, row, row[0]) for zone, row in sold.items())
        else:
            yield from (
                (name, zone, change, change[1])
                for zone, changes in sold.items()
                for change in changes
            )


def _priced(signals: Mapping[str, Signal]) -> dict[str, PricedType]:
    """What is compared of each type; of several spot prices the median."""
    on_demand = signals[ON_DEMAND].data if ON_DEMAND in signals else {}
    spot: dict[str, list[Decimal]] = {}
    for kind, signal in signals.items():
        if base(kind) in (SPOT, HISTORY):
            for name, _, _, price in _prices(signal):
                spot.setdefault(name, []).append(Decimal(price))
    return {
        name: PricedType(
            spec["vcpus"],
            Decimal(on_demand[name]) if name in on_demand else None,
            sorted(spot[name])[len(spot[name]) // 2] if name in spot else None,
        )
        for name, spec in signals[SPECS].data.items()
    }


def _split(
    signal: Signal, judged: PriceSanityCheck
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A price signal's data without prices that cannot be true, and the type and doubt of each of these.

    In a history, the price before one that is left out holds until the next change.
    """
    judge = judged.on_demand if signal.kind == ON_DEMAND else judged.spot
    known: dict[tuple[str, str], PriceWarning | None] = {}
    kept: dict[str, Any] = {}
    refused = []
    for name, zone, row, price in _prices(signal):
        if (name, price) not in known:
            known[name, price] = judge(name, Decimal(price)) if name in judged.types else None
        doubt = known[name, price]
        if doubt is not None:
            market = f"on the spot market{f' in {zone}' if zone else ''}"
            refused.append(
                (name, f"{name} {'on demand' if signal.kind == ON_DEMAND else market} at {doubt}")
            )
        elif signal.kind == ON_DEMAND:
            kept[name] = row
        elif signal.kind == SPOT:
            kept.setdefault(name, {})[zone] = row
        else:
            kept.setdefault(name, {}).setdefault(zone, []).append(row)
    return kept, refused
