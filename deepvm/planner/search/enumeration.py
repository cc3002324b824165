"""Every plan that matters, enumerated exactly: one pass answers every budget.

A plan's score does not depend on its memory nodes, so for each (type, n) only those with the lowest
prices and the fewest vCPUs matter. The plans are sorted once by price; the best plan within a
budget is then a look-up in a running maximum.

The meaning of "best" is a score per (type, n): DeepVM's objectives and baselines (V-C1). Solver and
enumeration find the highest feasible score, and the cheaper plan among equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.cluster import Cluster, NodeGroup
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.cluster.speedup import SpeedupCurve
from deepvm.core.lifetimes import MAX_OVER_BAD_TIME
from deepvm.planner.columns import Architecture, MemoryNodeTable, TrainingTable, law_of
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.training.speed import TrainingSpeed

_ROWS_AT_ONCE = 256
Array: TypeAlias = npt.NDArray[Any]
TIE = 1e-9  # relative difference up to which values are equal
_LEAST_SHARE = 1e-6  # of gangs that never end at a bad time, so that their values are finite


class SolveStatus(str, Enum):
    """How a solve ended; always a result, never an error."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time-limit"
    INFEASIBLE = "infeasible"
    # The solver gave up, or its answer did not pass the exact check
    NUMERICAL = "numerical-trouble"


@dataclass(frozen=True)
class Scoring:
    """One positive score to maximize for each row of the sizes."""

    scores: FloatArray
    per_dollar: bool = False  # a plan's value is - price / score, memory nodes included
    blind: bool = False  # a baseline, which ignores scaling and preemptions

    def values(self, rows: IntArray, prices: IntArray) -> FloatArray:
        """Values of plans, given their rows and prices, micro-dollars an hour; higher is better."""
        scores = self.scores[rows]
        if self.per_dollar:
            return -(prices / scores)
        return scores


def tie_floor(best: float) -> float:
    """The lowest value that still counts as equal to ``best``."""
    return best - abs(best) * TIE


def counted_share(kept: FloatArray | float, kept_bad: FloatArray | float) -> FloatArray:
    """The share that preemptions leave, by which plans are ranked.

    The usual one, and at most a tenth more than at a bad time: large gangs of spot VMs are ranked
    among one another as at a bad time.
    """
    return np.minimum(kept, np.maximum(kept_bad, _LEAST_SHARE) * MAX_OVER_BAD_TIME)


def scoring(request: PlanRequest, sizes: TrainingTable) -> Scoring:
    """The score of each size under the request's policy and objective.

    ``noscale`` is DeepVM with K = 1. ``cost-first`` takes the most VMs. ``performance-first`` takes
    the type with the highest eFLOPS, then the most VMs. The baselines have no objective.
    """
    if request.policy is PolicyName.COST_FIRST:
        return Scoring(sizes.count.astype(np.float64))
    if request.policy is PolicyName.PERFORMANCE_FIRST:
        eflops = np.array([t.eflops or 0.0 for t in sizes.types])
        order = np.unique(eflops, return_inverse=True)[1] + 1
        biggest = int(sizes.count.max(initial=0)) + 1
        # One whole number that sorts like (eFLOPS, n).
        return Scoring((order[sizes.type_index] * biggest + sizes.count).astype(np.float64))
    ideal = request.policy is PolicyName.NOSCALE
    if request.objective is Objective.FLOPP:
        z = sizes.ideal_z if ideal else sizes.ideal_z * sizes.k * sizes.kept
        return Scoring(z, blind=ideal)
    counted = counted_share(sizes.kept, sizes.kept_bad)
    if ideal:
        work = sizes.ideal_throughput
    else:
        work = sizes.throughput * counted
    if request.needs_work:
        bill = request.objective is Objective.TOTAL_COST
        if ideal:  # it ignores K and preemptions: more eFLOPS end a job sooner
            return Scoring(work, per_dollar=bill, blind=True)
        # Jobs an hour: the bill of a job is price / score.
        took_s = (sizes.billed_s if bill else sizes.total_s) * (sizes.kept / counted)
        return Scoring(3600 / took_s, per_dollar=bill)
    bill = request.objective is Objective.COST_PER_WORK
    return Scoring(work, per_dollar=bill, blind=ideal)


