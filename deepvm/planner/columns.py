"""The search space: how clusters are put together (DeepVM III-B3), and what they consist of.

An architecture says how n training VMs are split over the markets and whether there are memory
nodes. The integer program, the enumeration and the explanations follow from that. The VMs that
train, and the memory nodes that may go with them, are columns of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from deepvm.core.cluster.instances import InstanceType, Market, Quota
from deepvm.core.cluster.speedup import STEP_TIME, SpeedupCurve

if TYPE_CHECKING:
    from deepvm.core.training.speed import StepTimeSpeedup

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

# Share of the throughput: where preemptions leave less, a cluster counts as never training. A job
# that takes 20 times as long never ends in :mod:`deepvm.core.preemption.makespan` either.
LEAST_KEPT = 0.05
UNLIMITED_USD = np.iinfo(np.int64).max  # in TrainingTable.most_usd: no limit


def law_of(curve: SpeedupCurve | None) -> StepTimeSpeedup | None:
    """The curve, if it follows from the step-time law of a model."""
    if curve is not None and curve.kind == STEP_TIME:
        return cast("StepTimeSpeedup", curve)
    return None


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

# n spot VMs and nothing else, the usual setup; versions are in a bucket: n spot(v) <= PW.
SPOT_STORAGE = Architecture(
    "spot-storage", np.zeros_like, keeps=CheckpointLocation.STORAGE, published=False
)

# Never preempted: n on_demand(v) <= PW. For comparison, and for accounts without a quota
# for spot VMs.
ON_DEMAND = Architecture("on-demand", np.copy, published=False)

# In the order of the names, by which ties are broken.
REGISTRY: dict[str, Architecture] = {
    a.name: a for a in (ON_DEMAND, SINGLE_ANCHOR, SPOT_STORAGE, TIERING)
}


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
            (:mod:`deepvm.planner.recovery`); 1 where no model is trained.
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
        return len(self.count)

    def by_type(self, of: Callable[[InstanceType], Any]) -> npt.NDArray[Any]:
        """A value of the type of each row."""
        values = [of(instance) for instance in self.types] or np.zeros(0, dtype=np.int64)
        return np.asarray(np.asarray(values)[self.type_index])

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
        # Most masks keep all rows, and a copy of 100,000 rows would be slow
        if rows.dtype == np.bool_ and rows.all():
            return self
        columns = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name not in ("types", "curves", "quotas")
        }
        # Columns that are one array, such as the zeros of a request without a job, stay one.
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
            (:func:`deepvm.planner.recovery.nodes_to_receive`); 1 where no model is
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
        return len(self.types)

    def only(self, name: str) -> MemoryNodeTable:
        return self.take(np.array([t.name == name for t in self.types], dtype=np.bool_))

    def take(self, rows: BoolArray | IntArray) -> MemoryNodeTable:
        kept = tuple(self.types[row] for row in np.arange(len(self))[rows].tolist())
        columns = ("price", "n_sat", "max_count", "share_bytes", "for_speed", "sold", "offered")
        return replace(self, types=kept, **{c: getattr(self, c)[rows] for c in columns})

    @cached_property
    def vcpus(self) -> IntArray:
        """Of one VM, of shape (types,)."""
        return np.array([t.vcpus for t in self.types], dtype=np.int64)

    @property
    def for_versions(self) -> IntArray:
        """Fewest memory nodes that hold f x s and receive fast enough, of shape (types,)."""
        for_memory = -(-self.needed_bytes // np.maximum(self.share_bytes, 1))  # eq. 6, rounded up
        return np.asarray(np.maximum(np.maximum(for_memory, 1), self.for_speed))

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
