"""Implausible prices: dropped from the cloud's signals, reported as doubts in users' files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from deepvm.catalog.signals.signal import HISTORY, ON_DEMAND, SPECS, SPOT, Signal, title
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.plausibility import Doubt, Plausibility, PricedType
from deepvm.core.units import counted

IMPLAUSIBLE = "implausible price"
"""Under which such rows are counted, as zero prices are."""

_NAMED = 4

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Sifted:
    """Signals whose prices can be true.

    Attributes:
        signals: as they were, without the other prices, which are counted in ``refused``.
        notes: which prices these were, a sentence for each signal.
        doubts: why a type lost a price, in words, by type.
    """

    signals: Mapping[str, Signal]
    notes: tuple[str, ...]
    doubts: Mapping[str, str]


def sift(signals: Mapping[str, Signal]) -> Sifted:
    """Leave out prices that cannot be true beside those of comparable types; one bad zone costs that zone alone.

    Args:
        signals: of one region, by kind; without specifications nothing can be compared.
    """
    if SPECS not in signals:
        return Sifted(signals, (), {})
    judged = Plausibility(_priced(signals))
    found, notes, doubts = dict(signals), [], dict[str, str]()
    for kind, signal in signals.items():
        sifter = _SIFTERS.get(kind.partition(":")[0])
        if sifter is None:
            continue
        refused: list[tuple[str, str, Doubt]] = []
        data = sifter(signal.data, judged, refused)
        if refused:
            count = signal.refused.get(IMPLAUSIBLE, 0) + len(refused)
            found[kind] = replace(signal, data=data, refused={**signal.refused, IMPLAUSIBLE: count})
            notes.append(_note(signal, refused))
        for name, where, doubt in refused:
            doubts.setdefault(name, f"{where} {doubt}")
    return Sifted(found, tuple(notes), doubts)


def file_doubts(catalog: Catalog) -> Iterator[tuple[Path, Doubt]]:
    """Prices of a user's own file that cannot be AWS's, with their places in its document.

    They stay: reserved VMs and credits have prices of their own.
    """
    judged = Plausibility({i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour, i.spot_usd_per_hour) for i in catalog})
    for number, instance in enumerate(catalog):
        on_demand, spot = instance.on_demand_usd_per_hour, instance.spot_usd_per_hour
        found: list[tuple[Path, Doubt | None]] = []
        if on_demand is not None:
            found.append((("on_demand_usd_per_hour",), judged.on_demand(instance.name, on_demand)))
        if spot is not None:
            found.append((("spot_usd_per_hour",), judged.spot(instance.name, spot)))
        for n, zone in enumerate(instance.spot_zones[1:], 1):  # the first has the type's price
            found.append((("spot_zones", n, "usd_per_hour"), judged.spot(instance.name, zone.usd_per_hour)))
        for place, doubt in found:
            if doubt is not None:
                yield ("instances", number, *place), doubt


def _priced(signals: Mapping[str, Signal]) -> dict[str, PricedType]:
    """What is compared of each type; of several spot prices the one in the middle."""
    on_demand = signals[ON_DEMAND].data if ON_DEMAND in signals else {}
    spot: dict[str, list[Decimal]] = {}
    for kind, signal in signals.items():
        base = kind.partition(":")[0]
        if base in (SPOT, HISTORY):
            for name, zones in signal.data.items():
                rows = zones.values() if base == SPOT else [(c[1],) for z in zones.values() for c in z]
                spot.setdefault(name, []).extend(Decimal(row[0]) for row in rows)
    return {
        name: PricedType(
            spec["vcpus"],
            Decimal(on_demand[name]) if name in on_demand else None,
            sorted(spot[name])[len(spot[name]) // 2] if spot.get(name) else None,
        )
        for name, spec in signals[SPECS].data.items()
    }


_Refused = list[tuple[str, str, Doubt]]


def _on_demand(data: Any, judged: Plausibility, refused: _Refused) -> Any:
    kept = {}
    for name, price in data.items():
        doubt = judged.on_demand(name, Decimal(price)) if name in judged.types else None
        if doubt is None:
            kept[name] = price
        else:
            refused.append((name, f"{name} on demand at", doubt))
    return kept


def _spot(data: Any, judged: Plausibility, refused: _Refused) -> Any:
    kept: dict[str, dict[str, Any]] = {}
    for name, zones in data.items():
        for zone, row in zones.items():
            doubt = judged.spot(name, Decimal(row[0])) if name in judged.types else None
            if doubt is None:
                kept.setdefault(name, {})[zone] = row
            else:
                refused.append((name, _where(name, zone), doubt))
    return kept


def _history(data: Any, judged: Plausibility, refused: _Refused) -> Any:
    """Until the next change, the price before one that is left out goes on."""
    kept: dict[str, dict[str, list[Any]]] = {}
    for name, zones in data.items():
        known: dict[str, Doubt | None] = {}
        for zone, changes in zones.items():
            for change in changes:
                price = change[1]
                if price not in known:
                    known[price] = judged.spot(name, Decimal(price)) if name in judged.types else None
                doubt = known[price]
                if doubt is None:
                    kept.setdefault(name, {}).setdefault(zone, []).append(change)
                else:
                    refused.append((name, _where(name, zone), doubt))
    return kept


_SIFTERS = {ON_DEMAND: _on_demand, SPOT: _spot, HISTORY: _history}


def _where(name: str, zone: str) -> str:
    return f"{name} on the spot market{f' in {zone}' if zone else ''} at"


def _note(signal: Signal, refused: _Refused) -> str:
    named = "; ".join(dict.fromkeys(f"{where} {doubt}" for _, where, doubt in refused[:_NAMED]))
    more = f"; and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    what = f"{title(signal.kind)} of {signal.region}: {counted(len(refused), 'price')} left out that cannot be true"
    return f"{what}: {named}{more}"
