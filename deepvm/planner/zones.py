"""Where a cluster may stand: each type in each zone, with the memory nodes that are cheapest to serve from there.

A cluster stands in one zone, so its spot VMs and its memory nodes must be sold in the same one. With the types and the
number of VMs given, the cheapest zone that has both is best by every objective: so each memory node belongs to one
zone of a training type, and a zone to which none belongs is left out, except for the cheapest one, where clusters
without memory nodes stand. That keeps the search exact, each cluster in it once, and no larger than without zones
wherever all zones offer the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from deepvm.core.cluster.cluster import Cluster, NodeGroup
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.planner.columns import BoolArray, MemoryTier


@dataclass(frozen=True)
class Offers:
    """Which memory nodes are sold in which zones.

    Attributes:
        ids: the zones in which something may train.
        sold: shape (memory nodes, zones); true as well where the zones of a memory node are unknown.
    """

    ids: tuple[str, ...]
    sold: BoolArray

    @classmethod
    def of(cls, training: Iterable[InstanceType], memory: Sequence[InstanceType]) -> Offers:
        """The offers of memory nodes in the zones of the types that may train."""
        ids = tuple(sorted({zone for i in training for zone in zone_ids(i)}))
        rows = [[not m.zones or zone in m.zones for zone in ids] for m in memory]
        return cls(ids, np.array(rows, dtype=np.bool_).reshape(len(memory), len(ids)))

    def within(self, zones: Iterable[str]) -> BoolArray:
        """Which memory nodes are sold in at least one of these zones, or in all that are known when there are none."""
        columns = [self.ids.index(zone) for zone in zones]
        if not columns:
            return np.ones(len(self.sold), dtype=np.bool_)
        return np.asarray(self.sold[:, columns].any(axis=1))


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


def places_of(instance: InstanceType, offers: Offers) -> Iterator[Place]:
    """The zones of a training type that can be in a best cluster, cheapest first; at least one.

    Where spot prices are not told by zone, the type has one price in all zones that offer it, and every memory node
    that is offered in one of them belongs there. A type or memory node whose zones are unknown may be anywhere.
    """
    if not instance.spot_zones:
        yield Place(instance, offers.within(instance.zones), cheapest=True)
        return
    left = np.ones(len(offers.sold), dtype=np.bool_)
    for i, zone in enumerate(sorted(instance.spot_zones, key=lambda z: (z.usd_per_hour, z.zone))):
        offered = left & offers.within([zone.zone])
        if i == 0 or offered.any():
            yield Place(instance.in_zone(zone), offered, cheapest=i == 0)
        left &= ~offered


def next_zone(cluster: Cluster, tier: MemoryTier, sender_n_sat: int) -> Cluster | None:
    """The cheapest cluster of as many of the same VMs in another zone, with whatever memory nodes are best there.

    Args:
        cluster: in one of the zones where its spot VMs are sold.
        tier: the types that can be memory nodes.
        sender_n_sat: n_sat of the training VMs' own network, as for :meth:`MemoryTier.needed`.
    """
    if cluster.zone is None:
        return None
    moved = [replace(cluster, gpu=cluster.gpu.in_zone(zone)) for zone in cluster.gpu.spot_zones[1:]]
    if cluster.memory is not None:
        counts = tier.needed(np.array([cluster.gpu_count]), np.array([sender_n_sat]))[0]
        nodes = [
            NodeGroup(t, Market.ON_DEMAND, m)
            for t, m, most in zip(tier.types, counts.tolist(), tier.max_count.tolist(), strict=True)
            if m <= most
        ]
        moved = [replace(c, memory=group) for c in moved for group in nodes if _sold_beside(group.instance, c)]
    return min(moved, key=_by_price, default=None)


def _sold_beside(node: InstanceType, cluster: Cluster) -> bool:
    return not node.zones or cluster.zone is None or cluster.zone.zone in node.zones


def _by_price(cluster: Cluster) -> tuple[int, int, str, str]:
    memory = cluster.memory
    return (
        cluster.micro_usd_per_hour,
        memory.count if memory else 0,
        memory.instance.name if memory else "",
        cluster.zone.zone if cluster.zone else "",
    )


def zone_ids(instance: InstanceType) -> tuple[str, ...]:
    """Ids of the zones in which a type may train; empty when unknown."""
    return tuple(z.zone for z in instance.spot_zones) or instance.zones