@dataclass(frozen=True)
class Block:
    """The candidates of one architecture; ``tier`` counts only where it is tiered."""

    architecture: Architecture
    sizes: TrainingTable
    tier: MemoryNodeTable
    scoring: Scoring


@dataclass(frozen=True)
class Choice:
    """A plan: rows of a block's sizes and its tier (None: no memory nodes), micro-dollars/h."""

    block: Block
    size: int
    memory: int | None
    memory_count: int
    price: int
    value: float
    late: float = 0.0  # as deepvm.planner.ranking counts it
    refuted: bool = False  # by a warning of its own: deepvm.planner.ranking

    @property
    def curve(self) -> SpeedupCurve:
        sizes = self.block.sizes
        return sizes.curves[int(sizes.type_index[self.size])]

    @property
    def gpu(self) -> InstanceType:
        sizes = self.block.sizes
        return sizes.types[int(sizes.type_index[self.size])]

    @property
    def gpu_count(self) -> int:
        return int(self.block.sizes.count[self.size])

    @property
    def speed(self) -> TrainingSpeed | None:
        law = law_of(self.curve)
        if law is None:
            return None
        return law.speed_of(np.array([float(self.gpu_count)]))

    @property
    def cluster(self) -> Cluster:
        sizes = self.block.sizes
        memory = None
        if self.memory is not None:
            memory = NodeGroup(
                self.block.tier.types[self.memory], Market.ON_DEMAND, self.memory_count
            )
        return Cluster(
            self.block.architecture.name,
            self.gpu,
            int(sizes.spot[self.size]),
            int(sizes.on_demand[self.size]),
            memory,
        )


