"""Where a cluster may stand: each type in each zone, with the memory nodes that are cheapest to serve from there.

A cluster stands in one zone, so its spot VMs and its memory nodes must be sold in the same one. With the types and the
number of VMs given, the cheapest zone that has both is best by every objective: so each memory node belongs to one
zone of a training type, and a zone to which none belongs is left out, except for the cheapest one, where clusters
without memory nodes stand. That keeps the search exact, each cluster in it once, and no larger than without zones
wherever all zones offer the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from deepvm.core.cluster.cluster import Cluster, NodeGroup
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.planner.columns import BoolArray, MemoryNodeTable


def zone_ids(instance: InstanceType) -> tuple[str, ...]:
    """Ids of the zones in which a type may train; empty when unknown."""
    return tuple(z.zone for z in instance.spot_zones) or instance.zones


def sold_in(zones: Sequence[str], memory: Sequence[InstanceType]) -> BoolArray:
    """Shape (memory nodes, zones): which are sold where; one whose zones are unknown may be anywhere."""
    rows = [[not m.zones or zone in m.zones for zone in zones] for m in memory]
    return np.array(rows, dtype=np.bool_).reshape(len(memory), len(zones))


def places(instance: InstanceType, zones: Sequence[str], sold: BoolArray) -> Iterator[tuple[InstanceType, BoolArray]]:
    """A training type in each zone that can be in a best cluster, cheapest first, and the memory nodes of that zone.

    Where spot prices are not told by zone, the type has one price in all zones that offer it, and every memory node
    that is offered in one of them belongs there. ``zones``: the columns of ``sold``, see :func:`sold_in`.
    """
    left = np.ones(len(sold), dtype=np.bool_)
    if not instance.spot_zones:
        columns = [zones.index(zone) for zone in instance.zones]
        yield instance, np.asarray(sold[:, columns].any(axis=1)) if columns else left
        return
    for i, zone in enumerate(sorted(instance.spot_zones, key=lambda z: (z.usd_per_hour, z.zone))):
        here = sold[:, zones.index(zone.zone)]
        if i == 0 or (left & here).any():
            yield instance.in_zone(zone), left & here
        left = left & ~here


def next_zone(cluster: Cluster, tier: MemoryNodeTable, sender_n_sat: int) -> Cluster | None:
    """The cheapest cluster of as many of the same VMs in another zone, with whatever memory nodes are best there."""
    if cluster.zone is None:
        return None
    zones = cluster.gpu.spot_zones[1:]
    nodes: list[NodeGroup | None] = [None]
    if cluster.memory is not None:
        counts = tier.needed(np.array([cluster.gpu_count]), np.array([sender_n_sat]))[0]
        enough = zip(tier.types, counts.tolist(), (counts <= tier.max_count).tolist(), strict=True)
        nodes = [NodeGroup(t, Market.ON_DEMAND, m) for t, m, allowed in enough if allowed]
    moved = [
        replace(cluster, gpu=gpu, memory=group)
        for zone, gpu in [(z.zone, cluster.gpu.in_zone(z)) for z in zones]  # once a zone: making a type checks it all
        for group in nodes
        if group is None or not group.instance.zones or zone in group.instance.zones
    ]
    return min(moved, key=_by_price, default=None)


def _by_price(cluster: Cluster) -> tuple[int, int, str, str]:
    memory = cluster.memory
    nodes = (memory.count, memory.instance.name) if memory else (0, "")
    return (cluster.micro_usd_per_hour, *nodes, cluster.zone.zone if cluster.zone else "")
