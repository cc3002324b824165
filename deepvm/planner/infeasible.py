"""Why nothing is feasible, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from deepvm.core.cluster.cluster import Rejection
from deepvm.core.cluster.instances import InstanceType, Reservation
from deepvm.core.cluster.prices import IMPLAUSIBLE
from deepvm.core.spelling import joined, listed
from deepvm.core.units import MICRO_USD, MOST_USD, counted, format_bytes, format_seconds, format_usd
from deepvm.planner.architectures import REGISTRY, Architecture
from deepvm.planner.candidates import Candidates, gather, zone_ids
from deepvm.planner.columns import MemoryNodeTable
from deepvm.planner.describe import blocks_of
from deepvm.planner.ranking import most_valuable
from deepvm.planner.rejections import UNLIMITED, too_little_memory
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search.enumeration import Choice, Enumeration
from deepvm.planner.workload.laws import law_of

if TYPE_CHECKING:
    from deepvm.core.training.workload import Workload

_HIGHER_QUOTA = "ask the provider for a higher quota, or plan without quotas"


@dataclass(frozen=True)
class Infeasible:
    """Why a request has no answer, with the figures, and what to change.

    ``constraint``: ``budget``, ``quota``, ``memory``, ``gpu-memory``, ``saturation``,
    ``max-nodes``, ``architecture``, ``zone``, ``deadline``, ``total-budget``, ``preemptions`` when
    the job never ends, or ``types`` when no allowed type can be used.
    """

    constraint: str
    reason: str
    advice: str

    @property
    def sentence(self) -> str:
        """Why, and what to change."""
        return f"{self.reason[:1].upper()}{self.reason[1:]}. To change that: {self.advice}."


def infeasible(candidates: Candidates, cheapest: Choice | None) -> Infeasible:
    """The first constraint that rules out everything; ``cheapest``: at any budget, if any."""
    limited = _job_limits(candidates, cheapest)
    if limited is None and cheapest is None:
        limited = _never_trains(candidates)
    if limited is not None:
        return limited
    request = candidates.request
    architectures = candidates.architectures
    if cheapest is not None:
        vms = int(cheapest.cluster.usd_per_hour * MICRO_USD)
        besides = cheapest.price - vms
        reason = (
            f"nothing is feasible within {request.budget.normalize():f} $/h: the cheapest feasible"
            " cluster costs "
            f"{format_usd(cheapest.price)} $/h{request.in_all} ({cheapest.cluster}"
            f"{f'; {format_usd(besides)} $/h of it for what comes besides VMs' if besides else ''})"
        )
        cures = ["raise the budget", *_cheaper_methods(candidates)]
        if besides > vms:
            cures.insert(0, "ask for less besides VMs (--disk, --bucket, --nat)")
        return Infeasible("budget", reason, ", or ".join(cures))
    if not architectures:
        known = " or ".join(a.name for a in REGISTRY.values() if a.known_to_baselines)
        reason = f"policy {request.policy.value} considers only {known} clusters"
        return Infeasible(
            "architecture", reason, f"allow the architecture {known}, or choose another policy"
        )
    if not candidates.gpus:
        return _no_gpu(candidates)
    served = [
        a
        for a in architectures
        if _possible(a, candidates) and (len(candidates.tier) or not a.tiered)
    ]
    if not served:
        return _no_memory_node(candidates)
    roomy = [a for a in served if a.smallest_count <= request.max_nodes]
    if not roomy:
        least = min(served, key=lambda a: a.smallest_count)
        reason = (
            f"a {least.name} cluster trains on at least {least.smallest_count} VMs; the limit is"
            f" {request.max_nodes}"
        )
        return Infeasible("max-nodes", reason, f"allow at least {least.smallest_count} nodes")
    apart = [
        a
        for a in roomy
        if a.tiered and not candidates.tier.offered[:, candidates.sizes(a).memory_set].any()
    ]
    if len(apart) == len(roomy) and all(len(candidates.sizes(a)) for a in apart):
        zones = sorted({z for g in candidates.gpus for z in zone_ids(g.instance)})
        reason = (
            f"no memory node is offered in a zone that has the types that train: {', '.join(zones)}"
        )
        return Infeasible(
            "zone", reason, "choose another zone, or allow other memory nodes or architectures"
        )
    return _without_quotas(candidates, roomy)


def rejection_of(
    candidates: Candidates, name: str, cheapest: int | None, cluster: str = ""
) -> Rejection:
    """Why a type is in no cluster within the budget.

    ``cheapest``: price of its cheapest cluster, micro-dollars/h, None if there is none;
    ``cluster``: what that is.
    """
    request = candidates.request
    reserved = candidates.catalog[name].reserved
    if cheapest is None:
        own = candidates.only(name)
        if reserved is not None and (ends := _ends_first(own, reserved)):
            return Rejection(name, "reserved", ends)
        why = infeasible(own, None)
        return Rejection(name, why.constraint, why.reason)
    detail = (
        f"its cheapest cluster{request.within_limits}{cluster} costs {format_usd(cheapest)}"
        f" $/h{request.in_all}"
    )
    lack = lacks_memory(candidates, name)
    if lack is None:
        return Rejection(name, "budget", detail)
    return replace(lack, detail=f"{lack.detail}; {detail}")


def _ends_first(candidates: Candidates, reserved: Reservation) -> str:
    """That a pool ends before the job, in words; empty if that is not the reason."""
    if reserved.left_s is None or candidates.request.work is None:
        return ""
    took_s = [float(s) for a in candidates.architectures for s in candidates.sizes(a).total_s]
    if not took_s or min(took_s) <= reserved.left_s:
        return ""
    takes = "would never end"
    if math.isfinite(min(took_s)):
        takes = f"would take {format_seconds(min(took_s))}"
    left = format_seconds(reserved.left_s)
    return f"its pool ends at {reserved.until}, in {left}, and the job {takes}"


def lacks_memory(candidates: Candidates, name: str) -> Rejection | None:
    """What memory a type lacks, where nothing else keeps clusters with it above the budget."""
    request = candidates.request
    own = candidates.only(name)
    rule = candidates.catalog.memory_nodes
    if request.work is not None and request.work.constrained:
        return None  # how long a cluster would take whose memory is too small is unknown
    holds = candidates.catalog[name].gpu is None
    if holds:
        enough = np.maximum(own.tier.share_bytes, own.tier.needed_bytes)
        tiered = tuple(a for a in own.architectures if a.tiered)
        roomy = replace(own, architectures=tiered, tier=replace(own.tier, share_bytes=enough))
    elif request.training is None or all((g.k > 0).all() for g in own.gpus):
        return None
    else:
        plain = replace(request, objective=Objective.THROUGHPUT, work=None, training=None)
        roomy = replace(
            own, request=plain, gpus=tuple(replace(g, k=np.ones(len(g.k))) for g in own.gpus)
        )
    plan = Enumeration.build(blocks_of(roomy)).cheapest()
    if plan is None or plan.price > request.budget_micro_usd:
        return None
    if holds:
        return Rejection(name, "memory", too_little_memory(candidates.catalog[name], request, rule))
    law = law_of(own.gpus[0].curve)
    needs = "" if law is None else law.speed_of(np.array([float(plan.cluster.gpu_count)])).needs
    return Rejection(name, "gpu-memory", needs) if needs else None


def _without_quotas(candidates: Candidates, architectures: Sequence[Architecture]) -> Infeasible:
    """What forbids all clusters even without quotas, else the quotas the smallest ones need.

    Without quotas, either nothing trains on so many VMs, or versions would be split over too many
    memory nodes.
    """
    tier = candidates.tier
    rule = candidates.catalog.memory_nodes
    plain = replace(candidates.request, objective=Objective.THROUGHPUT, work=None, quotas=())
    free = replace(
        candidates,
        request=plain,
        tier=_with_limit(tier, rule.most_nodes),
        architectures=tuple(architectures),
    )
    blocks = [b for b in blocks_of(free) if len(b.sizes)]
    if not blocks:
        least = min(architectures, key=lambda a: a.smallest_count)
        reason = (
            f"a {least.name} cluster trains on at least {least.smallest_count} VMs, and no type"
            " trains on so many"
        )
        return Infeasible("architecture", reason, "allow other architectures")
    plans = Enumeration.build(blocks)
    if len(plans):
        # There are plans, and with quotas none at any price: the quotas of their parts together
        # forbid that.
        needs = ", or ".join(
            _smallest(plans.only(plans.block == index)) for index in np.unique(plans.block).tolist()
        )
        return Infeasible(
            "quota", f"the quotas allow no cluster: they must cover {needs}", _HIGHER_QUOTA
        )
    sizes = min((b.sizes for b in blocks), key=lambda s: int(s.count.min()))
    row = int(np.argmin(sizes.count))
    counts = tier.needed(sizes.count[[row]], sizes.n_sat[[row]])[0]
    reason = (
        f"{int(sizes.count[row])} x {sizes.types[int(sizes.type_index[row])].name}, the fewest that"
        f" train, would need {int(counts.min())} memory nodes; a version is split over at most"
        f" {rule.most_nodes}"
    )
    return Infeasible(
        "saturation", reason, "allow other architectures, or memory nodes with a faster network"
    )


@lru_cache(maxsize=2)
def _with_limit(tier: MemoryNodeTable, most: int | None) -> MemoryNodeTable:
    """The same table for every type that is asked about."""
    return replace(tier, max_count=np.full(len(tier), most or UNLIMITED, dtype=np.int64))


def _job_limits(candidates: Candidates, cheapest: Choice | None) -> Infeasible | None:
    """The job's limit that rules out everything; None if no cluster exists anyway."""
    request = candidates.request
    work = candidates.request.work
    if work is None:
        return None
    instead = "" if cheapest is None else f", or pay at least {format_usd(cheapest.price)} $/h"
    patient = replace(
        request, policy=PolicyName.DEEPVM, work=replace(work, deadline_s=None, total_budget=None)
    )
    quickly = replace(patient, objective=Objective.MAKESPAN)
    within = f"for at most {request.budget.normalize():f} $/h"
    budget = request.budget_micro_usd
    fastest = most_valuable(_enumeration(candidates, quickly), quickly, budget)
    if fastest is None and cheapest is None:  # more money alone would not do
        within = "at any price"
        budget = MOST_USD * MICRO_USD
        fastest = most_valuable(_enumeration(candidates, quickly), quickly, budget)
    if fastest is None:
        return None if cheapest is not None else _never_ends(candidates)
    takes = 3600 / fastest.value
    if work.deadline_s is not None and takes > work.deadline_s:
        reason = (
            f"nothing is expected to end within {format_seconds(work.deadline_s)}: the fastest"
            f" cluster {within}, {fastest.cluster}, takes {format_seconds(takes, up=True)}"
        )
        return Infeasible("deadline", reason, f"allow more time{instead}")
    in_time = replace(work, total_budget=None)
    cheaply = replace(patient, objective=Objective.TOTAL_COST, work=in_time)
    thrifty = _enumeration(candidates, cheaply).best(budget)
    if thrifty is None or work.total_budget is None:
        return None
    that = "" if work.deadline_s is None else " that ends in time"
    bill = math.ceil(-thrifty.value / MICRO_USD * 100) / 100
    reason = (
        f"no cluster is expected to finish the job for {work.total_budget.normalize():f} $ or less:"
        f" the cheapest{that} {within}, {thrifty.cluster}, costs {bill:.2f} $ in all"
    )
    return Infeasible(
        "total-budget",
        reason,
        f"raise the total budget{' or allow more time' if that else ''}{instead}",
    )


