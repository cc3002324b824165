"""Every plan worth knowing, enumerated exactly: one pass answers every budget.

For each (type, n) only the cheapest memory nodes matter, because the score of a plan does not depend on them. So the
plans are the sizes times the few cheapest ways to serve them, sorted once by price; the best plan of any budget is
then a look-up in a running maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from deepvm.core.cluster.cluster import Cluster, NodeGroup
from deepvm.core.cluster.instances import Market
from deepvm.planner.architectures.base import Architecture
from deepvm.planner.columns import BoolArray, FloatArray, IntArray, MemoryTier, Sizes
from deepvm.planner.scoring import TIE, Scoring, tie_floor
from deepvm.planner.search.dominance import price_order, skyband


@dataclass(frozen=True)
class Block:
    """The candidates of one architecture.

    Attributes:
        scoring: one score for each row of ``sizes``. tier: empty unless the architecture is tiered.
    """

    architecture: Architecture
    sizes: Sizes
    tier: MemoryTier
    scoring: Scoring


@dataclass(frozen=True)
class Choice:
    """A plan: a row of a block's sizes with its memory nodes.

    Attributes:
        memory: row of the block's tier, None without memory nodes. price: micro-dollars an hour.
        value: what the policy maximises.
    """

    block: Block
    size: int
    memory: int | None
    memory_count: int
    price: int
    value: float

    @property
    def cluster(self) -> Cluster:
        """The cluster that this choice means."""
        sizes, row = self.block.sizes, self.size
        memory = None
        if self.memory is not None:
            memory = NodeGroup(self.block.tier.types[self.memory], Market.ON_DEMAND, self.memory_count)
        gpu = sizes.types[int(sizes.type_index[row])]
        return Cluster(self.block.architecture.name, gpu, int(sizes.spot[row]), int(sizes.on_demand[row]), memory)

    @property
    def names(self) -> tuple[str, str, int, str]:
        """The last tie-break: architecture, type, n, memory-node type."""
        cluster = self.cluster
        memory = cluster.memory.instance.name if cluster.memory else ""
        return (cluster.architecture, cluster.gpu.name, cluster.gpu_count, memory)


def rank(choices: Sequence[Choice], top: int) -> list[Choice]:
    """Order plans: highest value first; among equals the cheaper, then fewer memory nodes, then names."""
    left = list(choices)
    ranked: list[Choice] = []
    while left and len(ranked) < top:
        floor = tie_floor(max(c.value for c in left))
        best = min((c for c in left if c.value >= floor), key=lambda c: (c.price, c.memory_count, c.names))
        ranked.append(best)
        left.remove(best)
    return ranked


@dataclass(frozen=True)
class Frontier:
    """All plans of several blocks, sorted by price, memory nodes, names.

    Attributes:
        block: index into ``blocks``. size: row of its sizes. memory: row of its tier, -1 without memory nodes.
        memory_count: memory nodes. price: micro-dollars an hour. value: what the policy maximises.
        best_so_far: the running maximum of ``value``.
    """

    blocks: tuple[Block, ...]
    block: IntArray
    size: IntArray
    memory: IntArray
    memory_count: IntArray
    price: IntArray
    value: FloatArray
    best_so_far: FloatArray

    @classmethod
    def build(cls, blocks: Sequence[Block], top: int = 1) -> Frontier:
        """Enumerate.

        Args:
            blocks: one for each architecture, in the order of their names.
            top: how many plans will be asked for at once; each size keeps its ``top`` cheapest memory tiers.
        """
        parts = [_plans(block, top) for block in blocks]
        block = np.repeat(np.arange(len(blocks)), [len(p.size) for p in parts])
        size, memory, memory_count, price = (
            np.concatenate([np.zeros(0, dtype=np.int64), *(getattr(p, name) for p in parts)])
            for name in ("size", "memory", "memory_count", "price")
        )
        values = [b.scoring.values(p.size, p.price) for b, p in zip(blocks, parts, strict=True)]
        value = np.concatenate([np.zeros(0), *values])
        # Blocks and tiers stand in the order of their names: indices sort like names.
        places = [b.sizes.order[p.size] for b, p in zip(blocks, parts, strict=True)]
        named = np.concatenate([np.zeros(0, dtype=np.int64), *places])
        order = np.lexsort((memory, named, block, memory_count, price))
        return cls(
            blocks=tuple(blocks),
            block=block[order],
            size=size[order],
            memory=memory[order],
            memory_count=memory_count[order],
            price=price[order],
            value=value[order],
            best_so_far=np.maximum.accumulate(value[order]),
        )

    def __len__(self) -> int:
        """Number of plans."""
        return len(self.price)

    def choice(self, row: int) -> Choice:
        """One plan."""
        memory = int(self.memory[row])
        return Choice(
            self.blocks[int(self.block[row])],
            int(self.size[row]),
            None if memory < 0 else memory,
            int(self.memory_count[row]),
            int(self.price[row]),
            float(self.value[row]),
        )

    def affordable(self, budget: int) -> int:
        """How many plans cost at most ``budget`` micro-dollars an hour; they are the first ones."""
        return int(np.searchsorted(self.price, budget, side="right"))

    def best(self, budget: int) -> Choice | None:
        """The best plan within a budget, None when nothing is feasible."""
        within = self.affordable(budget)
        if not within:
            return None
        floor = tie_floor(float(self.best_so_far[within - 1]))
        # The first plan, in the order of prices, that is as good as the best: the running maximum never falls.
        return self.choice(int(np.searchsorted(self.best_so_far, floor, side="left")))

    def top(self, budget: int, count: int) -> list[Choice]:
        """The best ``count`` plans within a budget, in order; at most as many as the frontier was built for."""
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
        """The cheapest plan of all, None when no budget makes anything feasible."""
        return self.choice(0) if len(self) else None

    def cheapest_of_each_type(self) -> dict[str, int]:
        """The lowest price of any plan with each GPU type, micro-dollars an hour, by the type's name."""
        prices: dict[str, int] = {}
        for index, block in enumerate(self.blocks):
            rows = np.flatnonzero(self.block == index)
            types, first = np.unique(block.sizes.type_index[self.size[rows]], return_index=True)
            for t, row in zip(types.tolist(), rows[first].tolist(), strict=True):
                price, name = int(self.price[row]), block.sizes.types[t].name
                prices[name] = min(price, prices.get(name, price))
        return prices

    def next_change(self, budget: int) -> Choice | None:
        """The plan at the next higher budget for which the best plan has a better value, None when there is none."""
        now = self.best(budget)
        bar = -np.inf if now is None else now.value + abs(now.value) * TIE
        row = int(np.searchsorted(self.best_so_far, bar, side="right"))
        return self.best(int(self.price[row])) if row < len(self) else None


