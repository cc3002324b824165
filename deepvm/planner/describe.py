"""From candidates to blocks to search, and from a choice to a recommendation and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from deepvm.core.cluster.cluster import (
    Binding,
    Cluster,
    JobEstimate,
    NodeGroup,
    Prediction,
    Recommendation,
)
from deepvm.core.cluster.instances import InstanceType, Market, flopp, quota_limit
from deepvm.core.cluster.speedup import scaling_factor
from deepvm.core.interval import Interval
from deepvm.core.units import MICRO_USD, format_seconds, format_usd
from deepvm.planner.architectures import Architecture
from deepvm.planner.candidates import Candidates
from deepvm.planner.columns import MemoryNodeTable, TrainingTable
from deepvm.planner.rejections import quota_too_small
from deepvm.planner.options import MOST_NODES
from deepvm.planner.request import PlanRequest, PolicyName
from deepvm.planner.scoring import TIE, scoring
from deepvm.planner.search.enumeration import Block, Choice
from deepvm.planner.workload.laws import law_of

if TYPE_CHECKING:
    from deepvm.core.bill.bill import Bill
    from deepvm.core.training.speed import TrainingSpeed


def blocks_of(candidates: Candidates) -> tuple[Block, ...]:
    """One block for each architecture that the request considers."""
    return tuple(block_of(architecture, candidates) for architecture in candidates.architectures)


def block_of(architecture: Architecture, candidates: Candidates) -> Block:
    """The sizes of one architecture that can be feasible, with their scores."""
    sizes = candidates.sizes(architecture)
    request = candidates.request
    sizes = sizes.take(sizes.lasting)
    # Whether the others keep to the job's limits depends on the price of the whole plan.
    if request.needs_work:
        sizes = sizes.take(np.isfinite(sizes.total_s))
    if request.work is not None and request.work.constrained:
        sizes = sizes.take(sizes.price <= sizes.most_usd)
    tier = candidates.tier
    if request.work is not None:  # what is reserved must last to the job's end
        left_s = np.array([t.left_s for t in sizes.types], dtype=np.float64)
        sizes = sizes.take(sizes.total_s <= left_s[sizes.type_index])
        sizes, tier = _with_lasting_nodes(sizes, tier)
    if architecture.tiered:
        sizes = sizes.take(np.asarray(tier.offered.any(axis=0))[sizes.memory_set])
    return Block(architecture, sizes, tier, scoring(request, sizes))


def _with_lasting_nodes(
    sizes: TrainingTable, tier: MemoryNodeTable
) -> tuple[TrainingTable, MemoryNodeTable]:
    """Memory-node sets without pools that end before the job does, for the sizes concerned."""
    for row, left_s in enumerate(t.left_s for t in tier.types):
        late = sizes.total_s > left_s
        if late.any():
            without = tier.offered.copy()
            without[row] = False
            sizes = replace(
                sizes, memory_set=sizes.memory_set + np.where(late, tier.offered.shape[1], 0)
            )
            tier = replace(tier, offered=np.hstack([tier.offered, without]))
    return sizes, tier


def describe(
    choice: Choice,
    candidates: Candidates,
    rank: int = 1,
    binding: tuple[Binding, ...] = (),
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
    assert gpu.eflops is not None  # or it would not be a candidate
    curve = next(g.curve for g in candidates.gpus if g.instance.name == gpu.name)
    kind = curve.kind
    n = np.array([float(count)])
    warnings = list(_about(gpu))
    if candidates.catalog.unsure:
        warnings.append(f"{candidates.catalog.unsure}: look before you count on it")
    if k in (0.0, 1.0) and not 0.0 <= (raw := float(curve.speedup(n)[0])) / count <= 1.0:
        warnings.append(
            f"the {kind} curve of {gpu.name} gives a speed-up of {raw:.3g} at n = {count}, held at"
            f" {k * count:g}"
        )
    prediction = None
    if (law := law_of(curve)) is not None:
        speed = law.speed_of(n)
        warnings += [*speed.doubts(0), *_not_believed(choice, candidates, speed)]
        kept = Interval(
            float(sizes.kept_bad[row]), float(sizes.kept[row]), float(sizes.kept_good[row])
        )
        prediction = replace(_prediction(speed, kept), trusted=bool(sizes.trusted[row]))
    elif curve.extrapolated(n)[0]:
        warnings.append(
            f"the {kind} speed-up of {gpu.name} at n = {count} lies beyond its measurements"
        )
    both = [z for z in gpu.zones if cluster.memory and z in cluster.memory.instance.zones]
    if cluster.memory is not None and not gpu.spot_zones and 0 < len(both) < len(gpu.zones):
        offer = "offer" if len(both) > 1 else "offers"
        types = f"{gpu.name} and {cluster.memory.instance.name}"
        warnings.append(f"only {', '.join(both)} {offer} both {types}: start the cluster there")
    outlook = None
    if work is not None:
        cost_usd = float(sizes.billed_s[row]) * choice.price / MICRO_USD / 3600
        outlook = JobEstimate(
            total_s=float(sizes.total_s[row]),
            cost_usd=cost_usd,
            preemptions=float(sizes.preemptions[row]),
            sound=bool(sizes.sound[row]),
            costs_usd=(
                _costs_usd(choice.price, float(sizes.total_s[row]), prediction)
                if prediction
                else None
            ),
            late_probability=(
                float(sizes.late[row]) if prediction and work.deadline_s is not None else None
            ),
        )
    slow_s = 0.0
    if outlook is not None:
        bad_usd = outlook.costs_usd[1] if outlook.costs_usd else 0.0
        slow_s = max(outlook.total_s, bad_usd * MICRO_USD * 3600 / choice.price)
    warnings += _of_pools(cluster, outlook, slow_s)
    bill = _bill(cluster, outlook, candidates)
    if outlook is not None and bill is not None and bill.counted:
        outlook = _with_once(outlook, float(bill.usd_once))
    counted = work is not None or (prediction is not None and cluster.spot_count > 0)
    known = candidates.request.life_s is not None or (work is not None and work.mttp_s is not None)
    if counted and not known and gpu.interruption_band is None:
        rate = "25 % a month is taken as its best case"
        warnings.append(f"the interruption rate of {gpu.name} is unknown: {rate}; give --mttp")
    return Recommendation(
        rank=rank,
        cluster=cluster,
        speedup=k * count,
        scaling_factor=k,
        throughput=throughput,
        flopp_spot=(
            None
            if gpu.spot_usd_per_hour is None
            else flopp(gpu.eflops, float(gpu.spot_usd_per_hour))
        ),
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
    )


def _with_once(outlook: JobEstimate, usd: float) -> JobEstimate:
    """With what is paid once besides VMs."""
    costs = outlook.costs_usd and (outlook.costs_usd[0] + usd, outlook.costs_usd[1] + usd)
    return replace(outlook, cost_usd=outlook.cost_usd + usd, costs_usd=costs)


def _bill(cluster: Cluster, outlook: JobEstimate | None, candidates: Candidates) -> Bill | None:
    """What a cluster costs besides its VMs; None if no rates are known."""
    rates = candidates.catalog.rates
    if rates is None:
        return None
    from deepvm.core.bill.bill import RentedVms, bill_of  # not for catalogs that are no cloud's

    ends = outlook is not None and math.isfinite(outlook.total_s)
    on_demand = cluster.on_demand_count + (cluster.memory.count if cluster.memory else 0)
    vms = RentedVms(
        cluster.spot_count,
        on_demand,
        cluster.usd_per_hour,
        outlook.total_s / 3600 if outlook and ends else None,
    )
    return bill_of(vms, rates, candidates.request.extras)


def _costs_usd(price: int, total_s: float, prediction: Prediction) -> tuple[float, float] | None:
    """The bill of a fast run at a good time and a slow one at a bad time; None if no progress."""
    kept = prediction.kept
    speed = prediction.throughput
    if not kept.low:
        return None
    from deepvm.planner.job_forecast import START_S

    work_s = (total_s - START_S) * kept.value * speed.value
    ends = (work_s / (kept.high * speed.high), work_s / (kept.low * speed.low))
    good, bad = (price / MICRO_USD * (START_S + training_s) / 3600 for training_s in ends)
    return good, bad


def _not_believed(choice: Choice, candidates: Candidates, speed: TrainingSpeed) -> Iterator[str]:
    """Larger clusters of measured VMs that would be faster, if what was measured went so far."""
    sizes = choice.block.sizes
    row = choice.size
    request = candidates.request
    from deepvm.core.training.speed import Source

    if speed.source is not Source.MEASURED:
        return
    larger = (
        (sizes.type_index == sizes.type_index[row])
        & (sizes.count > sizes.count[row])
        & ~sizes.trusted
    )
    faster = (
        larger
        & (sizes.effective > sizes.effective[row])
        & (sizes.price <= request.budget_micro_usd)
    )
    if faster.any() and sizes.trusted[row]:
        most = int(sizes.count[faster].max())
        yield (
            f"up to {most} x {choice.cluster.gpu.name} may be faster, but {speed.fitted_vms} were"
            f" measured and no more than {speed.trusted_vms} are believed: measure more, or"
            " --extrapolate"
        )


def _prediction(speed: TrainingSpeed, kept: Interval) -> Prediction:
    """The only size of a speed, for the answer."""
    gpus = float(speed.vms[0]) * speed.machine.gpus
    return Prediction(
        throughput=speed.interval(0),
        step_s=speed.step_interval(0),
        mfu=speed.mfu(0),
        source=speed.source.value,
        precision=speed.precision.value,
        batch_per_gpu=math.ceil(speed.workload.batch_on(round(gpus)) - 1e-9),
        micro_batch=math.ceil(float(speed.micro_batch[0]) - 1e-9),
        checkpointing=bool(speed.checkpointing[0]),
        fitted_vms=speed.fitted_vms,
        kept=kept,
        state_bytes=speed.state_bytes(0),
    )


def _about(gpu: InstanceType) -> Iterator[str]:
    """Warnings about a type, whatever the size of the cluster."""
    if gpu.eflops_basis:
        yield f"the eFLOPS of {gpu.name} are estimated: {gpu.eflops_basis}"
    if gpu.speedup_basis:
        yield f"the speed-up curves of {gpu.name} are {gpu.speedup_basis}"
    spot = gpu.spot_usd_per_hour
    on_demand = gpu.on_demand_usd_per_hour
    if spot is not None and on_demand is not None and spot > on_demand:
        yield (
            f"{gpu.name} costs more on the spot market, {format_usd(spot)} $/h, than on demand, "
            f"{format_usd(on_demand)} $/h, where it is not preempted"
        )


def _of_pools(cluster: Cluster, outlook: JobEstimate | None, slow_s: float) -> Iterator[str]:
    """Where reserved VMs are, until when, and whether the job fits; ``slow_s``: worst case."""
    parts = [(cluster.gpu, "its VMs")]
    parts += [(cluster.memory.instance, "its memory nodes")] if cluster.memory else []
    for instance, whose in parts:
        reserved = instance.reserved
        if reserved is None:
            continue
        end = f", which ends at {reserved.until}" if reserved.until else ""
        yield (
            f"{whose} are those of the {reserved.kind.replace('-', ' ')} {reserved.pool}{end}:"
            " start them there"
        )
        if not reserved.until:
            continue
        if outlook is None:
            yield (
                f"whether the job ends before {reserved.pool} does is not known: say how much is"
                " trained"
            )
        elif slow_s > instance.left_s:
            rest = f"{reserved.pool} has {format_seconds(instance.left_s)} left"
            yield (
                "at the slow end of what is known of its speed the job takes"
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
    return min(moved, key=_by_price, default=None)


def _by_price(cluster: Cluster) -> tuple[int, int, str, str]:
    nodes = (cluster.memory.count, cluster.memory.instance.name) if cluster.memory else (0, "")
    return (cluster.micro_usd_per_hour, *nodes, cluster.zone.zone if cluster.zone else "")


def improvement(old: Choice, new: Choice, request: PlanRequest) -> float | None:
    """By what share ``new`` is better than ``old``; None when the old throughput is 0.

    Under DeepVM's own policy in terms of the objective, else of throughput: the baselines' values
    are ranks, or ignore scaling.
    """
    if request.policy is PolicyName.DEEPVM:
        return (new.value - old.value) / abs(old.value)
    before, after = (float(c.block.sizes.throughput[c.size]) for c in (old, new))
    return after / before - 1 if before else None


_ORDER = (
    *(
        "budget",
        "quota",
        "reservation",
        "saturation",
        "memory",
        "max-nodes",
        "deadline",
        "total-budget",
    ),
    *("extrapolation", "batch-size", "worth"),
)


def binding(choice: Choice, candidates: Candidates) -> tuple[Binding, ...]:
    """The constraints that stop the next larger cluster of the same types that is better.

    It is searched without limits, and each limit that it breaks is binding. So is saturation, if
    the memory node that it adds is what breaks one, or is more than versions can be split over; and
    memory, if there are so many nodes only for their memory, and fewer would break less. If no
    larger cluster of up to ``MOST_NODES`` VMs is better: a deadline that a better, smaller one
    would miss, or preemptions. Where types are ranked, the larger one may be allowed and not
    believed, or too little better; else it ranks higher, and nothing is binding.
    """
    now = choice.cluster
    work = candidates.request.work
    everything = _all_sizes(choice, candidates)
    sizes = everything.take(everything.lasting & np.isfinite(everything.total_s))
    price = sizes.price.copy()
    nodes = np.zeros(len(sizes), dtype=np.int64)
    if choice.memory is not None:
        one = choice.block.tier.take(np.array([choice.memory]))
        nodes = one.needed(sizes.count, sizes.n_sat)[:, 0]
        price += nodes * one.price[0]
    values = scoring(candidates.request, sizes).values(np.arange(len(sizes), dtype=np.int64), price)
    # Compared with the value of the same cluster among these sizes: some policies' values are
    # ranks.
    value = float(values[int(np.flatnonzero(sizes.count == now.gpu_count)[0])])
    better = (sizes.count > now.gpu_count) & (values > value + abs(value) * TIE)
    if not better.any():
        smaller = np.flatnonzero(
            (sizes.count < now.gpu_count) & (values > value + abs(value) * TIE)
        )
        return (
            *_late(choice, candidates, sizes, smaller),
            *_endless(choice, candidates, everything),
        )
    row = int(np.argmax(better))
    count = int(sizes.count[row])
    micro_usd = int(price[row])
    memory = now.memory
    more = int(nodes[row])
    larger = what = f"{count} x {now.gpu.name}"
    if memory is not None:
        larger += f" with {more} x {memory.instance.name}"
    if count > now.gpu_count + 1:
        larger += ", the next number that is better,"
    broken = list(_limits(sizes, row, micro_usd, candidates, larger))
    if memory is not None:
        broken += _quota(memory.instance, Market.ON_DEMAND, more, candidates)
        broken += _for_nodes(choice, sizes, row, more, len(broken), candidates)
    total_s = float(sizes.total_s[row])
    if work is not None and work.deadline_s is not None and total_s > work.deadline_s:
        broken.append(
            Binding("deadline", f"{what} would be expected to take {format_seconds(total_s)}")
        )
    bill = float(sizes.billed_s[row]) / 3600 * micro_usd / MICRO_USD + (
        float(work.besides_usd) if work else 0.0
    )
    if work is not None and work.total_budget is not None and bill > work.total_budget:
        broken.append(
            Binding("total-budget", f"{what} would be expected to cost {bill:.2f} $ in all")
        )
    if not broken and candidates.request.weighs_doubt:
        broken += _by_the_ranking(choice, sizes, row, larger, candidates)
    return tuple(sorted(broken, key=lambda b: _ORDER.index(b.constraint)))


def _by_the_ranking(
    choice: Choice, sizes: TrainingTable, row: int, larger: str, candidates: Candidates
) -> Iterator[Binding]:
    """Why a better, allowed larger cluster is not first: not trusted, or hardly better."""
    if choice.block.sizes.trusted[choice.size] and not sizes.trusted[row]:
        gpu = next(g for g in candidates.gpus if g.instance == choice.cluster.gpu)
        more = int(sizes.count[row])
        law = law_of(gpu.curve)
        if law is not None and more > law.known.proven_vms:
            yield Binding(
                "batch-size", f"with {larger} {law.known.too_many(more)}: '--global-batch' sets it"
            )
            return
        seen = int(getattr(gpu.curve, "fitted_to", 0))
        reason = f"{larger} is more than 1.5 times the {seen} that such clusters were checked with"
        yield Binding("extrapolation", f"{reason}; '--extrapolate' believes it")
    else:
        yield Binding("worth", f"{larger} is allowed, and too little better for its price")


def _for_nodes(
    choice: Choice, sizes: TrainingTable, row: int, more: int, broken: int, candidates: Candidates
) -> Iterator[Binding]:
    """Saturation and memory, if the larger cluster needs ``more`` nodes, breaking limits."""
    memory = choice.cluster.memory
    tier = choice.block.tier
    count = int(sizes.count[row])
    assert memory is not None and choice.memory is not None
    most = candidates.catalog.memory_nodes.most_nodes
    pair = min(int(tier.n_sat[choice.memory]), int(sizes.n_sat[row]))
    if most is not None and more > most:
        reason = (
            f"{count} senders need {more} memory nodes (n/m < {pair}); a version is split over at"
            f" most {most}"
        )
        yield Binding("saturation", reason)
        return

    def without(nodes: int) -> bool:
        price = int(sizes.price[row]) + nodes * int(tier.price[choice.memory])
        left = [
            *_limits(sizes, row, price, candidates, ""),
            *_quota(memory.instance, Market.ON_DEMAND, nodes, candidates),
        ]
        return len(left) < broken

    if more > memory.count:
        if without(memory.count):
            reason = f"{count} senders need {more} memory nodes, not {memory.count} (n/m < {pair})"
            yield Binding("saturation", reason)
        return
    one = tier.take(np.array([choice.memory]))
    senders = int(one.for_senders(sizes.count[[row]], sizes.n_sat[[row]])[0, 0])
    if senders < more and without(senders):
        holds = f"hold {candidates.request.held} together (eq. 6)"
        receives = "together receive a version in time"
        what = holds if int(one.for_memory[0]) == more else receives
        yield Binding(
            "memory", f"{more} x {memory.instance.name} {what}; {count} senders need {senders}"
        )


def _all_sizes(choice: Choice, candidates: Candidates) -> TrainingTable:
    """The sizes of the chosen type in its zone, without quotas and ``max_nodes``."""
    chosen = choice.cluster.gpu
    gpu = next(g for g in candidates.gpus if g.instance == chosen)
    k = scaling_factor(gpu.curve, np.arange(1, MOST_NODES + 2, dtype=np.float64))
    free = replace(candidates.request, quotas=(), pools_end=False, max_nodes=MOST_NODES + 1)
    return replace(candidates, gpus=(replace(gpu, k=k),), request=free).sizes(
        choice.block.architecture
    )


def _late(
    choice: Choice, candidates: Candidates, sizes: TrainingTable, better: npt.NDArray[np.int64]
) -> Iterator[Binding]:
    """The deadline, if it forbids a better smaller cluster, such as one with a lower bill."""
    work = candidates.request.work
    if work is None or work.deadline_s is None:
        return
    late = better[sizes.total_s[better] > work.deadline_s]
    if len(late):
        what = f"{int(sizes.count[late[-1]])} x {choice.cluster.gpu.name}"
        took = float(sizes.total_s[late[-1]])
        yield Binding(
            "deadline", f"{what} would be better, but expected to take {format_seconds(took)}"
        )


def _endless(choice: Choice, candidates: Candidates, sizes: TrainingTable) -> Iterator[Binding]:
    """Preemptions, if a faster, larger cluster would never finish because of them."""
    now = choice.cluster
    request = candidates.request
    if request.work is None or request.needs_work:
        return
    faster = (sizes.count > now.gpu_count) & (
        sizes.throughput > float(choice.block.sizes.throughput[choice.size])
    )
    endless = np.flatnonzero(
        faster & ~np.isfinite(sizes.total_s) & (sizes.price <= request.budget_micro_usd)
    )
    if len(endless):
        row = int(endless[0])
        each = format_seconds(request.work.life_s(now.gpu) / int(sizes.spot[row]))
        reason = (
            f"{int(sizes.count[row])} x {now.gpu.name} would be stopped every {each}, and the job"
            " would never end"
        )
        yield Binding("preemptions", reason)


def _limits(
    sizes: TrainingTable, row: int, price: int, candidates: Candidates, cluster: str
) -> Iterator[Binding]:
    """Budget, quotas and ``max_nodes`` that a size breaks at a price, without memory nodes."""
    gpu = sizes.types[int(sizes.type_index[row])]
    count = int(sizes.count[row])
    request = candidates.request
    if price > request.budget_micro_usd:
        over = Decimal(price) / MICRO_USD - request.budget
        reason = f"{cluster} would cost {format_usd(price)} $/h, {format_usd(over)} over the budget"
        yield Binding("budget", reason)
    if count > request.max_nodes:
        yield Binding("max-nodes", f"{count} VMs would train; the limit is {request.max_nodes}")
    yield from _quota(gpu, Market.SPOT, int(sizes.spot[row]), candidates)
    yield from _quota(gpu, Market.ON_DEMAND, int(sizes.on_demand[row]), candidates)


def _quota(
    instance: InstanceType, market: Market, count: int, candidates: Candidates
) -> Iterator[Binding]:
    limit = quota_limit(candidates.quotas, instance.quota_family, market)
    if limit is not None and count * instance.vcpus > limit:
        reason = quota_too_small(candidates.quotas, instance, market, count)
        yield Binding("quota" if instance.reserved is None else "reservation", reason)
