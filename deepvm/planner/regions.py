"""The same request in several regions, ranked together: a cluster stands in one region, the user may choose which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deepvm.core.cluster.cluster import Recommendation
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.scoring import TIE


@dataclass(frozen=True)
class Placed:
    """A recommendation and the answer, of one region, that it stands in; its rank is that among all regions."""

    answer: Recommendations
    recommendation: Recommendation


@dataclass(frozen=True)
class Comparison:
    """Answers of several regions to one request.

    Attributes:
        answers: one for each region, the best region first, those with nothing feasible last.
        ranked: the best clusters of all regions, as many as were asked for.
    """

    answers: tuple[Recommendations, ...]
    ranked: tuple[Placed, ...]


def compare(answers: Sequence[Recommendations]) -> Comparison:
    """Rank the clusters of several regions together, by the rules within one, then by the region's name.

    Args:
        answers: at least one; all to the same request.
    """
    left = [Placed(a, r) for a in answers for r in a]
    ranked: list[Placed] = []
    while left:
        best = _best(left)
        left.remove(best)
        ranked.append(replace(best, recommendation=replace(best.recommendation, rank=len(ranked) + 1)))
    best_rank = {p.answer.catalog.region: p.recommendation.rank for p in reversed(ranked)}
    order = sorted(answers, key=lambda a: (best_rank.get(a.catalog.region, len(ranked) + 1), a.catalog.region))
    return Comparison(tuple(order), tuple(ranked[: answers[0].request.top]))


def _best(placed: Sequence[Placed]) -> Placed:
    worth = [_worth(p.recommendation, p.answer.request) for p in placed]
    top = max(worth)
    equal = [p for p, w in zip(placed, worth, strict=True) if all(_as_good(x, y) for x, y in zip(w, top, strict=True))]
    return min(equal, key=_tie_break)


def _as_good(value: float, best: float) -> bool:
    return value >= best - abs(best) * TIE


def _tie_break(placed: Placed) -> tuple[object, ...]:
    cluster = placed.recommendation.cluster
    memory = cluster.memory
    return (
        cluster.micro_usd_per_hour,
        memory.count if memory else 0,
        cluster.architecture,
        cluster.gpu.name,
        cluster.gpu_count,
        memory.instance.name if memory else "",
        placed.answer.catalog.region,
    )


def _worth(r: Recommendation, request: PlanRequest) -> tuple[float, ...]:
    """What the policy maximises, comparable between catalogs; higher is better."""
    count = float(r.cluster.gpu_count)
    eflops = r.cluster.gpu.eflops or 0.0
    if request.policy is PolicyName.COST_FIRST:
        return (count,)
    if request.policy is PolicyName.PERFORMANCE_FIRST:
        return (eflops, count)
    unscaled = request.policy is PolicyName.NOSCALE
    if request.needs_work and not unscaled and r.outlook is not None:
        return (-r.outlook.total_s if request.objective is Objective.MAKESPAN else -r.outlook.cost_usd,)
    if request.objective is Objective.FLOPP:
        return (_unscaled_z(r) if unscaled else r.z,)
    throughput = eflops * count if unscaled else r.throughput
    if request.objective in (Objective.THROUGHPUT, Objective.MAKESPAN):
        return (throughput,)
    return (-float(r.usd_per_hour) / throughput if throughput else -float("inf"),)


def _unscaled_z(r: Recommendation) -> float:
    """The printed objective (DeepVM eq. 4, 8) with K = 1."""
    gpu = r.cluster.gpu
    vms = ((r.cluster.spot_count, gpu.spot_usd_per_hour), (r.cluster.on_demand_count, gpu.on_demand_usd_per_hour))
    return sum(n * (gpu.eflops or 0.0) / float(price) for n, price in vms if n and price)
