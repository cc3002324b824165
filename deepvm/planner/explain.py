"""Reasons: what stops a larger cluster, why nothing is feasible, why a type was not chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

from deepvm.core.cluster import Binding, Recommendation, Rejection
from deepvm.core.instances import Catalog, InstanceType, Market, quota_limit
from deepvm.core.speedup import scaling_factor
from deepvm.core.units import MICRO_USD, format_bytes, usd
from deepvm.errors import RequestError
from deepvm.planner.architectures import Architecture
from deepvm.planner.build import blocks_of, describe
from deepvm.planner.candidates import Candidates, Sizes, gather, missing_for
from deepvm.planner.frontier import Block, Choice, Frontier
from deepvm.planner.policies import TIE, Scoring, architectures_of, scoring, tie_floor
from deepvm.planner.request import PlanRequest, PolicyName


@dataclass(frozen=True)
class WhyNot:
    """The answer to "why not this type?".

    Attributes:
        verdict: one sentence.
        best: the best cluster with this type within the budget, None when there is none.
        gap: how far its value lies below the winner's, as a share of the winner's; None without ``best``, and under
            Performance-First, whose value is an order.
        matches_at: the lowest budget, $/h, at which a cluster with this type would equal the winner, None if never.
        rejection: why the type is in no feasible cluster at all, None when it is.
    """

    instance_type: str
    verdict: str
    best: Recommendation | None = None
    gap: float | None = None
    matches_at: Decimal | None = None
    rejection: Rejection | None = None


def binding(choice: Choice, candidates: Candidates, request: PlanRequest) -> tuple[Binding, ...]:
    """The constraints that stop the next larger and better cluster of the same types.

    The next larger cluster is the one with the fewest additional VMs that has a better value. It is looked for without
    any limit, and every limit that it breaks is binding. Saturation is binding when it is what makes that cluster need
    another memory node, and that node is what breaks a limit. Empty when the larger cluster is allowed (then it ranks
    higher) or when no larger one is better.
    """
    now = choice.cluster
    sizes = _all_sizes(choice, candidates, request)
    scores = scoring(request, sizes)
    rows = np.arange(len(sizes), dtype=np.int64)
    price, nodes = sizes.price.copy(), np.zeros(len(sizes), dtype=np.int64)
    if choice.memory is not None:
        one = choice.block.tier.take(np.arange(len(choice.block.tier)) == choice.memory)
        nodes = one.needed(sizes.count, sizes.n_sat)[:, 0]
        price += nodes * one.price[0]
    # Performance-First counts types from the slowest that is considered, so the value is taken anew among these sizes.
    values = scores.values(rows, price)
    value = values[int(np.flatnonzero(sizes.count == now.gpu_count)[0])]
    better = (sizes.count > now.gpu_count) & (values > value + abs(value) * TIE)
    if not better.any():
        return ()
    row = int(np.argmax(better))
    count, spot, on_demand = int(sizes.count[row]), int(sizes.spot[row]), int(sizes.on_demand[row])
    broken = _limits(now.gpu, spot, on_demand, int(price[row]), candidates, request)
    if count > request.max_nodes:
        broken.append(Binding("max-nodes", f"{count} VMs would train; the limit is {request.max_nodes}"))
    memory, more = now.memory, int(nodes[row])
    if memory is not None:
        broken += _quota(memory.instance, Market.ON_DEMAND, more, candidates)
        if broken and more > memory.count:
            fewer = int(price[row]) - (more - memory.count) * memory.micro_usd_per_hour // memory.count
            held = _limits(now.gpu, spot, on_demand, fewer, candidates, request)
            if len(held) < len(broken):
                pair = min(int(choice.block.tier.n_sat[choice.memory or 0]), int(sizes.n_sat[row]))
                reason = f"{count} senders need {more} memory nodes, not {memory.count} (n/m < {pair})"
                broken.append(Binding("saturation", reason))
    order = (*choice.block.architecture.constraints, "max-nodes")
    return tuple(sorted(broken, key=lambda b: order.index(b.constraint)))


def _all_sizes(choice: Choice, candidates: Candidates, request: PlanRequest) -> Sizes:
    """The sizes of the chosen type without quotas and one beyond ``max_nodes``."""
    name = choice.cluster.gpu.name
    gpu = next(g for g in candidates.gpus if g.instance.name == name)
    scaling = scaling_factor(gpu.curve, np.arange(1, request.max_nodes + 2, dtype=np.float64))
    free = replace(
        candidates, gpus=(replace(gpu, scaling=scaling),), quotas=(), max_nodes=request.max_nodes + 1, rejections=()
    )
    return free.sizes(choice.block.architecture)


def _limits(
    gpu: InstanceType, spot: int, on_demand: int, price: int, candidates: Candidates, request: PlanRequest
) -> list[Binding]:
    """Budget and quotas that a cluster breaks, memory nodes' quota aside."""
    broken = []
    if price > request.budget_micro_usd:
        over = Decimal(price) / MICRO_USD - request.budget
        reason = f"{spot + on_demand} x {gpu.name} would cost {usd(price):.4f} $/h, {over:.4f} over the budget"
        broken.append(Binding("budget", reason))
    broken += _quota(gpu, Market.SPOT, spot, candidates)
    broken += _quota(gpu, Market.ON_DEMAND, on_demand, candidates)
    return broken


