"""How clusters are put together (DeepVM III-B3): a class for each architecture, and the registry.

An architecture says how n training VMs are split over the markets and whether memory nodes stand beside them. From that
follow its integer program (:mod:`deepvm.planner.search.formulation`), its enumeration and its explanations. The
contract test runs every entry of the registry against the enumeration and a brute-force oracle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar

import numpy as np

from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.planner.columns import IntArray


class Architecture(ABC):
    """How a cluster is put together.

    Class attributes:
        name: as on the command line. smallest_count: the fewest VMs that train.
        known_to_baselines: whether the policies Cost-First and Performance-First consider it.
        tiered: whether on-demand memory nodes stand beside the VMs that train. An architecture that is tiered *and*
            buys GPU VMs on demand must keep the two in different quota families: the enumeration checks their quotas
            one by one.
    """

    name: ClassVar[str]
    smallest_count: ClassVar[int] = 1
    tiered: ClassVar[bool] = False
    known_to_baselines: ClassVar[bool] = False

    @abstractmethod
    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """How many of ``count`` training VMs are spot and how many on-demand; arrays of the same shape."""

    @cached_property
    def markets(self) -> frozenset[Market]:
        """The markets in which a type that trains must be sold."""
        spot, on_demand = self.split(np.array([self.smallest_count, self.smallest_count + 1], dtype=np.int64))
        return frozenset(m for m, n in ((Market.SPOT, spot), (Market.ON_DEMAND, on_demand)) if n.any())

    def lacks(self, instance: InstanceType) -> str:
        """What it needs of a training VM and the catalog does not know, such as ``no-spot-price``; empty: nothing."""
        for market in sorted(self.markets, key=lambda m: m.value):
            if instance.usd_per_hour(market) is None:
                return f"no-{market.value}-price"
        return "network-unknown" if self.tiered and instance.network_gbps is None else ""


class SingleAnchor(Architecture):
    """n-1 spot GPU VMs and one on-demand GPU VM of the same type, which keeps the checkpoints.

    (n-1) spot(v) + on_demand(v) <= PW, n >= 2 (DeepVM eq. 3; the text says "must not exceed", so <=).
    """

    name: ClassVar[str] = "single-anchor"
    smallest_count: ClassVar[int] = 2
    known_to_baselines: ClassVar[bool] = True

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """All but one are spot."""
        return count - 1, np.ones_like(count)


class Tiering(Architecture):
    """n spot GPU VMs train, m on-demand CPU VMs hold the checkpoints (multi-level checkpointing).

    n spot(v) + m on_demand(w) <= PW, MEM(w) >= f s, n/m < n_sat(v, w) (DeepVM eq. 5, 6, 7), w offered where v is.
    """

    name: ClassVar[str] = "tiering"
    tiered: ClassVar[bool] = True

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """All are spot."""
        return count, np.zeros_like(count)


class OnDemand(Architecture):
    """n on_demand(v) <= PW: what spot VMs are measured against; not in the registry, for nothing is planned with it."""

    name: ClassVar[str] = "on-demand"

    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """None is spot."""
        return np.zeros_like(count), count


REGISTRY: dict[str, Architecture] = {a.name: a for a in (SingleAnchor(), Tiering())}
"""By name, in the order of the names, which ties are broken by."""
