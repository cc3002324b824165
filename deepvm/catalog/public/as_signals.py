"""The offers of a public catalog as signals: one of each kind for every region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from deepvm.catalog.public.offer import Offer, Rows
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, Signal


def signals_of(table: Rows, **about: Any) -> list[Signal]:
    """What a source says of each region, by kind; a kind of which it says nothing is absent.

    Refused rows are counted with the specifications of their region. ``about``: what all signals
    have in common.
    """
    by_region: dict[str, list[Offer]] = defaultdict(list)
    for offer in table.offers:
        by_region[offer.region].append(offer)
    signals = []
    for region, offers in sorted(by_region.items()):
        counts = {reason: n for (where, reason), n in table.refused.items() if where == region}
        refused = {SPECS: counts}
        for kind, data in _of_region(offers).items():
            if data:
                here = Signal(kind, region, data=data, refused=refused.get(kind, {}), **about)
                signals.append(here)
    return signals


def _of_region(offers: Sequence[Offer]) -> dict[str, Any]:
    specs: dict[str, Any] = {}
    zones: dict[str, list[str]] = defaultdict(list)
    on_demand: dict[str, str] = {}
    spot: dict[str, dict[str, list[str]]] = defaultdict(dict)
    for o in sorted(offers, key=lambda o: (o.instance_type, o.zone)):
        specs.setdefault(o.instance_type, _spec(o))
        if o.zone:
            zones[o.instance_type].append(o.zone)
        if o.on_demand is not None:
            # Zones of a region have one price; where a source says otherwise, the higher one
            # promises too little.
            held = on_demand.get(o.instance_type, "0")
            on_demand[o.instance_type] = max(held, o.on_demand, key=Decimal)
        if o.spot is not None:
            spot[o.instance_type][o.zone] = [o.spot, ""]
    return {SPECS: specs, OFFERINGS: zones, ON_DEMAND: on_demand, SPOT: spot}


def _spec(offer: Offer) -> dict[str, Any]:
    spec: dict[str, Any] = {"vcpus": offer.vcpus, "memory_gib": offer.memory_gib}
    spec["arch"] = offer.arch
    if offer.gpu:
        gpu = {"name": offer.gpu, "manufacturer": "NVIDIA", "count": offer.gpu_count}
        if offer.gpu_memory_gib is not None:
            gpu["memory_gib"] = offer.gpu_memory_gib
        spec["gpu"] = gpu
    return {name: value for name, value in spec.items() if value not in (None, "")}
