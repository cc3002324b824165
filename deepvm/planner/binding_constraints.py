"""What stops a larger cluster."""

from __future__ import annotations

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
from deepvm.planner.request import MOST_NODES, PlanRequest
from deepvm.planner.scoring import TIE, scoring
from deepvm.planner.search.frontier import Choice


def binding(choice: Choice, candidates: Candidates, request: PlanRequest) -> tuple[Binding, ...]:
    """The constraints that stop the next larger and better cluster of the same types.

    The next larger cluster is the one with the fewest additional VMs that has a better value. It is looked for without
    any limit, and every limit that it breaks is binding. Saturation is binding when it is what makes that cluster need
    another memory node, and that node is what breaks a limit. Empty when the larger cluster is allowed (then it ranks
    higher) or when no cluster of up to ``MOST_NODES`` VMs is better.
    """
    now = choice.cluster
    sizes = _all_sizes(choice, candidates)
    sizes = sizes if candidates.work is None else sizes.take(np.isfinite(sizes.total_s))
    rows = np.arange(len(sizes), dtype=np.int64)
    price, nodes = sizes.price.copy(), np.zeros(len(sizes), dtype=np.int64)
    if choice.memory is not None:
        one = choice.block.tier.take(np.arange(len(choice.block.tier)) == choice.memory)
        nodes = one.needed(sizes.count, sizes.n_sat)[:, 0]
        price += nodes * one.price[0]
    values = scoring(request, sizes).values(rows, price)
    # Compared with the value of the same cluster among these sizes: some policies' values are places in an order.
    value = float(values[int(np.flatnonzero(sizes.count == now.gpu_count)[0])])
    better = (sizes.count > now.gpu_count) & (values > value + abs(value) * TIE)
    if not better.any():
        return _endless(choice, candidates, request)
    row = int(np.argmax(better))
    count, spot, on_demand = int(sizes.count[row]), int(sizes.spot[row]), int(sizes.on_demand[row])
    broken = _limits(now.gpu, spot, on_demand, int(price[row]), candidates, request, now.gpu_count)
    memory, more = now.memory, int(nodes[row])
    if memory is not None:
        broken += _quota(memory.instance, Market.ON_DEMAND, more, candidates)
        if broken and more > memory.count:
            fewer = int(price[row]) - (more - memory.count) * memory.micro_usd_per_hour // memory.count
            held = _limits(now.gpu, spot, on_demand, fewer, candidates, request, now.gpu_count)
            if len(held) < len(broken):
                pair = min(int(choice.block.tier.n_sat[choice.memory or 0]), int(sizes.n_sat[row]))
                reason = f"{count} senders need {more} memory nodes, not {memory.count} (n/m < {pair})"
                broken.append(Binding("saturation", reason))
    broken += _job(f"{count} x {now.gpu.name}", sizes, row, int(price[row]), request)
    order = (*choice.block.architecture.constraints, "max-nodes", "deadline", "total-budget")
    return tuple(sorted(broken, key=lambda b: order.index(b.constraint)))


def _all_sizes(choice: Choice, candidates: Candidates) -> Sizes:
    """The sizes of the chosen type in its zone without quotas, up to the most VMs that can be asked for."""
    chosen = choice.cluster.gpu
    gpu = next(g for g in candidates.gpus if g.instance == chosen)
    scaling = scaling_factor(gpu.curve, np.arange(1, MOST_NODES + 2, dtype=np.float64))
    free = replace(candidates, gpus=(replace(gpu, scaling=scaling),), quotas=(), max_nodes=MOST_NODES + 1)
    return free.sizes(choice.block.architecture)


def _endless(choice: Choice, candidates: Candidates, request: PlanRequest) -> tuple[Binding, ...]:
    """Whether a larger cluster would train faster, if it were not stopped so often that the job never ends."""
    now, work = choice.cluster, candidates.work
    if work is None or request.needs_work:
        return ()
    sizes = _all_sizes(choice, candidates)
    faster = (sizes.count > now.gpu_count) & (sizes.throughput > float(choice.block.sizes.throughput[choice.size]))
    endless = np.flatnonzero(faster & ~np.isfinite(sizes.total_s) & (sizes.price <= request.budget_micro_usd))
    if not len(endless):
        return ()
    row = int(endless[0])
    each = format_seconds(work.life_s(now.gpu) / int(sizes.spot[row]))
    reason = f"{int(sizes.count[row])} x {now.gpu.name} would be stopped each {each}, and the job would never end"
    return (Binding("preemptions", reason),)


def _limits(
    gpu: InstanceType,
    spot: int,
    on_demand: int,
    price: int,
    candidates: Candidates,
    request: PlanRequest,
    smaller: int,
) -> list[Binding]:
    """Budget, quotas and size that a cluster breaks, the memory nodes' quota aside."""
    broken, count = [], spot + on_demand
    if price > request.budget_micro_usd:
        over = Decimal(price) / MICRO_USD - request.budget
        jump = ", the next number that is better," if count > smaller + 1 else ""
        reason = f"{count} x {gpu.name}{jump} would cost {format_usd(price)} $/h, {format_usd(over)} over the budget"
        broken.append(Binding("budget", reason))
    if count > request.max_nodes:
        broken.append(Binding("max-nodes", f"{count} VMs would train; the limit is {request.max_nodes}"))
    broken += _quota(gpu, Market.SPOT, spot, candidates)
    broken += _quota(gpu, Market.ON_DEMAND, on_demand, candidates)
    return broken


def _job(what: str, sizes: Sizes, row: int, price: int, request: PlanRequest) -> list[Binding]:
    """What a size at a price breaks of what the user's job may take."""
    work, broken = request.work, []
    total_s, billed_s = float(sizes.total_s[row]), float(sizes.billed_s[row])
    if work is not None and work.deadline_s is not None and total_s > work.deadline_s:
        reason = f"{what} would be expected to take {format_seconds(total_s)}"
        broken.append(Binding("deadline", reason))
    if work is not None and work.total_budget is not None:
        bill = billed_s / 3600 * price / MICRO_USD
        if bill > work.total_budget:
            broken.append(Binding("total-budget", f"{what} would be expected to cost {bill:.2f} $ in all"))
    return broken


def _quota(instance: InstanceType, market: Market, count: int, candidates: Candidates) -> list[Binding]:
    limit = quota_limit(candidates.quotas, instance.quota_family, market)
    if limit is None or count * instance.vcpus <= limit:
        return []
    return [Binding("quota", quota_too_small(candidates.quotas, instance, market, count))]
