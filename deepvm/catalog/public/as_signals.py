"""The offers of a public catalog as signals: one of each kind for every region."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from deepvm.catalog.public.integrity import Checked, Place
from deepvm.catalog.public.offer import Offer
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT, FetchResult


def readings(checked: Checked) -> dict[str, dict[str, FetchResult]]:
    """What a source says of each region, by kind; a kind of which it says nothing is absent."""
    by_region: dict[str, list[Offer]] = defaultdict(list)
    for offer in checked.offers:
        by_region[offer.region].append(offer)
    return {
        region: _of_region(offers, region, checked.refused)
        for region, offers in sorted(by_region.items())
    }


def _of_region(
    offers: Sequence[Offer], region: str, refused: Mapping[Place, Mapping[str, int]]
) -> dict[str, FetchResult]:
    specs: dict[str, Any] = {}
    zones: dict[str, list[str]] = {}
    on_demand: dict[str, str] = {}
    spot: dict[str, dict[str, list[str]]] = {}
    for o in sorted(offers, key=lambda o: (o.instance_type, o.zone)):
        specs.setdefault(o.instance_type, _spec(o))
        if o.zone:
            zones.setdefault(o.instance_type, []).append(o.zone)
        if o.on_demand is not None:
            # Zones of a region have one price; where a source says otherwise, the higher one
            # promises too little.
            held = on_demand.get(o.instance_type, "0")
            on_demand[o.instance_type] = max(held, o.on_demand, key=Decimal)
        if o.spot is not None:
            spot.setdefault(o.instance_type, {})[o.zone] = [o.spot, ""]
    data = {SPECS: specs, OFFERINGS: zones, ON_DEMAND: on_demand, SPOT: spot}
    return {
        kind: FetchResult(found, refused.get(Place(region, kind), {}))
        for kind, found in data.items()
        if found
    }


def _spec(offer: Offer) -> dict[str, Any]:
    spec: dict[str, Any] = {"vcpus": offer.vcpus}
    if offer.memory_gib is not None:
        spec["memory_gib"] = offer.memory_gib
    if offer.arch:
        spec["arch"] = offer.arch
    if offer.gpu:
        gpu: dict[str, Any] = {
            "name": offer.gpu,
            "manufacturer": "NVIDIA",
            "count": offer.gpu_count,
        }
        spec["gpu"] = gpu | (
            {} if offer.gpu_memory_gib is None else {"memory_gib": offer.gpu_memory_gib}
        )
    return spec