def _never_ends(candidates: Candidates) -> Infeasible | None:
    """Preemptions, if there are clusters but the job never ends on any."""
    work = candidates.request.work
    if work is None or not _exists(candidates, work=None):
        return None
    return _preempted(
        f"the job {work.job.name} never ends on any cluster",
        max(work.life_s(g.instance) for g in candidates.gpus),
        "save more often (--save-policy), or plan with a longer --mttp",
    )


def _never_trains(candidates: Candidates) -> Infeasible | None:
    """Preemptions, if they alone keep every cluster from training the model."""
    request = candidates.request
    if request.training is None or not candidates.gpus:
        return None
    if not _exists(candidates, work=None, life_s=math.inf):
        return None
    from deepvm.planner.workload.recovery import lives_of

    return _preempted(
        f"no cluster ever trains {request.training.workload.model.name}",
        max(lives_of(g.instance, request).usual_s for g in candidates.gpus),
        "plan with a longer --mttp, or rent VMs on demand",
    )


def _exists(candidates: Candidates, **changes: Any) -> bool:
    """Whether there is any cluster at any price, by throughput."""
    plain = {"objective": Objective.THROUGHPUT, "policy": PolicyName.DEEPVM, **changes}
    return len(_enumeration(candidates, replace(candidates.request, **plain))) > 0


