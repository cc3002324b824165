"""How clusters are put together (DeepVM III-B3): the registry of architectures.

An architecture says how n training VMs are split over the markets and whether memory nodes stand beside them. From that
follow its integer program (:mod:`deepvm.planner.search.formulation`), its enumeration and its explanations. The
contract test runs every entry of the registry against the enumeration and a brute-force oracle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.planner.columns import IntArray


@dataclass(frozen=True)
class Architecture:
    """How a cluster is put together.

    Attributes:
        name: as on the command line. smallest_count: the fewest VMs that train.
        on_demand: how many of n training VMs are bought on demand, as an array of the shape of n.
        known_to_baselines: whether the policies Cost-First and Performance-First consider it.
        tiered: whether on-demand memory nodes stand beside the VMs that train. An architecture that is tiered *and*
            buys GPU VMs on demand must keep the two in different quota families: the enumeration checks their quotas
            one by one.
    """

    name: str
    on_demand: Callable[[IntArray], IntArray]
    smallest_count: int = 1
    tiered: bool = False
    known_to_baselines: bool = False

    @cached_property
    def markets(self) -> frozenset[Market]:
        """The markets in which a type that trains must be sold."""
        count = np.array([self.smallest_count, self.smallest_count + 1], dtype=np.int64)
        on_demand = self.on_demand(count)
        used = ((Market.SPOT, count - on_demand), (Market.ON_DEMAND, on_demand))
        return frozenset(market for market, vms in used if vms.any())

    def lacks(self, instance: InstanceType) -> str:
        """What it needs of a training VM and the catalog does not know, such as ``no-spot-price``; empty: nothing."""
        for market in sorted(self.markets, key=lambda m: m.value):
            if instance.usd_per_hour(market) is None:
                return f"no-{market.value}-price"
        return "network-unknown" if self.tiered and instance.network_gbps is None else ""


# One on-demand VM keeps the checkpoints: (n-1) spot(v) + on_demand(v) <= PW, n >= 2 (DeepVM eq. 3; the text says "must
# not exceed", so <=).
SINGLE_ANCHOR = Architecture("single-anchor", np.ones_like, smallest_count=2, known_to_baselines=True)

# m on-demand CPU VMs hold the checkpoints: n spot(v) + m on_demand(w) <= PW, MEM(w) >= f s, n/m < n_sat(v, w) (DeepVM
# eq. 5, 6, 7), w offered where v is.
TIERING = Architecture("tiering", np.zeros_like, tiered=True)

# What spot VMs are measured against; not in the registry, for nothing is planned with it.
ON_DEMAND = Architecture("on-demand", np.copy)

# In the order of the names, by which ties are broken.
REGISTRY: dict[str, Architecture] = {a.name: a for a in (SINGLE_ANCHOR, TIERING)}