@dataclass(frozen=True, eq=False)
class Enumeration:
    """All plans of several blocks: cheapest first, then fewest memory nodes, then by name."""

    blocks: tuple[Block, ...]
    block: IntArray  # of each plan
    plans: IntArray  # (4, plans), see _plans
    value: FloatArray  # of each plan

    @classmethod
    def build(cls, blocks: Sequence[Block], top: int = 1) -> Enumeration:
        """Enumerate blocks, in the order of their architectures' names.

        Each size has the memory tiers that fewer than ``top`` others equal or beat in price and
        vCPUs.
        """
        parts = [_plans(block, top) for block in blocks]
        plans = np.concatenate([np.zeros((4, 0), dtype=np.int64), *parts], axis=1)
        block = np.repeat(np.arange(len(blocks)), [part.shape[1] for part in parts])
        unsorted = cls(tuple(blocks), block, plans, np.zeros(len(block)))
        _, memory, ties, price = plans
        # Blocks and tiers are sorted by name, so their indices sort like names. One key after the
        # price: sorting by each column takes five times as long.
        for column in (block, unsorted.column(lambda sizes: sizes.order), memory + 1):
            ties = ties * (int(column.max(initial=0)) + 1) + column
        return unsorted.only(np.lexsort((ties, price))).scored(blocks)

    def scored(self, blocks: Sequence[Block]) -> Enumeration:
        """The same plans by the scores of other blocks of the same sizes."""
        value = np.zeros(len(self))
        for index, block in enumerate(blocks):
            rows = np.flatnonzero(self.block == index)
            value[rows] = block.scoring.values(self.plans[0, rows], self.plans[3, rows])
        return replace(self, blocks=tuple(blocks), value=value)

    @cached_property
    def best_so_far(self) -> FloatArray:
        return np.maximum.accumulate(self.value)

    @property
    def price(self) -> IntArray:
        return np.asarray(self.plans[3])

    def __len__(self) -> int:
        return len(self.price)

    def choice(self, row: int) -> Choice:
        size, memory, memory_count, price = self.plans[:, row].tolist()
        block = self.blocks[int(self.block[row])]
        value = float(self.value[row])
        return Choice(block, size, None if memory < 0 else memory, memory_count, price, value)

    def only(self, rows: BoolArray | IntArray) -> Enumeration:
        return Enumeration(self.blocks, self.block[rows], self.plans[:, rows], self.value[rows])

    def affordable(self, budget: int) -> int:
        return int(np.searchsorted(self.price, budget, side="right"))

    def reaching(self, value: float) -> Choice | None:
        row = int(np.searchsorted(self.best_so_far, value))
        if row < len(self):
            return self.choice(row)
        return None

    def best(self, budget: int) -> Choice | None:
        within = self.affordable(budget)
        if within:
            return self.reaching(tie_floor(float(self.best_so_far[within - 1])))
        return None

    def top(self, budget: int, count: int) -> list[Choice]:
        """The best ``count`` plans within a budget, exact up to the ``top`` of :meth:`build`."""
        within = self.affordable(budget)
        value = self.value[:within].copy()
        chosen: list[Choice] = []
        while len(chosen) < min(count, within):
            floor = tie_floor(float(value.max()))
            row = int(np.argmax(value >= floor))
            value[row] = -np.inf
            chosen.append(self.choice(row))
        return chosen

    def cheapest(self) -> Choice | None:
        return self.reaching(-np.inf)

    def column(self, of: Callable[[TrainingTable], Array]) -> Array:
        """A column of the sizes for each plan; ``of`` makes it for all sizes of a block."""
        columns = [np.zeros(0, dtype=np.int64), *(of(block.sizes) for block in self.blocks)]
        before = np.cumsum([0, *(len(block.sizes) for block in self.blocks)])
        return np.asarray(np.concatenate(columns)[before[self.block] + self.plans[0]])

    @cached_property
    def trains(self) -> tuple[tuple[str, ...], IntArray]:
        numbers: dict[str, int] = {}
        column = self.column(
            lambda sizes: sizes.by_type(lambda t: numbers.setdefault(t.name, len(numbers)))
        )
        return tuple(numbers), column

    def next_change(self, budget: int) -> Choice | None:
        """The best plan at the next budget that buys a better one, if any."""
        bar = -np.inf
        if (now := self.best(budget)) is not None:
            bar = now.value + abs(now.value) * TIE
        row = int(np.searchsorted(self.best_so_far, bar, side="right"))
        if row < len(self):
            return self.best(int(self.price[row]))
        return None


def _plans(block: Block, top: int) -> IntArray:
    """(4, plans): row of the size, of the memory tier or -1, memory nodes, micro-dollars/h."""
    sizes = block.sizes
    plans = np.zeros((4, 0), dtype=np.int64)
    if not block.architecture.tiered:
        rows = np.arange(len(sizes), dtype=np.int64)
        plans = np.stack([rows, np.full_like(rows, -1), np.zeros_like(rows), sizes.price])
    elif len(sizes) and len(block.tier):
        plans = _with_tiers(sizes, block.tier, top)
    return plans[:, plans[3] <= sizes.most_usd[plans[0]]]


@lru_cache(maxsize=4)
def useful_tier(tier: MemoryNodeTable, top: int, *, vcpus: bool = False) -> BoolArray:
    """Memory-node types that fewer than ``top`` others equal or beat in every resource.

    Cached: the same table serves each training type.
    """
    columns = [price_order(tier.price), -tier.n_sat, -tier.max_count, tier.for_versions]
    columns += [tier.vcpus] if vcpus else []
    if any(t.reserved for t in tier.types):
        ends = np.array([t.left_s for t in tier.types], dtype=np.float64)
        columns.append(-np.unique(ends, return_inverse=True)[1].reshape(-1))
    if not tier.sold.all():  # else zones do not matter
        columns += [-zone.astype(np.int64) for zone in np.unique(tier.sold, axis=1).T]
    return skyband(np.column_stack(columns), top)