@dataclass(frozen=True)
class _Plans:
    """Plans of one block by column: see :class:`Frontier`."""

    size: IntArray
    memory: IntArray
    memory_count: IntArray
    price: IntArray


def _plans(block: Block, top: int) -> _Plans:
    """Each size with each of the memory tiers that are worth knowing."""
    sizes = block.sizes
    if block.architecture.tiered:
        plans = _with_cheapest_tiers(sizes, block.tier, top)
        kept = plans.price <= sizes.most_usd[plans.size]
        return _Plans(*(getattr(plans, f.name)[kept] for f in fields(plans)))
    rows = np.arange(len(sizes), dtype=np.int64)
    rows = rows[sizes.price <= sizes.most_usd]
    return _Plans(rows, np.full_like(rows, -1), np.zeros_like(rows), sizes.price[rows])


def useful_tier(tier: MemoryTier, top: int) -> BoolArray:
    """Memory-node types that fewer than ``top`` others beat in price, n_sat, quota and zones at once."""
    # Memory is no column: all types of a tier have enough of it (eq. 6), and more is worth nothing.
    columns = [price_order(tier.price), -tier.n_sat, -tier.max_count]
    if tier.offers_differ:
        columns += [-zone.astype(np.int64) for zone in np.unique(tier.sold, axis=1).T]
    return skyband(np.column_stack(columns), top)


def _with_cheapest_tiers(sizes: Sizes, tier: MemoryTier, top: int) -> _Plans:
    """Each size with its ``top`` cheapest memory tiers."""
    if not len(sizes) or not len(tier):
        none = np.zeros(0, dtype=np.int64)
        return _Plans(none, none, none, none)
    useful = useful_tier(tier, top)
    kept, small = np.flatnonzero(useful), tier.take(useful)
    # What a tier costs depends on n, on the senders' n_sat and on what is sold there: each such key is served once.
    offered, offers = np.unique(small.offered, axis=1, return_inverse=True)
    base, columns = int(sizes.n_sat.max()) + 1, offered.shape[1]
    row_offers = offers.reshape(-1)[sizes.offers]
    keys, pair = np.unique((sizes.count * base + sizes.n_sat) * columns + row_offers, return_inverse=True)
    counts, n_sat = np.divmod(keys // columns, base)
    needed = small.needed(counts, n_sat)
    never = np.iinfo(np.int64).max
    cost = np.where((needed <= small.max_count) & offered.T[keys % columns], needed * small.price, never)
    order = np.lexsort((np.broadcast_to(np.arange(len(small)), cost.shape), needed, cost), axis=-1)[:, :top]
    best_cost = np.take_along_axis(cost, order, axis=1)[pair]
    feasible = best_cost < never
    size = np.broadcast_to(np.arange(len(sizes), dtype=np.int64)[:, None], feasible.shape)[feasible]
    return _Plans(
        size=size,
        memory=kept[order][pair][feasible],
        memory_count=np.take_along_axis(needed, order, axis=1)[pair][feasible],
        price=best_cost[feasible] + sizes.price[size],
    )
