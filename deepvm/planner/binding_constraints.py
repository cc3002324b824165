"""What stops a larger cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import numpy as np

from deepvm.core.cluster.cluster import Binding
from deepvm.core.cluster.instances import InstanceType, Market, quota_limit
from deepvm.core.cluster.speedup import scaling_factor
from deepvm.core.units import MICRO_USD, format_seconds, format_usd
from deepvm.planner.candidates import Candidates
from deepvm.planner.columns import Sizes
from deepvm.planner.rejections import quota_too_small
from deepvm.planner.request import MOST_NODES
from deepvm.planner.scoring import TIE, scoring
from deepvm.planner.search.frontier import Choice

_ORDER = ("budget", "quota", "saturation", "max-nodes", "deadline", "total-budget")


def binding(choice: Choice, candidates: Candidates) -> tuple[Binding, ...]:
    """The constraints that stop the next larger and better cluster of the same types.

    The next larger cluster is the one with the fewest additional VMs that has a better value. It is looked for without
    any limit, and every limit that it breaks is binding. Saturation is binding when it is what makes that cluster need
    another memory node, and that node is what breaks a limit. Empty when the larger cluster is allowed (then it ranks
    higher) or when no cluster of up to ``MOST_NODES`` VMs is better.
    """
    now, work = choice.cluster, candidates.request.work
    everything = _all_sizes(choice, candidates)
    sizes = everything if work is None else everything.take(np.isfinite(everything.total_s))
    price, nodes = sizes.price.copy(), np.zeros(len(sizes), dtype=np.int64)
    if choice.memory is not None:
        one = choice.block.tier.take(np.array([choice.memory]))
        nodes = one.needed(sizes.count, sizes.n_sat)[:, 0]
        price += nodes * one.price[0]
    values = scoring(candidates.request, sizes).values(np.arange(len(sizes), dtype=np.int64), price)
    # Compared with the value of the same cluster among these sizes: some policies' values are places in an order.
    value = float(values[int(np.flatnonzero(sizes.count == now.gpu_count)[0])])
    better = (sizes.count > now.gpu_count) & (values > value + abs(value) * TIE)
    if not better.any():
        return tuple(_endless(choice, candidates, everything))
    row = int(np.argmax(better))
    count, micro_usd = int(sizes.count[row]), int(price[row])
    broken = list(_limits(sizes, row, micro_usd, candidates, now.gpu_count))
    memory, more = now.memory, int(nodes[row])
    if memory is not None:
        broken += _quota(memory.instance, Market.ON_DEMAND, more, candidates)
        if broken and more > memory.count:
            fewer = micro_usd - (more - memory.count) * memory.micro_usd_per_hour // memory.count
            without = list(_limits(sizes, row, fewer, candidates, now.gpu_count))
            if len(without) < len(broken):
                pair = min(int(choice.block.tier.n_sat[choice.memory or 0]), int(sizes.n_sat[row]))
                reason = f"{count} senders need {more} memory nodes, not {memory.count} (n/m < {pair})"
                broken.append(Binding("saturation", reason))
    what, total_s = f"{count} x {now.gpu.name} would be expected to", float(sizes.total_s[row])
    if work is not None and work.deadline_s is not None and total_s > work.deadline_s:
        broken.append(Binding("deadline", f"{what} take {format_seconds(total_s)}"))
    bill = float(sizes.billed_s[row]) / 3600 * micro_usd / MICRO_USD
    if work is not None and work.total_budget is not None and bill > work.total_budget:
        broken.append(Binding("total-budget", f"{what} cost {bill:.2f} $ in all"))
    return tuple(sorted(broken, key=lambda b: _ORDER.index(b.constraint)))


def _all_sizes(choice: Choice, candidates: Candidates) -> Sizes:
    """The sizes of the chosen type in its zone without quotas, up to the most VMs that can be asked for."""
    chosen = choice.cluster.gpu
    gpu = next(g for g in candidates.gpus if g.instance == chosen)
    scaling = scaling_factor(gpu.curve, np.arange(1, MOST_NODES + 2, dtype=np.float64))
    free = replace(candidates.request, quotas=(), max_nodes=MOST_NODES + 1)
    return replace(candidates, gpus=(replace(gpu, scaling=scaling),), request=free).sizes(choice.block.architecture)


def _endless(choice: Choice, candidates: Candidates, sizes: Sizes) -> Iterator[Binding]:
    """Whether a larger cluster would train faster, if it were not stopped so often that the job never ends."""
    now, request = choice.cluster, candidates.request
    if request.work is None or request.needs_work:
        return
    faster = (sizes.count > now.gpu_count) & (sizes.throughput > float(choice.block.sizes.throughput[choice.size]))
    endless = np.flatnonzero(faster & ~np.isfinite(sizes.total_s) & (sizes.price <= request.budget_micro_usd))
    if len(endless):
        row = int(endless[0])
        each = format_seconds(request.work.life_s(now.gpu) / int(sizes.spot[row]))
        reason = f"{int(sizes.count[row])} x {now.gpu.name} would be stopped each {each}, and the job would never end"
        yield Binding("preemptions", reason)


def _limits(sizes: Sizes, row: int, price: int, candidates: Candidates, smaller: int) -> Iterator[Binding]:
    """Budget, quotas and size that a size at a price breaks, the memory nodes' quota aside."""
    gpu, count, request = sizes.types[int(sizes.type_index[row])], int(sizes.count[row]), candidates.request
    if price > request.budget_micro_usd:
        over = Decimal(price) / MICRO_USD - request.budget
        jump = ", the next number that is better," if count > smaller + 1 else ""
        reason = f"{count} x {gpu.name}{jump} would cost {format_usd(price)} $/h, {format_usd(over)} over the budget"
        yield Binding("budget", reason)
    if count > request.max_nodes:
        yield Binding("max-nodes", f"{count} VMs would train; the limit is {request.max_nodes}")
    yield from _quota(gpu, Market.SPOT, int(sizes.spot[row]), candidates)
    yield from _quota(gpu, Market.ON_DEMAND, int(sizes.on_demand[row]), candidates)


def _quota(instance: InstanceType, market: Market, count: int, candidates: Candidates) -> Iterator[Binding]:
    limit = quota_limit(candidates.quotas, instance.quota_family, market)
    if limit is not None and count * instance.vcpus > limit:
        yield Binding("quota", quota_too_small(candidates.quotas, instance, market, count))