def _with_tiers(sizes: TrainingTable, tier: MemoryNodeTable, top: int) -> IntArray:
    """Each size with its memory tiers that matter, as in :func:`_plans`."""
    useful = useful_tier(tier, top, vcpus=True)
    kept = np.flatnonzero(useful)
    small = tier.take(useful)
    # What a tier costs depends on n, on the senders' n_sat and on the memory set: each such key is
    # computed once.
    offered, sets = np.unique(small.offered, axis=1, return_inverse=True)
    base = int(sizes.n_sat.max()) + 1
    columns = offered.shape[1]
    row_sets = sets.reshape(-1)[sizes.memory_set]
    keys, pair = np.unique(
        (sizes.count * base + sizes.n_sat) * columns + row_sets, return_inverse=True
    )
    counts, n_sat = np.divmod(keys // columns, base)
    needed = small.needed(counts, n_sat)
    never = np.iinfo(np.int64).max
    allowed = (needed <= small.max_count) & offered.T[keys % columns]
    cost, vcpus = (np.where(allowed, needed * each, never) for each in (small.price, small.vcpus))
    order = np.lexsort((np.broadcast_to(np.arange(len(small)), cost.shape), needed, cost), axis=-1)
    matters = _least(np.take_along_axis(vcpus, order, axis=1), top)
    size, place = np.nonzero(matters[pair])
    key = pair[size]
    row = order[key, place]
    return np.stack([size, kept[row], needed[key, row], cost[key, row] + sizes.price[size]])


def _least(values: IntArray, top: int) -> BoolArray:
    """[i, j]: whether fewer than ``top`` earlier values of row i are <= the j-th one."""
    result = np.zeros(values.shape, dtype=np.bool_)
    lowest = np.full((len(values), top), np.iinfo(np.int64).max)
    for place, column in enumerate(values.T):
        result[:, place] = column < lowest[:, -1]
        lowest = np.sort(np.column_stack([lowest, column]), axis=1)[:, :top]
    return result


def skyband(costs: IntArray, depth: int) -> BoolArray:
    """The k-skyband (Papadias et al., TODS 2005): rows dominated by fewer than ``depth`` rows.

    A row dominates another when it is less or equal in every column and, if equal in all of them,
    comes first. The best ``depth`` plans are among these rows: each dominator of a dropped row
    gives a plan that ranks before every plan of that row. ``costs``: (rows, resources).
    """
    rows = len(costs)
    kept = np.zeros(rows, dtype=np.bool_)
    # In lexicographic order a dominator comes before what it dominates, and a stable sort keeps
    # equal rows in order; so one pass over blocks, each compared with the survivors before it and
    # with itself, is enough.
    order = np.lexsort(costs.T[::-1])
    survivors = np.empty((0, costs.shape[1]), dtype=costs.dtype)
    for start in range(0, rows, _ROWS_AT_ONCE):
        index = order[start : start + _ROWS_AT_ONCE]
        block = costs[index]
        before = np.tri(len(block), k=-1, dtype=np.bool_)  # [i, j]: j comes before i
        dominators = _dominated_by(block, survivors).sum(axis=1)
        # Dropped rows may be counted as dominators inside the block: what dominates them dominates
        # the row as well.
        dominators += (_dominated_by(block, block) & before).sum(axis=1)
        keep = dominators < depth
        kept[index[keep]] = True
        survivors = np.concatenate([survivors, block[keep]])
    return kept


def price_order(prices: IntArray) -> IntArray:
    """The rank of each row by price, then by row, as plans are ranked."""
    return np.argsort(np.argsort(prices, kind="stable")).astype(np.int64)


def _dominated_by(rows: IntArray, others: IntArray) -> BoolArray:
    """[i, j]: others[j] is less or equal to rows[i] in every column."""
    result = np.ones((len(rows), len(others)), dtype=np.bool_)
    for column in range(rows.shape[1]):
        result &= others[None, :, column] <= rows[:, None, column]
    return result
