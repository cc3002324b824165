"""Why nothing is feasible, and what to do about it."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.cluster.prices import IMPLAUSIBLE
from deepvm.core.spelling import joined, listed
from deepvm.core.units import MICRO_USD, MOST_USD, as_budget, counted, format_bytes, format_seconds
from deepvm.planner.candidates import Candidates, gather, zone_ids
from deepvm.planner.columns import REGISTRY, Architecture, MemoryNodeTable
from deepvm.planner.ranking import most_valuable
from deepvm.planner.rejections import UNLIMITED
from deepvm.planner.request import Objective, PolicyName
from deepvm.planner.search.enumeration import Choice
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload

_HIGHER_QUOTA = "ask the provider for a higher quota, or plan without quotas"


@dataclass(frozen=True)
class Infeasible:
    """Why a request has no answer, with the figures, and what to change."""

    constraint: str  # as of a rejection, zone, deadline, total-budget, or types: none can be used
    reason: str
    advice: str

    @property
    def sentence(self) -> str:
        return f"{self.reason[:1].upper()}{self.reason[1:]}. To change that: {self.advice}."


def infeasible(candidates: Candidates, cheapest: Choice | None) -> Infeasible:
    """The first constraint that rules out everything; ``cheapest``: at any budget, if any."""
    limited = _job_limits(candidates, cheapest)
    if limited is None and cheapest is None:
        limited = _never_trains(candidates)
    if limited is not None:
        return limited
    request = candidates.request
    if cheapest is not None:
        besides = cheapest.price - cheapest.cluster.micro_usd_per_hour
        parts = str(cheapest.cluster)
        if besides:
            parts += f"; ${as_budget(besides)}/h of it for costs besides VMs"
        reason = (
            f"nothing is feasible within ${request.budget.normalize():f}/h: the cheapest feasible"
            f" cluster costs ${as_budget(cheapest.price)}/h{request.in_all} ({parts})"
        )
        cures = ["raise the budget", *_cheaper_methods(candidates)]
        if 2 * besides > cheapest.price:
            cures.insert(0, "ask for less besides VMs (--disk, --bucket, --nat)")
        return Infeasible("budget", reason, ", or ".join(cures))
    if not candidates.architectures:
        known = " or ".join(a.name for a in REGISTRY.values() if a.known_to_baselines)
        reason = f"policy {request.policy.value} considers only {known} clusters"
        advice = f"allow the architecture {known}, or choose another policy"
        return Infeasible("architecture", reason, advice)
    if not candidates.gpus:
        return _no_gpu(candidates)
    served = [
        a
        for a in candidates.architectures
        if _possible(a, candidates) and (len(candidates.tier) or not a.tiered)
    ]
    if not served:
        return _no_memory_node(candidates)
    least = min(served, key=lambda a: a.smallest_count)
    trains = f"a {least.name} cluster trains on at least {least.smallest_count} VMs"
    if least.smallest_count > request.max_nodes:
        reason = f"{trains}; the limit is {request.max_nodes}"
        return Infeasible("max-nodes", reason, f"allow at least {least.smallest_count} nodes")
    roomy = [a for a in served if a.smallest_count <= request.max_nodes]
    apart = [
        a
        for a in roomy
        if a.tiered and not candidates.tier.offered[:, candidates.sizes(a).memory_set].any()
    ]
    if len(apart) == len(roomy) and all(len(candidates.sizes(a)) for a in apart):
        zones = ", ".join(sorted({z for g in candidates.gpus for z in zone_ids(g.instance)}))
        reason = f"no memory node is offered in a zone that has the types that train: {zones}"
        advice = "choose another zone, or allow other memory nodes or architectures"
        return Infeasible("zone", reason, advice)
    return _without_quotas(replace(candidates, architectures=tuple(roomy)), trains)


def _without_quotas(candidates: Candidates, trains: str) -> Infeasible:
    """What forbids all clusters even without quotas, else the quotas that some would need."""
    tier = candidates.tier
    rule = candidates.catalog.memory_nodes
    free = candidates.asked(objective=Objective.THROUGHPUT, work=None, quotas=())
    free = replace(free, tier=_with_limit(tier, rule.most_nodes))
    plans = free.plans()
    blocks = [b for b in plans.blocks if len(b.sizes)]
    if not blocks:
        reason = f"{trains}, and no type trains on so many"
        return Infeasible("architecture", reason, "allow other architectures")
    if len(plans):
        # Each part alone is within its quota (else it would not be a candidate), but not together.
        needs = []
        for index in sorted(set(plans.block.tolist())):
            cluster = plans.only(plans.block == index).choice(0).cluster
            parts = [
                f"{g.count * g.instance.vcpus} {g.market.value} vCPUs of {g.instance.quota_family}"
                for g in cluster.groups
            ]
            needs.append(f"{' and '.join(parts)} for {cluster.architecture}")
        reason = f"the quotas allow no cluster: they must cover {', or '.join(needs)}"
        return Infeasible("quota", reason, _HIGHER_QUOTA)
    sizes = min((b.sizes for b in blocks), key=lambda s: int(s.count.min()))
    row = int(np.argmin(sizes.count))
    counts = tier.needed(sizes.count[[row]], sizes.n_sat[[row]])[0]
    reason = (
        f"{sizes.count[row]} x {sizes.types[sizes.type_index[row]].name}, the fewest that train,"
        f" would need {counts.min()} memory nodes; a checkpoint is split over at most"
        f" {rule.most_nodes}"
    )
    advice = "allow other architectures, or memory nodes with a faster network"
    return Infeasible("saturation", reason, advice)


@lru_cache(maxsize=2)
def _with_limit(tier: MemoryNodeTable, most: int | None) -> MemoryNodeTable:
    """The table without quotas; cached, because each rejected type asks for it."""
    return replace(tier, max_count=np.full(len(tier), most or UNLIMITED, dtype=np.int64))


def _job_limits(candidates: Candidates, cheapest: Choice | None) -> Infeasible | None:
    request = candidates.request
    work = request.work
    if work is None:
        return None
    instead = ""
    if cheapest is not None:
        instead = f", or pay at least ${as_budget(cheapest.price)}/h"
    quickly = candidates.asked(
        policy=PolicyName.DEEPVM,
        objective=Objective.MAKESPAN,
        work=replace(work, deadline_s=None, total_budget=None),
    )
    within = f"for at most ${request.budget.normalize():f}/h"
    if request.derives_budget:
        within = "at any price"
    budget = request.budget_micro_usd
    plans = quickly.plans()
    fastest = most_valuable(plans, quickly.request, budget)
    if fastest is None and cheapest is None:  # more money alone would not help
        within = "at any price"
        budget = MOST_USD * MICRO_USD
        fastest = most_valuable(plans, quickly.request, budget)
    if fastest is None:
        if cheapest is not None or not _exists(candidates, work=None):
            return None
        life_s = max(work.life_s(g.instance) for g in candidates.gpus)
        return _preempted(f"the job {work.job.name} never ends on any cluster", life_s)
    takes = 3600 / fastest.value
    if work.deadline_s is not None and takes > work.deadline_s:
        reason = (
            f"nothing is expected to end within {format_seconds(work.deadline_s)}: the fastest"
            f" cluster {within}, {fastest.cluster}, takes {format_seconds(takes, up=True)}"
        )
        return Infeasible("deadline", reason, f"allow more time{instead}")
    cheaply = quickly.asked(objective=Objective.TOTAL_COST, work=replace(work, total_budget=None))
    thrifty = cheaply.plans().best(budget)
    if thrifty is None or work.total_budget is None:
        return None
    that = more_time = ""
    if work.deadline_s is not None:
        that = " that ends in time"
        more_time = " or allow more time"
    bill = math.ceil(-thrifty.value / MICRO_USD * 100) / 100
    reason = (
        f"no cluster is expected to finish the job for ${work.total_budget.normalize():f} or less:"
        f" the cheapest{that} {within}, {thrifty.cluster}, costs ${bill:.2f} in all"
    )
    return Infeasible("total-budget", reason, f"raise the total budget{more_time}{instead}")


def _never_trains(candidates: Candidates) -> Infeasible | None:
    request = candidates.request
    if request.training is None or not candidates.gpus:
        return None
    if not _exists(candidates, work=None, life_s=math.inf):
        return None
    from deepvm.planner.recovery import lives_of

    life_s = max(lives_of(g.instance, request).usual_s for g in candidates.gpus)
    return _preempted(f"no cluster ever trains {request.training.workload.model.name}", life_s)


def _exists(candidates: Candidates, **changes: Any) -> bool:
    plain = candidates.asked(objective=Objective.THROUGHPUT, policy=PolicyName.DEEPVM, **changes)
    return len(plain.plans()) > 0


def _preempted(claim: str, life_s: float) -> Infeasible:
    reason = (
        f"{claim}: a spot VM lasts {format_seconds(life_s)} on average, and restarts, saves and"
        " lost work take nearly all of that"
    )
    return Infeasible(
        "preemptions", reason, "plan with a longer --mttp, save more often, or rent VMs on demand"
    )


def _no_gpu(candidates: Candidates) -> Infeasible:
    catalog = candidates.catalog
    request = candidates.request
    rejected = {r.instance_type: r.reason for r in candidates.rejections}
    types = [i for i in catalog if i.gpu is not None and i.name in rejected]
    reasons = {rejected[i.name] for i in types}
    constraint = next((name for why, name in _CONSTRAINTS.items() if why in reasons), "types")
    cures = [cure for why, cure in _CURES.items() if why in reasons]
    refused = sum(
        n for o in catalog.provenance.origins for why, n in o.refused if why == IMPLAUSIBLE
    )
    if constraint == "gpu-memory" and request.training is not None:
        cures = list(_more_memory(request.training.workload, candidates))
    elif refused and reasons & {"no-spot-price", "no-on-demand-price"}:
        cures = [
            "use '--prices snapshot', or '--catalog' with a file of yours, where any price counts"
            f" (refused as implausible: {counted(refused, 'price')})"
        ]
    elif any(rejected[i.name] == "unprofiled" and i.eflops and i.eflops_basis for i in types):
        cures.insert(0, "allow the estimates of these types with --estimates")
    reason = f"no GPU type can be used: {_grouped(candidates, gpu=True) or 'the catalog has none'}"
    advice = ", or ".join(cures) or "use a catalog that has GPU types"
    return Infeasible(constraint, reason, advice)


def _cheaper_methods(candidates: Candidates) -> Iterator[str]:
    """How to train the model within the budget without such large GPUs, and from what price on."""
    from deepvm.core.training.workload import Method

    request = candidates.request
    training = request.training
    if training is None or training.workload.model.transformer is None:
        return
    workload = training.workload
    if workload.method is Method.LORA:
        return
    cheaper = {Method.FSDP: "split it over GPUs with", Method.LORA: "train less of it with"}
    cheaper.pop(workload.method, None)
    for method, how in cheaper.items():
        other = replace(workload, method=method)
        size = request.checkpoint_bytes
        if size == workload.saved_bytes:
            size = other.saved_bytes
        trained = replace(
            request,
            objective=Objective.THROUGHPUT,
            policy=PolicyName.DEEPVM,
            training=replace(training, workload=other),
            checkpoint_bytes=size,
        )
        plan = gather(candidates.catalog, trained).plans().cheapest()
        if plan is not None and plan.price <= request.budget_micro_usd:
            yield f"{how} --method {method.value} (from ${as_budget(plan.price)}/h)"


def _more_memory(workload: "Workload", candidates: Candidates) -> Iterator[str]:
    from deepvm.core.training.workload import Method, Scaling

    details = " ".join(r.detail for r in candidates.rejections)
    if workload.scaling is Scaling.STRONG and "no sample for each" in details:
        yield "give a larger --global-batch"
    if "a shorter --seq" in details:
        yield "give a shorter --seq"
    if workload.method is Method.DDP:
        yield "split it over all GPUs with --method fsdp"
    elif "it fits on" in details:
        yield f"allow more than {candidates.request.max_nodes} nodes"
    if workload.method is not Method.LORA and workload.model.transformer is not None:
        yield "train less of it with --method lora"
    yield "allow GPUs with more memory"


# The constraint to report for a reason that rejects all GPU types, the first that applies
_CONSTRAINTS = {
    "quota": "quota",
    "gpu-memory": "gpu-memory",
    "global-batch": "gpu-memory",
    "not-scaling": "max-nodes",
}

# In the order of the advice; what users excluded on purpose comes last.
_CURES = {
    "quota": _HIGHER_QUOTA,
    "not-scaling": "allow more nodes, or use another speed-up curve",
    "unprofiled": "measure their eFLOPS on such VMs with 'deepvm profile eflops --save'",
    "no-curve": (
        "give these types a speed-up curve of this kind ('speedups' in the catalog), or ask for"
        " another kind"
    ),
    "no-spot-price": "give these types a spot price",
    "no-on-demand-price": "allow another architecture, or give these types an on-demand price",
    "network-unknown": "allow another architecture, or give these types their network_gbps",
    "speed-unknown": (
        "allow GPUs with published speeds ('deepvm performance check'), or another --precision"
    ),
    "no-wheels": "build PyTorch for these GPUs and name them with --gpu",
    "excluded": "allow more types",
}
_PHRASES = {
    "unprofiled": "without measured eFLOPS",
    "unusable": "of a kind that cannot train",
    "no-wheels": "not supported by PyTorch's wheels",
    "burstable": "burstable",
    "previous-generation": "of a previous generation",
    "vcpus": "with too few vCPUs",
    "no-curve": "without such a speed-up curve",
    "no-spot-price": "without a spot price",
    "no-on-demand-price": "without an on-demand price",
    "network-unknown": "without a known network bandwidth",
    "not-scaling": "not scaling at all up to this number of nodes",
    "memory": "with too little memory",
    "excluded": "left out by your options",
}
_PHRASES_SHOWN = 4


def _no_memory_node(candidates: Candidates) -> Infeasible:
    catalog = candidates.catalog
    request = candidates.request
    rule = catalog.memory_nodes
    rejected = [(catalog[r.instance_type], r.reason) for r in candidates.rejections]
    small = [i for i, why in rejected if why == "memory"]
    constraint = "memory"
    groups = _grouped(candidates, gpu=False) or "the catalog has no CPU type"
    reason = f"no type can be a memory node: {groups}"
    advice = "use a catalog with CPU types"
    if any(i.gpu is None and why == "quota" for i, why in rejected):  # these have enough memory
        constraint = "quota"
        advice = _HIGHER_QUOTA
    elif small:
        biggest = max(small, key=lambda i: i.memory_bytes or 0)
        fits = format_bytes(rule.largest_checkpoint(biggest.memory_bytes or 0, request.buffers))
        nodes = "memory node holds"
        if rule.most_nodes is not None:
            nodes = f"{rule.most_nodes} memory nodes together hold"
        reason = (
            f"no {nodes} {request.held} (eq. 6): the largest, {biggest.name}, has"
            f" {biggest.memory_gib or 0:g} GiB, enough for checkpoints up to {fits}"
        )
        advice = "lower the checkpoint size or the number of buffers"
    elif request.memory_nodes or request.exclude:
        advice = "allow other memory nodes"
    others = [
        a.name
        for a in REGISTRY.values()
        if not a.tiered and a not in candidates.architectures and _possible(a, candidates)
    ]
    advice += _opt_in(candidates)
    if others:
        advice += f", or allow the architecture {joined(others, 'or')}"
    return Infeasible(constraint, reason, advice)


# Options that allow memory nodes which are not used by default, by the reason that left them out.
BY_NAME = "--memory-node NAME"  # allows any type
ALLOWED_BY = {
    "burstable": "--burstable",
    "previous-generation": "--generation any",
    "vcpus": BY_NAME,
}


def _opt_in(candidates: Candidates) -> str:
    """Options that allow types which could hold the checkpoints; empty if there are none."""
    request = candidates.request
    least_nodes = candidates.catalog.memory_nodes.least_nodes
    roomy = set()
    for r in candidates.rejections:
        memory = candidates.catalog[r.instance_type].memory_bytes or 0
        if least_nodes(memory, request.checkpoint_bytes, request.buffers) is not None:
            roomy.add(r.reason)
    return "".join(
        f", or allow more types with {option}" for why, option in ALLOWED_BY.items() if why in roomy
    )


def _possible(architecture: Architecture, candidates: Candidates) -> bool:
    return not all(architecture.lacks(g.instance) for g in candidates.gpus)


def _grouped(candidates: Candidates, *, gpu: bool) -> str:
    """Rejections of GPU or CPU types, one phrase per reason; a quota's is its smallest type's."""
    ranks = {why: float(rank) for rank, why in enumerate(_CURES)}
    rejected = [(candidates.catalog[r.instance_type], r) for r in candidates.rejections]
    rejected.sort(key=lambda pair: (ranks.get(pair[1].reason, len(ranks) - 1.5), pair[0].vcpus))
    groups: dict[str, list[str]] = {}
    phrases: dict[str, str] = {}
    models = sorted({i.gpu.name for i, r in rejected if i.gpu and r.reason == "unprofiled"})
    for instance, r in rejected:
        if (instance.gpu is not None) != gpu:
            continue
        if r.reason == "quota":
            key = instance.quota_family
        else:
            key = _PHRASES.get(r.reason, r.detail)
        groups.setdefault(key, []).append(instance.name)
        phrases.setdefault(key, r.detail if r.reason == "quota" else key)
        if r.reason == "unprofiled" and models:
            phrases[key] = f"{key} ({listed(models)})"  # to be measured
    parts = [f"{phrases[key]}: {listed(names)}" for key, names in groups.items()]
    if len(parts) > _PHRASES_SHOWN:
        parts[_PHRASES_SHOWN:] = [f"and {counted(len(parts) - _PHRASES_SHOWN, 'more reason')}"]
    return "; ".join(parts)