def _preempted(what: str, life_s: float, advice: str) -> Infeasible:
    reason = (
        f"{what}: a spot VM lasts {format_seconds(life_s)} on average, and restarts, saves and lost"
        " work take nearly all of that"
    )
    return Infeasible("preemptions", reason, advice)


def _enumeration(candidates: Candidates, request: PlanRequest) -> Enumeration:
    return Enumeration.build(blocks_of(replace(candidates, request=request)))


def _no_gpu(candidates: Candidates) -> Infeasible:
    """No GPU type is left: advice to bring one back."""
    catalog = candidates.catalog
    request = candidates.request
    reasons = {r.reason for r in candidates.rejections if catalog[r.instance_type].gpu is not None}
    reason = f"no GPU type can be used: {_grouped(candidates, gpu=True) or 'the catalog has none'}"
    if "quota" in reasons:
        return Infeasible("quota", reason, _HIGHER_QUOTA)
    too_large = {"gpu-memory", "global-batch"}
    if too_large & set(reasons) and request.training is not None:
        said = " ".join(r.detail for r in candidates.rejections if r.reason in too_large)
        return Infeasible(
            "gpu-memory",
            reason,
            ", or ".join(_more_memory(request.training.workload, request, said)),
        )
    if "not-scaling" in reasons:
        advice = f"allow more than {request.max_nodes} nodes, or use another speed-up curve"
        return Infeasible("max-nodes", reason, advice)
    refused = sum(
        n for o in catalog.provenance.origins for why, n in o.refused if why == IMPLAUSIBLE
    )
    if refused and reasons & {"no-spot-price", "no-on-demand-price"}:
        cure = (
            "use '--prices snapshot', or '--catalog' with a file of yours, where any price counts"
        )
        return Infeasible(
            "types", reason, f"{cure} (refused as implausible: {counted(refused, 'price')})"
        )
    if len(candidates.architectures) < len(REGISTRY) and reasons & {
        "no-on-demand-price",
        "network-unknown",
    }:
        return Infeasible(
            "types", reason, "allow another architecture, or give these types what is missing"
        )
    rejected = [catalog[r.instance_type] for r in candidates.rejections]
    guessed = "unprofiled" in reasons and any(
        i.eflops is not None and i.eflops_basis for i in rejected
    )
    cures = (
        ["allow the estimates of these types with --estimates"]
        if guessed and not request.estimates
        else []
    )
    cures += [cure for why, cure in _CURES.items() if why in reasons]
    return Infeasible("types", reason, ", or ".join(cures) or "use a catalog that has GPU types")


