"""How clusters are put together (DeepVM III-B3): the registry of architectures.

An architecture says how n training VMs are split over the markets and whether there are memory
nodes. The integer program (:mod:`deepvm.planner.search.formulation`), the enumeration and the
explanations follow from that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.planner.columns import IntArray


class CheckpointLocation(str, Enum):
    """Where an architecture keeps checkpoints."""

    ANCHOR = "anchor"
    MEMORY = "memory"
    STORAGE = "storage"
    NOWHERE = "nowhere"  # on-demand VMs are not preempted


@dataclass(frozen=True)
class Architecture:
    """How a cluster is put together.

    Attributes:
        name: as on the command line. smallest_count: the fewest VMs that train.
        on_demand: how many of n training VMs are bought on demand, as an array of the shape of n.
        known_to_baselines: whether the policies Cost-First and Performance-First consider it.
        keeps: where checkpoints are kept. published: whether DeepVM describes it; the others are
            used where a model is trained, or by name.
        tiered: whether on-demand memory nodes hold the checkpoints. If GPU VMs are bought on demand
            too, the two must be in different quota families: the enumeration checks their quotas
            one by one.
    """

    name: str
    on_demand: Callable[[IntArray], IntArray]
    smallest_count: int = 1
    tiered: bool = False
    known_to_baselines: bool = False
    keeps: CheckpointLocation = CheckpointLocation.NOWHERE
    published: bool = True

    @cached_property
    def markets(self) -> frozenset[Market]:
        """The markets in which training VMs are bought."""
        count = np.array([self.smallest_count, self.smallest_count + 1], dtype=np.int64)
        on_demand = self.on_demand(count)
        used = ((Market.SPOT, count - on_demand), (Market.ON_DEMAND, on_demand))
        return frozenset(market for market, vms in used if vms.any())

    def lacks(self, instance: InstanceType) -> str:
        """What the catalog lacks about a training type, such as ``no-spot-price``, or ""."""
        for market in sorted(self.markets, key=lambda m: m.value):
            if instance.usd_per_hour(market) is None:
                return f"no-{market.value}-price"
        if self.tiered and instance.network_gbps is None:
            return "network-unknown"
        return ""


# One on-demand VM keeps the checkpoints: (n-1) spot(v) + on_demand(v) <= PW, n >= 2 (DeepVM eq. 3;
# the text says "must not exceed", so <=).
SINGLE_ANCHOR = Architecture(
    "single-anchor",
    np.ones_like,
    smallest_count=2,
    known_to_baselines=True,
    keeps=CheckpointLocation.ANCHOR,
)

# m on-demand CPU VMs hold the checkpoints: n spot(v) + m on_demand(w) <= PW, MEM(w) >= f s, n/m <
# n_sat(v, w) (DeepVM eq. 5, 6, 7), w offered where v is.
TIERING = Architecture("tiering", np.zeros_like, tiered=True, keeps=CheckpointLocation.MEMORY)

# n spot VMs and nothing else; versions are in a bucket, as most people train: n spot(v) <= PW.
SPOT_STORAGE = Architecture(
    "spot-storage", np.zeros_like, keeps=CheckpointLocation.STORAGE, published=False
)

# What is never preempted: n on_demand(v) <= PW. For comparison, and for accounts without a quota
# for spot VMs.
ON_DEMAND = Architecture("on-demand", np.copy, published=False)

# In the order of the names, by which ties are broken.
REGISTRY: dict[str, Architecture] = {
    a.name: a for a in (ON_DEMAND, SINGLE_ANCHOR, SPOT_STORAGE, TIERING)
}
