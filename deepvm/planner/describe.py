"""From candidates to blocks to search, and from a choice to a recommendation and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.cluster.cluster import (
    BindingConstraint,
    Cluster,
    JobEstimate,
    NodeGroup,
    Prediction,
    Recommendation,
)
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.cluster.speedup import scaling_factor
from deepvm.core.units import MICRO_USD, Interval, format_seconds, format_usd
from deepvm.planner.candidates import Candidates
from deepvm.planner.columns import MemoryNodeTable, TrainingTable, law_of
from deepvm.planner.options import MOST_NODES
from deepvm.planner.rejections import quota_count, quota_too_small
from deepvm.planner.request import PlanRequest, PolicyName
from deepvm.planner.search.enumeration import TIE, Choice, scoring

if TYPE_CHECKING:
    from deepvm.core.bill import Bill
    from deepvm.core.training.speed import TrainingSpeed


def describe(
    choice: Choice,
    candidates: Candidates,
    rank: int = 1,
    binding: tuple[BindingConstraint, ...] = (),
    *,
    elsewhere: bool = False,
) -> Recommendation:
    """The recommendation of a choice; ``elsewhere``: with :attr:`Recommendation.next_zone`."""
    sizes = choice.block.sizes
    row = choice.size
    cluster = choice.cluster
    work = candidates.request.work
    count = cluster.gpu_count
    k = float(sizes.k[row])
    throughput = float(sizes.ideal_throughput[row]) * k
    gpu = cluster.gpu
    curve = choice.curve
    kind = curve.kind
    n = np.array([float(count)])
    warnings = list(_type_warnings(gpu))
    if candidates.catalog.unsure:
        warnings.append(f"{candidates.catalog.unsure}: check before you rely on it")
    if k in (0.0, 1.0) and not 0.0 <= (raw := float(curve.speedup(n)[0])) / count <= 1.0:
        warnings.append(
            f"the {kind} curve of {gpu.name} gives a speed-up of {raw:.3g} at n = {count}, held at"
            f" {k * count:g}"
        )
    prediction = None
    if (speed := choice.speed) is not None:
        warnings += [*speed.doubts(0), *_not_trusted(choice, candidates, speed)]
        kept = Interval(
            float(sizes.kept_bad[row]), float(sizes.kept[row]), float(sizes.kept_good[row])
        )
        prediction = Prediction(
            throughput=speed.interval,
            step_s=speed.step_interval,
            mfu=speed.mfu,
            source=speed.source.value,
            precision=speed.precision.value,
            batch_per_gpu=math.ceil(speed.workload.batch_on(speed.gpu_count) - 1e-9),
            micro_batch=math.ceil(float(speed.micro_batch[0]) - 1e-9),
            checkpointing=bool(speed.checkpointing[0]),
            fitted_vms=speed.fitted_vms,
            kept=kept,
            state_bytes=speed.state_bytes,
            trusted=bool(sizes.trusted[row]),
        )
    elif curve.extrapolated(n)[0]:
        warnings.append(
            f"the {kind} speed-up of {gpu.name} at n = {count} lies beyond its measurements"
        )
    both = [z for z in gpu.zones if cluster.memory and z in cluster.memory.instance.zones]
    if cluster.memory is not None and not gpu.spot_zones and 0 < len(both) < len(gpu.zones):
        offer = "offer" if len(both) > 1 else "offers"
        types = f"{gpu.name} and {cluster.memory.instance.name}"
        warnings.append(f"only {', '.join(both)} {offer} both {types}: start the cluster there")
    total_s = None
    if work is not None:
        total_s = float(sizes.total_s[row])
    bill = _bill(cluster, total_s, candidates)
    outlook = None
    slow_s = 0.0
    if work is not None and total_s is not None:
        once_usd = counted_once_usd(bill)
        usd_per_hour = choice.price / MICRO_USD
        costs_usd = None
        if prediction is not None and prediction.kept.low:
            fast_s, slow_s = _ends_s(total_s, prediction)
            good, bad = usd_per_hour * fast_s / 3600, usd_per_hour * slow_s / 3600
            costs_usd = (good + once_usd, bad + once_usd)
        outlook = JobEstimate(
            total_s=total_s,
            cost_usd=float(sizes.billed_s[row]) * choice.price / MICRO_USD / 3600 + once_usd,
            preemptions=float(sizes.preemptions[row]),
            sound=bool(sizes.sound[row]),
            costs_usd=costs_usd,
            late_probability=(
                float(sizes.late[row]) if prediction and work.deadline_s is not None else None
            ),
        )
        slow_s = max(total_s, slow_s)
    warnings += _pool_warnings(cluster, outlook, slow_s)
    counted = cluster.spot_count > 0 and (work is not None or prediction is not None)
    known = candidates.request.life_s is not None or (work is not None and work.mttp_s is not None)
    if counted and not known and gpu.interruption_band is None:
        assumed = "at best 25 % a month assumed (--mttp)"
        warnings.append(f"preemption rate of {gpu.name} unknown: {assumed}")
    return Recommendation(
        rank=rank,
        cluster=cluster,
        speedup=k * count,
        scaling_factor=k,
        throughput=throughput,
        flopp_spot=gpu.flopp_spot,
        z=float(sizes.ideal_z[row]) * k,
        usd_per_work=choice.price / MICRO_USD / throughput if throughput else None,
        speedup_kind=kind,
        binding=binding,
        warnings=tuple(warnings),
        outlook=outlook,
        prediction=prediction,
        next_zone=(
            _next_zone(cluster, choice.block.tier, int(sizes.n_sat[row])) if elsewhere else None
        ),
        bill=bill,
        value=choice.value,
        late=choice.late,
        refuted=choice.refuted,
    )


def counted_once_usd(bill: Bill | None) -> float:
    """The one-time costs besides VMs, $; 0 where the bill does not count."""
    if bill is None or not bill.counted:
        return 0.0
    return float(bill.usd_once)


def _bill(cluster: Cluster, total_s: float | None, candidates: Candidates) -> Bill | None:
    rates = candidates.catalog.rates
    if rates is None:
        return None
    from deepvm.core.bill import RentedVms, bill_of  # few catalogs of files need it

    hours = None
    if total_s is not None and math.isfinite(total_s):
        hours = total_s / 3600
    on_demand = cluster.on_demand_count + cluster.memory_count
    vms = RentedVms(cluster.spot_count, on_demand, cluster.usd_per_hour, hours)
    return bill_of(vms, rates, candidates.request.extras)


def _ends_s(total_s: float, prediction: Prediction) -> tuple[float, float]:
    """Seconds of a fast run at a good time, and of a slow one at a bad time."""
    from deepvm.core.lifetimes import START_S

    kept = prediction.kept
    speed = prediction.throughput
    work_s = (total_s - START_S) * kept.value * speed.value
    return START_S + work_s / (kept.high * speed.high), START_S + work_s / (kept.low * speed.low)


def _not_trusted(choice: Choice, candidates: Candidates, speed: TrainingSpeed) -> Iterator[str]:
    """A note on larger clusters of measured VMs that may be faster, but are not trusted."""
    sizes = choice.block.sizes
    row = choice.size
    from deepvm.core.training.speed import Source

    faster = (
        (sizes.type_index == sizes.type_index[row])
        & ~sizes.trusted
        & (sizes.count > sizes.count[row])
        & (sizes.effective > sizes.effective[row])
        & (sizes.price <= candidates.request.budget_micro_usd)
    )
    if speed.source is Source.MEASURED and sizes.trusted[row] and faster.any():
        yield (
            f"up to {sizes.count[faster].max()} x {choice.cluster.gpu.name} may be faster, but"
            f" {speed.fitted_vms} were measured and no more than {speed.trusted_vms} are trusted:"
            " measure more, or --extrapolate"
        )


def _type_warnings(gpu: InstanceType) -> Iterator[str]:
    if gpu.eflops_basis:
        yield f"the eFLOPS of {gpu.name} are estimated: {gpu.eflops_basis}"
    if gpu.speedup_basis:
        yield f"the speed-up curves of {gpu.name} are {gpu.speedup_basis}"
    spot = gpu.spot_usd_per_hour
    on_demand = gpu.on_demand_usd_per_hour
    if spot is not None and on_demand is not None and spot > on_demand:
        yield (
            f"{gpu.name} costs more on the spot market, ${format_usd(spot)}/h, than on demand, "
            f"${format_usd(on_demand)}/h, where it is not preempted"
        )


def _pool_warnings(cluster: Cluster, outlook: JobEstimate | None, slow_s: float) -> Iterator[str]:
    parts = {"its VMs": cluster.gpu}
    if cluster.memory:
        parts["its memory nodes"] = cluster.memory.instance
    for whose, instance in parts.items():
        reserved = instance.reserved
        if reserved is None:
            continue
        kind = reserved.kind.replace("-", " ")
        end = ""
        if reserved.until:
            end = f", which ends at {reserved.until}"
        yield f"{whose} are those of the {kind} {reserved.pool}{end}: start them there"
        if reserved.until and outlook is None:
            yield (
                f"whether the job ends before {reserved.pool} does is not known: say how much is"
                " trained"
            )
        elif reserved.until and slow_s > instance.left_s:
            rest = f"{reserved.pool} has {format_seconds(instance.left_s)} left"
            yield (
                "at the slow end of the interval of its speed the job takes"
                f" {format_seconds(slow_s)}, and {rest}"
            )


def _next_zone(cluster: Cluster, tier: MemoryNodeTable, sender_n_sat: int) -> Cluster | None:
    """The cheapest cluster of as many of the same VMs in another zone, with any memory nodes."""
    if cluster.zone is None:
        return None
    nodes: list[NodeGroup | None] = [None]
    if cluster.memory is not None:
        counts = tier.needed(np.array([cluster.gpu_count]), np.array([sender_n_sat]))[0]
        enough = zip(tier.types, counts.tolist(), (counts <= tier.max_count).tolist(), strict=True)
        nodes = [NodeGroup(t, Market.ON_DEMAND, m) for t, m, allowed in enough if allowed]
    moved = [
        replace(cluster, gpu=gpu, memory=group)
        # Once for each zone, not for each group: making a type validates it.
        for zone, gpu in [(z.zone, cluster.gpu.in_zone(z)) for z in cluster.gpu.spot_zones[1:]]
        for group in nodes
        if group is None or not group.instance.zones or zone in group.instance.zones
    ]
    return min(
        moved,
        key=lambda c: (c.micro_usd_per_hour, *by_memory_nodes(c), c.zone.zone if c.zone else ""),
        default=None,
    )


def by_memory_nodes(cluster: Cluster) -> tuple[int, str]:
    """Orders clusters of one price: how many memory nodes, then their type."""
    name = cluster.memory.instance.name if cluster.memory else ""
    return (cluster.memory_count, name)


def improvement(old: Choice | None, new: Choice, request: PlanRequest) -> float | None:
    """By what share ``new`` is better than ``old``; None when the old throughput is 0.

    Under DeepVM's own policy in terms of the objective, else of throughput: the baselines' values
    are ranks, or ignore scaling.
    """
    if old is None:
        return None
    if request.policy is PolicyName.DEEPVM:
        return (new.value - old.value) / abs(old.value)
    before, after = (float(c.block.sizes.throughput[c.size]) for c in (old, new))
    if before:
        return after / before - 1
    return None


def binding(choice: Choice, candidates: Candidates) -> tuple[BindingConstraint, ...]:
    """The constraints that stop the next larger cluster of the same types that is better.

    That cluster is searched without limits, and each limit that it breaks is binding. Saturation is
    binding, too, if the memory node that it adds breaks one, or is more than versions can be split
    over; and memory, if so many nodes are there only for their memory, and fewer would break less.
    Where types are ranked, the larger one may be allowed and not trusted, or hardly better.
    """
    now = choice.cluster
    memory = now.memory
    request = candidates.request
    gpu = next(g for g in candidates.gpus if g.instance == now.gpu)
    k = scaling_factor(gpu.curve, np.arange(1, MOST_NODES + 2, dtype=np.float64))
    free = candidates.asked(quotas=(), pools_end=False, max_nodes=MOST_NODES + 1)
    everything = replace(free, gpus=(replace(gpu, k=k),)).sizes(choice.block.architecture)
    sizes = everything.take(everything.lasting & np.isfinite(everything.total_s))
    nodes = np.zeros(len(sizes), dtype=np.int64)
    node_price = 0
    if choice.memory is not None:
        one = choice.block.tier.take(np.array([choice.memory]))
        nodes = one.needed(sizes.count, sizes.n_sat)[:, 0]
        node_price = int(one.price[0])
    price = sizes.price + nodes * node_price
    values = scoring(request, sizes).values(np.arange(len(sizes), dtype=np.int64), price)
    # Compared with the value of the same cluster among these sizes: some policies' values are
    # ranks.
    value = float(values[sizes.count == now.gpu_count][0])
    better = values > value + abs(value) * TIE
    larger = np.flatnonzero(better & (sizes.count > now.gpu_count))
    if not len(larger):
        smaller = sizes.take(better & (sizes.count < now.gpu_count))
        return tuple(_better_elsewhere(choice, request, smaller, everything))
    row = int(larger[0])
    count = int(sizes.count[row])
    more = int(nodes[row])
    cluster = vms = f"{count} x {now.gpu.name}"
    if memory is not None:
        cluster += f" with {more} x {memory.instance.name}"
    if count > now.gpu_count + 1:
        cluster += ", the next number that is better,"

    def broken_with(nodes: int) -> list[BindingConstraint]:
        limits = []
        micro_usd = int(sizes.price[row]) + nodes * node_price
        if micro_usd > request.budget_micro_usd:
            over = format_usd(micro_usd - request.budget_micro_usd)
            reason = f"{cluster} would cost ${format_usd(micro_usd)}/h, ${over} over the budget"
            limits.append(BindingConstraint("budget", reason))
        used = [
            (now.gpu, Market.SPOT, int(sizes.spot[row])),
            (now.gpu, Market.ON_DEMAND, int(sizes.on_demand[row])),
        ]
        if memory is not None:
            used.append((memory.instance, Market.ON_DEMAND, nodes))
        quotas = request.quotas_of(candidates.catalog)
        for instance, market, vms in used:
            if vms > quota_count(quotas, instance, market):
                reason = quota_too_small(quotas, instance, market, vms)
                name = "reservation"
                if instance.reserved is None:
                    name = "quota"
                limits.append(BindingConstraint(name, reason))
        return limits

    broken = broken_with(more)
    if memory is not None and choice.memory is not None:
        pair = min(int(choice.block.tier.n_sat[choice.memory]), int(sizes.n_sat[row]))
        senders = count // pair + 1
        most = candidates.catalog.memory_nodes.most_nodes
        needs = f"{count} senders need {more} memory nodes"
        if most is not None and more > most:
            reason = f"{needs} (n/m < {pair}); a checkpoint is split over at most {most}"
            broken.append(BindingConstraint("saturation", reason))
        elif more > memory.count and len(broken_with(memory.count)) < len(broken):
            reason = f"{needs}, not {memory.count} (n/m < {pair})"
            broken.append(BindingConstraint("saturation", reason))
        elif senders < more <= memory.count and len(broken_with(senders)) < len(broken):
            holds = f"{more} x {memory.instance.name} hold {request.held} together (eq. 6)"
            reason = f"{holds} and receive them in time; {count} senders need {senders}"
            broken.append(BindingConstraint("memory", reason))
    if count > request.max_nodes:
        reason = f"{count} VMs would train; the limit is {request.max_nodes}"
        broken.append(BindingConstraint("max-nodes", reason))
    if request.work is not None:
        total_s = float(sizes.total_s[row])
        once_usd = float(request.work.besides_usd)
        bill = float(sizes.billed_s[row]) / 3600 * int(price[row]) / MICRO_USD + once_usd
        if total_s > (request.work.deadline_s or math.inf):
            reason = f"{vms} would be expected to take {format_seconds(total_s)}"
            broken.append(BindingConstraint("deadline", reason))
        if bill > (request.work.total_budget or math.inf):
            reason = f"{vms} would be expected to cost ${bill:.2f} in all"
            broken.append(BindingConstraint("total-budget", reason))
    if not broken and request.weighs_doubt:
        broken.append(_by_the_ranking(choice, sizes, row, cluster))
    return tuple(broken)


def _by_the_ranking(
    choice: Choice, sizes: TrainingTable, row: int, larger: str
) -> BindingConstraint:
    """Why a better, allowed larger cluster is not first: not trusted, or hardly better."""
    count = int(sizes.count[row])
    curve = choice.curve
    law = law_of(curve)
    if sizes.trusted[row] or not choice.block.sizes.trusted[choice.size]:
        return BindingConstraint("worth", f"{larger} is allowed, but not worth its price")
    if law is not None and count > law.known.proven_vms:
        reason = f"with {larger} {law.known.too_many(count)}: '--global-batch' sets it"
        return BindingConstraint("batch-size", reason)
    reason = (
        f"{larger} is more than 1.5 times the {curve.fitted_to or 0:g} that such clusters were"
        " checked with; '--extrapolate' trusts it"
    )
    return BindingConstraint("extrapolation", reason)


def _better_elsewhere(
    choice: Choice, request: PlanRequest, smaller: TrainingTable, sizes: TrainingTable
) -> Iterator[BindingConstraint]:
    """The deadline, if it forbids a better ``smaller`` cluster; preemptions, if a larger one."""
    work = request.work
    if work is None:
        return
    gpu = choice.gpu
    for row in np.flatnonzero(smaller.total_s > (work.deadline_s or math.inf))[-1:].tolist():
        took = format_seconds(float(smaller.total_s[row]))
        reason = f"{smaller.count[row]} x {gpu.name} would be better, but expected to take {took}"
        yield BindingConstraint("deadline", reason)
    if request.needs_work:
        return
    endless = (
        (sizes.count > choice.gpu_count)
        & (sizes.throughput > choice.block.sizes.throughput[choice.size])
        & ~np.isfinite(sizes.total_s)
        & (sizes.price <= request.budget_micro_usd)
    )
    for row in np.flatnonzero(endless)[:1].tolist():
        each = format_seconds(work.life_s(gpu) / int(sizes.spot[row]))
        reason = (
            f"{sizes.count[row]} x {gpu.name} would be stopped every {each}, and the job would"
            " never end"
        )
        yield BindingConstraint("preemptions", reason)