def _quota(instance: InstanceType, market: Market, count: int, candidates: Candidates) -> list[Binding]:
    limit = quota_limit(candidates.quotas, instance.quota_family, market)
    needed = count * instance.vcpus
    if limit is None or needed <= limit:
        return []
    reason = (
        f"{count} x {instance.name} would need {needed} {market.value} vCPUs of {instance.quota_family}; "
        f"the quota is {limit}"
    )
    return [Binding("quota", reason)]


def infeasible_reason(
    catalog: Catalog, request: PlanRequest, candidates: Candidates, cheapest: Choice | None
) -> tuple[str, str]:
    """Why nothing is feasible: the constraint to relax, and a sentence that says by how much."""
    if cheapest is not None:
        return "budget", (
            f"nothing is feasible within {request.budget} $/h: the cheapest feasible cluster costs "
            f"{usd(cheapest.price):.4f} $/h ({cheapest.cluster})"
        )
    architectures = architectures_of(request)
    if not architectures:
        return "architecture", f"policy {request.policy.value} considers only single-anchor clusters"
    if not candidates.gpus:
        return _no_gpu_reason(candidates, catalog)
    usable = [a for a in architectures if any(not missing_for(a, g.instance) for g in candidates.gpus)]
    served = [a for a in usable if len(candidates.tier) or not a.tiered]
    if not served:
        small = [r for r in candidates.rejections if r.reason == "memory"]
        if small:
            by_name = {i.name: i for i in catalog}
            biggest = max((by_name[r.instance_type] for r in small), key=lambda i: i.memory_bytes or 0)
            fits = format_bytes((biggest.memory_bytes or 0) // request.buffers)
            return "memory", (
                f"no memory node holds {request.buffers} x {format_bytes(request.checkpoint_bytes)} (eq. 6): the "
                f"largest, {biggest.name}, has {biggest.memory_gib or 0:g} GiB, enough for checkpoints up to {fits}"
            )
        return "memory", "no type can be a memory node: " + _grouped(candidates, catalog, gpu=False)
    roomy = [a for a in served if a.smallest_count <= request.max_nodes]
    if not roomy:
        least = min(served, key=lambda a: a.smallest_count)
        return "max-nodes", (
            f"a {least.name} cluster trains on at least {least.smallest_count} VMs; the limit is {request.max_nodes}"
        )
    # Candidates exist and still no plan at any price: only the quotas of the pieces together can forbid that.
    return "quota", (
        "the quotas allow no cluster: they must cover "
        + ", or ".join(_smallest(a, candidates) for a in roomy)
        + "; see --quota"
    )


def _smallest(architecture: Architecture, candidates: Candidates) -> str:
    """What the quotas must cover for the cluster of an architecture with the fewest vCPUs that train."""
    sizes = replace(candidates, quotas=()).sizes(architecture)
    vcpus = np.array([t.vcpus for t in sizes.types], dtype=np.int64)[sizes.type_index]
    row = int(np.argmin(sizes.count * vcpus))
    gpu, tier = sizes.types[int(sizes.type_index[row])], candidates.tier
    needed = [(int(sizes.spot[row]), Market.SPOT, gpu), (int(sizes.on_demand[row]), Market.ON_DEMAND, gpu)]
    if architecture.tiered:
        nodes = tier.needed(sizes.count[[row]], sizes.n_sat[[row]])[0].tolist()
        needed += [min(zip(nodes, [Market.ON_DEMAND] * len(tier), tier.types, strict=True), key=_vcpus)]
    parts = [f"{n * t.vcpus} {market.value} vCPUs of {t.quota_family}" for n, market, t in needed if n]
    return f"{' and '.join(parts)} for {architecture.name}"


def _vcpus(group: tuple[int, Market, InstanceType]) -> int:
    return group[0] * group[2].vcpus


def _no_gpu_reason(candidates: Candidates, catalog: Catalog) -> tuple[str, str]:
    reasons = {r.reason for r in candidates.rejections if catalog[r.instance_type].gpu is not None}
    name = "quota" if reasons == {"quota"} else "types"
    return name, "no GPU type can be used: " + (_grouped(candidates, catalog, gpu=True) or "the catalogue has none")


def _grouped(candidates: Candidates, catalog: Catalog, *, gpu: bool) -> str:
    """Rejections of GPU or CPU types, one phrase for each reason."""
    groups: dict[str, list[str]] = {}
    for r in candidates.rejections:
        if (catalog[r.instance_type].gpu is not None) == gpu:
            groups.setdefault(r.detail if r.reason == "quota" else r.reason, []).append(r.instance_type)
    return "; ".join(f"{why}: {', '.join(names[:5])}{' ...' * (len(names) > 5)}" for why, names in groups.items())


def why_not(catalog: Catalog, request: PlanRequest, name: str) -> WhyNot:
    """Explain why a type is not in the best cluster, with the best cluster that has it.

    Args:
        catalog: the types and prices.
        request: what was asked for.
        name: an instance type of the catalogue.

    Raises:
        RequestError: the catalogue has no such type.
    """
    known = {i.name: i for i in catalog}
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known, n=3) or list(known)[:8]
        raise RequestError("explain", name, f"a type of catalogue {catalog.name}, such as {', '.join(near)}")
    budget, architectures = request.budget_micro_usd, architectures_of(request)
    candidates = gather(catalog, request, architectures)
    rejection = next((r for r in candidates.rejections if r.instance_type == name), None)
    if rejection is None and known[name].gpu is None and not any(a.tiered for a in architectures):
        names = " and ".join(a.name for a in architectures) or request.policy.value
        rejection = Rejection(name, "excluded", f"{names} clusters have no memory nodes")
    if rejection is not None:
        return WhyNot(name, f"{name} is not considered: {rejection.detail}", rejection=rejection)
    blocks = blocks_of(candidates, request)
    winner = Frontier.build(blocks).best(budget)
    # The same blocks with fewer rows: so values stay comparable, also those that are places in an order.
    frontier = Frontier.build([_having(b, name) for b in blocks])
    best = frontier.best(budget)
    if best is None:
        cheapest = frontier.cheapest()
        if cheapest is None:
            relax, reason = infeasible_reason(catalog, request, _only(candidates, name), None)
            return WhyNot(name, f"{name} is in no cluster: {reason}", rejection=Rejection(name, relax, reason))
        detail = f"its cheapest cluster, {cheapest.cluster}, costs {usd(cheapest.price):.4f} $/h"
        return WhyNot(name, f"{name} is beyond the budget: {detail}", rejection=Rejection(name, "budget", detail))
    found = describe(best, 1, candidates, binding(best, candidates, request))
    assert winner is not None  # the plans that have this type are some of all plans
    if best.cluster == winner.cluster:
        return WhyNot(name, f"{name} is in the best cluster", found, 0.0, Decimal(best.price) / MICRO_USD)
    gap = None
    if request.policy is not PolicyName.PERFORMANCE_FIRST:  # whose value is a place in an order, not an amount
        gap = (winner.value - best.value) / abs(winner.value)
    row = int(np.searchsorted(frontier.best_so_far, tie_floor(winner.value)))
    matches_at = Decimal(int(frontier.price[row])) / MICRO_USD if row < len(frontier) else None
    return WhyNot(name, _verdict(name, best, winner, gap, matches_at, request), found, gap, matches_at)


