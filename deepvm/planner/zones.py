"""Where a cluster may stand: each type in each zone, with the memory nodes that are cheapest to serve from there.

A cluster stands in one zone, so its spot VMs and its memory nodes must be sold in the same one. With the types and the
number of VMs given, the cheapest zone that has both is best by every objective: so each memory node belongs to one
zone of a training type, and a zone to which none belongs is left out, except for the cheapest one, where clusters
without memory nodes stand. That keeps the search exact and as small as without zones wherever all zones offer the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from deepvm.core.instances import InstanceType

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Place:
    """A training type in one zone.

    Attributes:
        instance: the type at the spot price of the zone.
        offered: which memory nodes belong to this zone of the type, shape (memory nodes,).
        cheapest: whether no zone has a lower spot price.
    """

    instance: InstanceType
    offered: BoolArray
    cheapest: bool


def places_of(instance: InstanceType, memory: Sequence[InstanceType]) -> Iterator[Place]:
    """The zones of a training type that can be in a best cluster, cheapest first; at least one.

    Where spot prices are not told by zone, the type has one price in all zones that offer it, and every memory node
    that is offered in one of them belongs there. A type or memory node whose zones are unknown may be anywhere.
    """
    if not instance.spot_zones:
        yield Place(instance, _sold_in(frozenset(instance.zones), memory), cheapest=True)
        return
    left = np.ones(len(memory), dtype=np.bool_)
    for i, zone in enumerate(sorted(instance.spot_zones, key=lambda z: (z.usd_per_hour, z.zone))):
        offered = left & _sold_in(frozenset({zone.zone}), memory)
        if i == 0 or offered.any():
            yield Place(instance.in_zone(zone), offered, cheapest=i == 0)
        left &= ~offered


def zone_ids(instance: InstanceType) -> tuple[str, ...]:
    """Ids of the zones in which a type may train; empty when unknown."""
    return tuple(z.zone for z in instance.spot_zones) or instance.zones


def _sold_in(zones: frozenset[str], memory: Sequence[InstanceType]) -> BoolArray:
    return np.array([not zones or not m.zones or not zones.isdisjoint(m.zones) for m in memory], dtype=np.bool_)
