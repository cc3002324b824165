"""The search space: how clusters are put together (DeepVM III-B3), and what they consist of.

An architecture says how n training VMs are split over the markets and whether there are memory
nodes. The integer program, the enumeration and the explanations follow from that. The VMs that
train, and the memory nodes that may go with them, are columns of arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.instances import InstanceType, Market, Quota
from deepvm.core.cluster.speedup import STEP_TIME, SpeedupCurve
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.training.speed import StepTimeSpeedup

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
    """How a cluster is put together."""

    name: str
    # how many of n VMs are bought on demand, of the shape of n
    on_demand: Callable[[IntArray], IntArray]
    smallest_count: int = 1  # the fewest VMs that train
    # Memory nodes hold the checkpoints. VMs that train on demand must be of another quota family:
    # the enumeration checks quotas one by one.
    tiered: bool = False
    known_to_baselines: bool = False  # Cost-First and Performance-First consider it
    keeps: CheckpointLocation = CheckpointLocation.NOWHERE
    published: bool = True  # DeepVM describes it; others are used for models, or by name

    @cached_property
    def markets(self) -> frozenset[Market]:
        count = np.array([self.smallest_count, self.smallest_count + 1], dtype=np.int64)
        on_demand = self.on_demand(count)
        used = ((Market.SPOT, count - on_demand), (Market.ON_DEMAND, on_demand))
        return frozenset(market for market, vms in used if vms.any())

    def lacks(self, instance: InstanceType) -> str:
        """What the catalog lacks about a training type, such as ``no-spot-price``, or ""."""
        for market in sorted(self.markets):
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
    """One row for each (GPU type, zone, VMs) of one architecture, ordered by type name."""

    types: tuple[InstanceType, ...]  # by name, each once for each zone
    type_index: IntArray  # into types
    curves: tuple[SpeedupCurve, ...]
    count: IntArray  # VMs that train, n
    spot: IntArray
    on_demand: IntArray
    price: IntArray  # micro-dollars an hour of the GPU VMs
    k: FloatArray  # scaling factor K(n)
    ideal_throughput: FloatArray  # eFLOPS x n
    ideal_z: FloatArray  # the printed objective (eq. 4, 8) with K = 1
    n_sat: IntArray  # of the type's own network
    memory_set: IntArray  # a column of MemoryNodeTable.offered
    quotas: tuple[Quota, ...]
    total_s: FloatArray  # of the job (deepvm.planner.job_forecast)
    billed_s: FloatArray  # longer than total_s where replacements overlap with what they replace
    preemptions: FloatArray
    sound: BoolArray
    late: FloatArray  # probability of missing the deadline
    slow_s: FloatArray  # of the job: a slow run at a bad time
    spread: FloatArray  # of its bill: that run over a fast one at a good time
    most_usd: IntArray  # highest price, micro-dollars/h with memory nodes, within the job's limits
    sure_usd: IntArray  # the same of a slow run at a bad time
    # share of the throughput that preemptions usually leave (deepvm.planner.recovery)
    kept: FloatArray
    kept_bad: FloatArray  # at a bad time
    kept_good: FloatArray  # at a good time
    lost_per_s: FloatArray  # preemptions a second of the whole cluster
    # up to 1.5 x the largest measured cluster, and the batch known to train well
    trusted: BoolArray

    def __len__(self) -> int:
        return len(self.count)

    def by_type(self, of: Callable[[InstanceType], Any]) -> npt.NDArray[Any]:
        values = [of(instance) for instance in self.types] or np.zeros(0, dtype=np.int64)
        return np.asarray(values)[self.type_index]

    @property
    def throughput(self) -> FloatArray:
        """Performance of the cluster, eFLOPS x n x K(n) (DeepVM V-A), in the catalog's unit."""
        return self.ideal_throughput * self.k

    @property
    def effective(self) -> FloatArray:
        return self.throughput * self.kept

    @property
    def lasting(self) -> BoolArray:
        return self.kept >= LEAST_KEPT

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
        # Columns that are one array, such as the zeros of a request without a job, stay one.
        columns: dict[str, Any] = {n: c for n, c in vars(self).items() if isinstance(c, np.ndarray)}
        taken = {i: column[rows] for i, column in {id(c): c for c in columns.values()}.items()}
        return replace(self, **{name: taken[id(column)] for name, column in columns.items()})


@dataclass(frozen=True, eq=False)
class MemoryNodeTable:
    """One row for each type that can be a memory node, ordered by name."""

    types: tuple[InstanceType, ...]
    price: IntArray  # on-demand micro-dollars an hour
    n_sat: IntArray  # of the type's own network
    max_count: IntArray  # that the quota and the rule of memory nodes allow
    share_bytes: IntArray  # one VM's share of the capacity (MemoryNodeRule.share_bytes), above 0
    needed_bytes: int  # f x s (eq. 6)
    for_speed: IntArray  # the fewest that receive a version fast enough (nodes_to_receive)
    sold: BoolArray  # whether a type (row) may be sold in a zone (column)
    offered: BoolArray  # whether it may go with a TrainingTable.memory_set (column)

    def __len__(self) -> int:
        return len(self.types)

    def only(self, name: str) -> MemoryNodeTable:
        return self.take(np.array([t.name == name for t in self.types], dtype=np.bool_))

    def take(self, rows: BoolArray | IntArray) -> MemoryNodeTable:
        kept = tuple(self.types[row] for row in np.arange(len(self))[rows].tolist())
        # Without what is cached
        columns = ("price", "n_sat", "max_count", "share_bytes", "for_speed", "sold", "offered")
        return replace(self, types=kept, **{c: getattr(self, c)[rows] for c in columns})

    @property
    def vcpus(self) -> IntArray:
        return np.array([t.vcpus for t in self.types], dtype=np.int64)

    @property
    def for_versions(self) -> IntArray:
        """Fewest memory nodes that hold f x s and receive fast enough, of shape (types,)."""
        for_memory = -(-self.needed_bytes // np.maximum(self.share_bytes, 1))  # eq. 6, rounded up
        return np.asarray(np.maximum(np.maximum(for_memory, 1), self.for_speed))

    def needed(self, count: IntArray, sender_n_sat: IntArray) -> IntArray:
        """Fewest memory nodes for n senders (n/m < n_sat, eq. 7) and checkpoints, (rows, types).

        ``count``: training VMs, n, and ``sender_n_sat``: n_sat of their own network; (rows,).
        """
        pair = np.minimum(sender_n_sat[:, None], self.n_sat[None, :])
        return np.maximum(count[:, None] // pair + 1, self.for_versions[None, :])
