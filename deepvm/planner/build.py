"""From candidates to blocks that solver and frontier work on, and from a choice back to a recommendation."""

from __future__ import annotations

import numpy as np

from deepvm.core.cluster import Binding, Recommendation
from deepvm.core.performance import flopp
from deepvm.core.units import usd
from deepvm.planner.candidates import Candidates
from deepvm.planner.frontier import Block, Choice
from deepvm.planner.policies import architectures_of, scoring
from deepvm.planner.request import PlanRequest


def blocks_of(candidates: Candidates, request: PlanRequest) -> tuple[Block, ...]:
    """One block for each architecture that the request considers."""
    blocks = []
    for architecture in architectures_of(request):
        sizes = candidates.sizes(architecture)
        if architecture.tiered and not len(candidates.tier):
            sizes = sizes.take(np.zeros(len(sizes), dtype=np.bool_))
        blocks.append(Block(architecture, sizes, candidates.tier, scoring(request, sizes)))
    return tuple(blocks)


def describe(choice: Choice, rank: int, candidates: Candidates, binding: tuple[Binding, ...] = ()) -> Recommendation:
    """Everything that is claimed of a choice."""
    sizes, row, cluster = choice.block.sizes, choice.size, choice.cluster
    count, k, work = cluster.gpu_count, float(sizes.k[row]), float(sizes.throughput[row])
    gpu, kind = cluster.gpu, candidates.speedup_kind
    warnings = []
    if sizes.clamped[row]:
        curve = next(g.curve for g in candidates.gpus if g.instance.name == gpu.name)
        raw = float(curve.speedup(np.array([float(count)]))[0])
        warnings.append(
            f"the {kind} curve of {gpu.name} gives a speed-up of {raw:.3g} for {count} VMs: held at {count}"
        )
    if sizes.extrapolated[row]:
        warnings.append(f"the speed-up of {gpu.name} for {count} VMs lies beyond its measurements")
    return Recommendation(
        rank=rank,
        cluster=cluster,
        speedup=k * count,
        scaling_factor=k,
        throughput=work,
        flopp_spot=flopp(gpu.eflops or 0.0, float(gpu.spot_usd_per_hour or 0)),
        z=float(sizes.z[row]),
        usd_per_work=usd(choice.price) / work,
        speedup_kind=kind,
        binding=binding,
        warnings=tuple(warnings),
    )