def _having(block: Block, name: str) -> Block:
    """The plans of a block that have a type."""
    sizes, tier = block.sizes, block.tier
    gpus = np.array([t.name == name for t in sizes.types], dtype=np.bool_)
    nodes = np.array([t.name == name for t in tier.types], dtype=np.bool_)
    if block.architecture.tiered and nodes.any():
        return replace(block, tier=tier.take(nodes))
    rows = gpus[sizes.type_index]
    scores = Scoring(block.scoring.scores[rows], block.scoring.per_dollar)
    return replace(block, sizes=sizes.take(rows), scoring=scores)


def _only(candidates: Candidates, name: str) -> Candidates:
    """The candidates with one type of GPU or of memory node."""
    gpus = tuple(g for g in candidates.gpus if g.instance.name == name)
    if gpus:
        return replace(candidates, gpus=gpus)
    return replace(candidates, tier=candidates.tier.take(np.array([t.name == name for t in candidates.tier.types])))


def _verdict(
    name: str, best: Choice, winner: Choice, gap: float | None, matches_at: Decimal | None, request: PlanRequest
) -> str:
    what = f"The best cluster with {name}, {best.cluster} at {usd(best.price):.4f} $/h,"
    if best.value >= tie_floor(winner.value):
        over = usd(best.price - winner.price)
        return f"{what} is as good as the winner and costs {over:.4f} $/h more"
    measure = {"flopp": "lower Z", "cost-per-work": "dearer work"}.get(request.objective.value, "less throughput")
    if request.policy is PolicyName.COST_FIRST:
        measure = "fewer VMs"
    share = f"{gap:.1%} {measure}" if gap is not None else "slower or fewer GPU VMs"
    if matches_at is None:
        when = f"no cluster of up to {request.max_nodes} VMs with it equals the winner"
    else:
        when = f"it would equal the winner's {usd(winner.price):.4f} $/h cluster at {matches_at:.4f} $/h"
    return f"{what} has {share}; {when}"