def _cheaper_methods(candidates: Candidates) -> Iterator[str]:
    """How to train the model within the budget without such large GPUs, and from what price on."""
    from deepvm.core.training.workload import Method

    request = candidates.request
    workload = None if request.training is None else request.training.workload
    if request.training is None or workload is None or workload.model.transformer is None:
        return
    if workload.method is Method.LORA:
        return
    plain = replace(request, objective=Objective.THROUGHPUT, policy=PolicyName.DEEPVM)
    for how, method in (
        ("split it over GPUs with", Method.FSDP),
        ("train less of it with", Method.LORA),
    ):
        if workload.method is method:
            continue
        other = replace(workload, method=method)
        size = (
            other.saved_bytes
            if request.checkpoint_bytes == workload.saved_bytes
            else request.checkpoint_bytes
        )
        trained = replace(
            plain, training=replace(request.training, workload=other), checkpoint_bytes=size
        )
        found = Enumeration.build(blocks_of(gather(candidates.catalog, trained))).cheapest()
        if found is not None and found.price <= request.budget_micro_usd:
            yield f"{how} --method {method.value} (from {format_usd(found.price)} $/h)"


def _more_memory(workload: Workload, request: PlanRequest, said: str) -> Iterator[str]:
    """What makes a model fit into GPUs, given why it fits into none."""
    from deepvm.core.training.workload import Method, Scaling

    if workload.scaling is Scaling.STRONG and "no sample for each" in said:
        yield "give a larger --global-batch"
    if "a shorter --seq" in said:
        yield "give a shorter --seq"
    if workload.method is Method.DDP:
        yield "split it over all GPUs with --method fsdp"
    elif "it fits on" in said:
        yield f"allow more than {request.max_nodes} nodes"
    if workload.method is not Method.LORA and workload.model.transformer is not None:
        yield "train less of it with --method lora"
    yield "allow GPUs with more memory"


