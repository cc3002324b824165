"""The interface of a cluster architecture (DeepVM III-B3).

An architecture says how n training VMs are split over the markets, whether memory nodes stand beside them, which named
constraints hold, and how a solution of the integer program is read back as a cluster. The solver, the frontier, the
explanations and the command line ask only this interface: a new architecture is one file and one line in the registry,
and the contract test runs it against the frontier and a brute-force oracle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import numpy as np

from deepvm.core.cluster.instances import Market
from deepvm.planner.architectures.formulation import Formulation, Pick
from deepvm.planner.columns import IntArray, MemoryTier, Sizes


class Architecture(ABC):
    """How a cluster is put together.

    Class attributes:
        name: as on the command line. summary: one line for people.
        constraints: the names of the constraints that hold, in the order in which they are explained.
        smallest_count: the fewest VMs that train.
        known_to_baselines: whether the policies Cost-First and Performance-First consider it.
        tiered: whether on-demand memory nodes stand beside the VMs that train. An architecture that is tiered *and*
            buys GPU VMs on demand must keep the two in different quota families: the frontier checks their quotas
            one by one.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    constraints: ClassVar[tuple[str, ...]]
    smallest_count: ClassVar[int] = 1
    tiered: ClassVar[bool] = False
    known_to_baselines: ClassVar[bool] = False

    @abstractmethod
    def split(self, count: IntArray) -> tuple[IntArray, IntArray]:
        """How many of ``count`` training VMs are spot and how many on-demand; arrays of the same shape."""

    @abstractmethod
    def formulate(self, sizes: Sizes, tier: MemoryTier, budget: int) -> Formulation:
        """The integer program for these candidates.

        Args:
            sizes: candidate (type, n) pairs of this architecture; one binary variable stands for each.
            tier: candidate memory nodes; empty unless the architecture is tiered.
            budget: micro-dollars an hour.
        """

    @abstractmethod
    def decode(self, formulation: Formulation, values: Sequence[int]) -> Pick:
        """Read one value for each variable of ``formulation`` as the cluster that it means."""

    @cached_property
    def markets(self) -> frozenset[Market]:
        """The markets in which a type that trains must be sold."""
        spot, on_demand = self.split(np.array([self.smallest_count, self.smallest_count + 1], dtype=np.int64))
        used = {Market.SPOT} if spot.any() else set()
        return frozenset(used | ({Market.ON_DEMAND} if on_demand.any() else set()))
