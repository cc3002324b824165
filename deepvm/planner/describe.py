"""From candidates to blocks that solver and enumeration work on, and from a choice back to a recommendation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from deepvm.core.cluster.cluster import Binding, Outlook, Recommendation
from deepvm.core.cluster.instances import InstanceType, flopp
from deepvm.core.units import MICRO_USD, format_usd
from deepvm.planner.architectures import Architecture
from deepvm.planner.candidates import Candidates
from deepvm.planner.request import PlanRequest, PolicyName
from deepvm.planner.scoring import scoring
from deepvm.planner.search.frontier import Block, Choice
from deepvm.planner.zones import next_zone


def blocks_of(candidates: Candidates) -> tuple[Block, ...]:
    """One block for each architecture that the request considers."""
    return tuple(block_of(architecture, candidates) for architecture in candidates.architectures)


def block_of(architecture: Architecture, candidates: Candidates) -> Block:
    """The sizes of one architecture that may be asked for, with their scores."""
    sizes, request = candidates.sizes(architecture), candidates.request
    # Most of them keep to a deadline at any price, or at none; the rest is a matter of the whole plan's price.
    if request.needs_work:
        sizes = sizes.take(np.isfinite(sizes.total_s))
    if request.work is not None and request.work.constrained:
        sizes = sizes.take(sizes.price <= sizes.most_usd)
    if architecture.tiered:
        sizes = sizes.take(np.asarray(candidates.tier.offered.any(axis=0))[sizes.offers])
    return Block(architecture, sizes, candidates.tier, scoring(request, sizes))


def describe(
    choice: Choice, candidates: Candidates, rank: int = 1, binding: tuple[Binding, ...] = ()
) -> Recommendation:
    """Everything that is claimed of a choice."""
    sizes, row, cluster, work = choice.block.sizes, choice.size, choice.cluster, candidates.request.work
    count, k = cluster.gpu_count, float(sizes.k[row])
    throughput = float(sizes.ideal_throughput[row]) * k
    gpu = cluster.gpu
    assert gpu.eflops is not None and gpu.spot_usd_per_hour is not None  # or it would not be a candidate
    curve = next(g.curve for g in candidates.gpus if g.instance.name == gpu.name)
    kind = curve.kind
    warnings = list(_about(gpu))
    if sizes.clamped[row]:
        raw = float(curve.speedup(np.array([float(count)]))[0])
        warnings.append(
            f"the {kind} curve of {gpu.name} gives a speed-up of {raw:.3g} at n = {count}, held at {k * count:g}"
        )
    if sizes.extrapolated[row]:
        warnings.append(f"the {kind} speed-up of {gpu.name} at n = {count} lies beyond its measurements")
    both = cluster.common_zones
    if cluster.memory is not None and not gpu.spot_zones and both and both != gpu.zones:
        offer, types = "offer" if len(both) > 1 else "offers", f"{gpu.name} and {cluster.memory.instance.name}"
        warnings.append(f"only {', '.join(both)} {offer} both {types}: start the cluster there")
    outlook = None
    if work is not None:
        cost_usd = float(sizes.billed_s[row]) * choice.price / MICRO_USD / 3600
        outlook = Outlook(float(sizes.total_s[row]), cost_usd, float(sizes.preemptions[row]), bool(sizes.sound[row]))
        if work.mttp_s is None and gpu.interruption_band is None:
            warnings.append(f"nobody says how often {gpu.name} is taken away: counted as 25 % a month; give --mttp")
    return Recommendation(
        rank=rank,
        cluster=cluster,
        speedup=k * count,
        scaling_factor=k,
        throughput=throughput,
        flopp_spot=flopp(gpu.eflops, float(gpu.spot_usd_per_hour)),
        z=float(sizes.ideal_z[row]) * k,
        usd_per_work=choice.price / MICRO_USD / throughput if throughput else None,
        speedup_kind=kind,
        binding=binding,
        warnings=tuple(warnings),
        outlook=outlook,
    )


def with_next_zone(found: Recommendation, choice: Choice) -> Recommendation:
    """The same recommendation with where else its cluster could stand."""
    senders = int(choice.block.sizes.n_sat[choice.size])
    return replace(found, next_zone=next_zone(found.cluster, choice.block.tier, senders))


def _about(gpu: InstanceType) -> Iterator[str]:
    """What should make a reader careful with a type, whatever the size of the cluster."""
    if gpu.eflops_basis:
        yield f"the eFLOPS of {gpu.name} are estimated: {gpu.eflops_basis}"
    if gpu.speedup_basis:
        yield f"the speed-up curves of {gpu.name} are {gpu.speedup_basis}"
    spot, on_demand = gpu.spot_usd_per_hour, gpu.on_demand_usd_per_hour
    if spot is not None and on_demand is not None and spot > on_demand:
        yield (
            f"{gpu.name} costs more on the spot market, {format_usd(spot)} $/h, than on demand, "
            f"{format_usd(on_demand)} $/h, where it is not taken away"
        )


def improvement(old: Choice, new: Choice, request: PlanRequest) -> float | None:
    """By how much one plan is better than another, as a share of the other; None when that one's throughput is 0.

    Under DeepVM's own policy in terms of the objective. The other policies do not look at what a cluster is worth (the
    value of a plan is then a place in an order, or knows no scaling), so for them it is the throughput that counts.
    """
    if request.policy is PolicyName.DEEPVM:
        return (new.value - old.value) / abs(old.value)
    before, after = (float(c.block.sizes.throughput[c.size]) for c in (old, new))
    return after / before - 1 if before else None