# What users can do alone comes first; what they excluded on purpose comes last.
_CURES = {
    "unprofiled": "measure their eFLOPS on such VMs with 'deepvm profile eflops --save'",
    "no-curve": (
        "give these types a speed-up curve of this kind ('speedups' in the catalog), or ask for"
        " another kind"
    ),
    "no-spot-price": "give these types a spot price",
    "no-on-demand-price": "give these types an on-demand price",
    "network-unknown": "give these types their network_gbps",
    "speed-unknown": (
        "allow GPUs of which speeds are published ('deepvm performance check'), or another"
        " --precision"
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
_ORDER = (
    "quota",
    "not-scaling",
    *(why for why in _CURES if why != "excluded"),
    "other",
    "excluded",
)


def _no_memory_node(candidates: Candidates) -> Infeasible:
    catalog = candidates.catalog
    request = candidates.request
    refused = [(catalog[r.instance_type], r.reason) for r in candidates.rejections]
    small = [i for i, why in refused if why == "memory"]
    others = [
        a.name
        for a in REGISTRY.values()
        if not a.tiered and a not in candidates.architectures and _possible(a, candidates)
    ]
    instead = _opt_in(candidates) + (
        f", or allow the architecture {joined(others, 'or')}" if others else ""
    )
    limited = any(i.gpu is None and why == "quota" for i, why in refused)
    if small and not limited:
        biggest = max(small, key=lambda i: i.memory_bytes or 0)
        rule = catalog.memory_nodes
        fits = format_bytes(rule.largest_checkpoint(biggest.memory_bytes or 0, request.buffers))
        none = (
            "no memory node holds"
            if rule.most_nodes is None
            else f"no {rule.most_nodes} memory nodes together hold"
        )
        reason = (
            f"{none} {request.held} (eq. 6): the largest, {biggest.name}, has"
            f" {biggest.memory_gib or 0:g} GiB, enough for checkpoints up to {fits}"
        )
        return Infeasible(
            "memory", reason, f"lower the checkpoint size or the number of buffers{instead}"
        )
    found = _grouped(candidates, gpu=False) or "the catalog has no CPU type"
    if limited:  # these have enough memory
        return Infeasible(
            "quota", f"no type can be a memory node: {found}", _HIGHER_QUOTA + instead
        )
    advice = (
        "allow other memory nodes"
        if request.memory_nodes or request.exclude
        else "use a catalog with CPU types"
    )
    return Infeasible("memory", f"no type can be a memory node: {found}", advice + instead)


# Options that allow memory nodes which are not used by default, by the reason that left them out.
BY_NAME = "--memory-node NAME"  # allows any type
ALLOWED_BY = {
    "burstable": "--burstable",
    "previous-generation": "--generation any",
    "vcpus": BY_NAME,
}


def _opt_in(candidates: Candidates) -> str:
    """Options that allow types which could hold the checkpoints; empty if there are none."""
    rule = candidates.catalog.memory_nodes
    request = candidates.request
    types = candidates.catalog.by_name

    def roomy_enough(name: str) -> bool:
        memory = types[name].memory_bytes or 0
        return rule.least_nodes(memory, request.checkpoint_bytes, request.buffers) is not None

    roomy = {r.reason for r in candidates.rejections if roomy_enough(r.instance_type)}
    return "".join(
        f", or allow more types with {option}" for why, option in ALLOWED_BY.items() if why in roomy
    )


def _possible(architecture: Architecture, candidates: Candidates) -> bool:
    return any(not architecture.lacks(g.instance) for g in candidates.gpus)


def _smallest(plans: Enumeration) -> str:
    """Quotas needed by the architecture's plan with the fewest vCPUs, trainers first."""
    size, memory, nodes, _ = plans.plans
    block = plans.blocks[int(plans.block[0])]
    trains = np.array([t.vcpus for t in block.sizes.types], dtype=np.int64)[
        block.sizes.type_index[size]
    ]
    holds = np.append(block.tier.vcpus, 0)[memory]  # the last one for -1, no memory nodes
    row = int(np.lexsort((nodes * holds, trains * block.sizes.count[size]))[0])
    groups = plans.choice(row).cluster.groups
    needed = [(g.count * g.instance.vcpus, g.market.value, g.instance.quota_family) for g in groups]
    parts = [f"{vcpus} {market} vCPUs of {family}" for vcpus, market, family in needed]
    return f"{' and '.join(parts)} for {block.architecture.name}"


def _grouped(candidates: Candidates, *, gpu: bool) -> str:
    """Rejections of GPU or CPU types, one phrase per reason; a quota's is its smallest type's."""
    groups: dict[str, list[InstanceType]] = {}
    details: dict[str, str] = {}
    for r in sorted(
        candidates.rejections,
        key=lambda r: _ORDER.index(r.reason if r.reason in _ORDER else "other"),
    ):
        instance = candidates.catalog[r.instance_type]
        if (instance.gpu is not None) == gpu:
            key = instance.quota_family if r.reason == "quota" else _PHRASES.get(r.reason, r.detail)
            group = groups.setdefault(key, [])
            if not group or (r.reason == "quota" and instance.vcpus < min(i.vcpus for i in group)):
                details[key] = r.detail if r.reason == "quota" else key
            group.append(instance)
    unprofiled = groups.get(_PHRASES["unprofiled"], [])
    models = sorted({i.gpu.name for i in unprofiled if i.gpu})  # to be measured
    if models:
        details[_PHRASES["unprofiled"]] += f" ({listed(models)})"
    phrases = [
        f"{details[key]}: {listed([i.name for i in group])}" for key, group in groups.items()
    ]
    more = (
        f"; and {counted(len(phrases) - _PHRASES_SHOWN, 'more reason')}"
        if len(phrases) > _PHRASES_SHOWN
        else ""
    )
    return "; ".join(phrases[:_PHRASES_SHOWN]) + more
