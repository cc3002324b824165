"""The search space as columns: the VMs that train, and the memory nodes that may go with them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from deepvm.core.cluster.instances import InstanceType, Quota
from deepvm.core.cluster.speedup import SpeedupCurve

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

LEAST_KEPT = 0.05
"""Share of the throughput: where preemptions leave less, nothing is trained.

A job that takes 20 times as long never ends in :mod:`deepvm.core.preemption.makespan` either.
"""
UNLIMITED_USD = np.iinfo(np.int64).max  # in TrainingTable.most_usd: any price will do


@dataclass(frozen=True)
class TrainingTable:
    """One row for each (GPU type, zone, number of VMs) of one architecture, ordered by type name.

    Attributes:
        types: the GPU types, by name, each once for each zone. type_index: index into ``types``.
        curves: how each of the types scales.
        count: VMs that train, n. spot, on_demand: how many of them are bought in each market.
        price: micro-dollars an hour of the GPU VMs.
        k: scaling factor K(n). n_sat: of the type's own network.
        ideal_throughput, ideal_z: eFLOPS x n and the printed objective (eq. 4, 8) with K = 1.
        memory_set: the memory nodes in its zone, a column of :attr:`MemoryNodeTable.offered`.
        total_s, preemptions, sound: the job's forecast (:mod:`deepvm.planner.job_forecast`); 0
        without a job.
        billed_s: ``total_s``, and longer where replacements overlap with what they replace.
        kept: share of the throughput that preemptions leave, usually, at a bad and at a good time
            (:mod:`deepvm.planner.workload.recovery`); 1 where no model is trained.
        lost_per_s: preemptions a second of the whole cluster, usually; 0 where no model is trained.
        trusted: whether the speed is believed: up to 1.5 x the largest cluster that was measured,
            and up to the batch that is known to train well.
        late: probability of missing the deadline, as far as the speed of a model is known; 0
            without a deadline.
        most_usd: the highest price, micro-dollars an hour with memory nodes, at which the job keeps
            to its limits.
    """

    types: tuple[InstanceType, ...]
    type_index: IntArray
    curves: tuple[SpeedupCurve, ...]
    count: IntArray
    spot: IntArray
    on_demand: IntArray
    price: IntArray
    k: FloatArray
    ideal_throughput: FloatArray
    ideal_z: FloatArray
    n_sat: IntArray
    memory_set: IntArray
    quotas: tuple[Quota, ...]
    total_s: FloatArray
    billed_s: FloatArray
    preemptions: FloatArray
    sound: BoolArray
    late: FloatArray
    most_usd: IntArray
    kept: FloatArray
    kept_bad: FloatArray
    kept_good: FloatArray
    lost_per_s: FloatArray
    trusted: BoolArray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.count)

    @property
    def throughput(self) -> FloatArray:
        """Performance of the cluster, eFLOPS x n x K(n) (DeepVM V-A), in the catalog's unit."""
        return self.ideal_throughput * self.k

    @property
    def effective(self) -> FloatArray:
        """Throughput less what preemptions cost."""
        return self.throughput * self.kept

    @property
    def lasting(self) -> BoolArray:
        """Whether preemptions let it train at all."""
        return np.asarray(self.kept >= LEAST_KEPT)

    @property
    def z(self) -> FloatArray:
        """The printed objective (DeepVM eq. 4, 8), eFLOPS per $/h."""
        return self.ideal_z * self.k

    @property
    def order(self) -> IntArray:
        """Sorts rows by (type name, n); equal for all zones of a type."""
        names = np.cumsum([0, *(a.name != b.name for a, b in pairwise(self.types))])
        most = int(self.count.max(initial=0)) + 1
        return np.asarray(names[self.type_index] * most + self.count, dtype=np.int64)

    def take(self, rows: BoolArray | IntArray) -> TrainingTable:
        """Some of the rows."""
        # Most masks keep all rows, and there may be 100 000
        if rows.dtype == np.bool_ and rows.all():
            return self
        columns = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("types", "curves", "quotas")
        }
        taken = {
            id(column): column[rows] for column in {id(c): c for c in columns.values()}.values()
        }
        return replace(self, **{name: taken[id(column)] for name, column in columns.items()})


@dataclass(frozen=True, eq=False)
class MemoryNodeTable:
    """One row for each type that can be a memory node, ordered by name.

    Attributes:
        price: on-demand micro-dollars an hour. n_sat: of the type's own network.
        max_count: how many of them the on-demand quota and the rule of memory nodes allow.
        share_bytes: what one VM adds to the room for checkpoints, above 0; with needed_bytes, f x s
            (eq. 6), see :meth:`deepvm.core.cluster.memory_nodes.MemoryNodeRule.share_bytes`.
        for_speed: the fewest of them that receive a version fast enough
            (:func:`deepvm.planner.workload.recovery.nodes_to_receive`); 1 where no model is
            trained.
        sold: whether a type (row) may be sold in a zone (column).
        offered: whether a type (row) may go with the training VMs of a
            :attr:`TrainingTable.memory_set` (column).
    """

    types: tuple[InstanceType, ...]
    price: IntArray
    n_sat: IntArray
    max_count: IntArray
    share_bytes: IntArray
    needed_bytes: int
    for_speed: IntArray
    sold: BoolArray
    offered: BoolArray

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.types)

    def take(self, rows: BoolArray | IntArray) -> MemoryNodeTable:
        """Some of the rows."""
        kept = tuple(self.types[row] for row in np.arange(len(self))[rows].tolist())
        columns = ("price", "n_sat", "max_count", "share_bytes", "for_speed", "sold", "offered")
        return replace(self, types=kept, **{c: getattr(self, c)[rows] for c in columns})

    @cached_property
    def vcpus(self) -> IntArray:
        """Of one VM, of shape (types,)."""
        return np.array([t.vcpus for t in self.types], dtype=np.int64)

    @property
    def for_memory(self) -> IntArray:
        """Fewest memory nodes that hold f x s (eq. 6), (types,); 1 if one node does."""
        return np.asarray(np.maximum(1, -(-self.needed_bytes // np.maximum(self.share_bytes, 1))))

    @property
    def for_versions(self) -> IntArray:
        """Fewest memory nodes that hold f x s and receive fast enough, of shape (types,)."""
        return np.maximum(self.for_memory, self.for_speed)

    def needed(self, count: IntArray, sender_n_sat: IntArray) -> IntArray:
        """Fewest memory nodes for n senders and their checkpoints (:meth:`for_senders`)."""
        return np.maximum(self.for_senders(count, sender_n_sat), self.for_versions[None, :])

    def for_senders(self, count: IntArray, sender_n_sat: IntArray) -> IntArray:
        """Fewest memory nodes with n/m < n_sat (eq. 7), floor(n / n_sat) + 1, (rows, types).

        ``count``: training VMs, n, and ``sender_n_sat``: n_sat of their own network; both of shape
        (rows,).
        """
        pair = np.minimum(sender_n_sat[:, None], self.n_sat[None, :])
        return np.asarray(count[:, None] // pair + 1)
