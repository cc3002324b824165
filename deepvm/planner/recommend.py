"""Answer a request: candidates, an exact solution, a ranking with reasons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deepvm.core.answer import Rows
from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.units import MICRO_USD, Interval, as_budget, format_seconds, format_usd
from deepvm.planner.candidates import Candidates, gather
from deepvm.planner.columns import ON_DEMAND
from deepvm.planner.describe import binding, describe, improvement
from deepvm.planner.infeasible import Infeasible, infeasible
from deepvm.planner.ranking import (
    VALUE_TOLERANCE,
    cheapest_reaching,
    distance,
    doubt_of,
    faster_probability,
    first,
    is_best,
    most_valuable,
    next_first,
    ranked,
)
from deepvm.planner.rejections import too_little_memory
from deepvm.planner.request import WORK_OBJECTIVES, Objective, PlanRequest, PolicyName, SolverName
from deepvm.planner.search.enumeration import Choice, Enumeration, SolveStatus, scoring
from deepvm.records import dataclass, replace

if TYPE_CHECKING:
    from deepvm.planner.measurement import NextMeasurement
    from deepvm.planner.recovery import Lives
    from deepvm.planner.search.frontier import Frontier


@dataclass(frozen=True)
class Alternative:
    """The best cluster by another objective; ``best``: whether none is over 1 % better."""

    objective: Objective
    recommendation: Recommendation
    best: bool


@dataclass(frozen=True)
class NextChange:
    """The next budget, $/h, that buys a better cluster; ``gain``: None if none is feasible now."""

    budget: Decimal
    recommendation: Recommendation
    gain: float | None


@dataclass(frozen=True)
class TracedLifetimes:
    """Lifetimes of the first plan's spot VMs by public traces, where AWS's band promises more."""

    lasts: Interval  # probability that all live as long as the job takes
    life_s: float  # mean lifetime that gives that probability
    factor: float  # over the band's
    first: Recommendation | None  # if spot VMs of all types live so many times as long


# Least gain in speed for which an option is recommended
MIN_GAIN_OF_AN_OPTION = 0.05


@dataclass(frozen=True)
class WithoutRecomputing:
    """A plan without activation checkpointing."""

    gain: float  # share by which it is faster
    passes: int  # of a batch
    samples: int  # of a pass on each GPU, at most


@dataclass(frozen=True, repr=False)
class Recommendations(Rows[Recommendation]):
    """The answer to a request: a sequence of recommendations, best first.

    Attributes:
        configurations: the ranked clusters; empty when nothing is feasible.
        alternatives: the best clusters by the other objectives, where they differ from the first.
        rejections: types that are in no feasible cluster, with reasons.
        next_change: the next budget that buys a better cluster. Where a model is trained: one that
            is better by 5 % and worth it, and of the budgets up to twice this one that where more
            money buys most.
        fastest: whether no trusted plan within the budget, the deadline aside, is over 1 % better
            where preemptions are as usual; without a budget per hour, none within the limits.
        nearly: the cheapest cluster with at least 95 % of the best one's throughput, or that takes
            at most 1 / 95 % of its expected time, if it saves at least 10 % of the price.
        on_demand: the best cluster of on-demand VMs alone under the same limits.
        single_gpu: where a model is trained, the best plan of one GPU under the same limits.
        status: how the search ended. solver: who proved the best cluster. doubt: why it is not
            proven.
        infeasible: why nothing is feasible and what to change; None when something is.
        cheapest: the cheapest feasible cluster at any budget.
        reference: the type that the job's step is measured on, None without a job.
        passed_over: what would come first, but for a warning of its own that refutes it.
        traced_lifetimes: with a job in eFLOPS, if asked for.
    """

    catalog: Catalog
    request: PlanRequest
    configurations: tuple[Recommendation, ...]
    alternatives: tuple[Alternative, ...]
    rejections: tuple[Rejection, ...]
    next_change: NextChange | None
    nearly: Recommendation | None
    on_demand: Recommendation | None
    status: SolveStatus
    solver: str
    speedup_kind: str
    doubt: str = ""
    infeasible: Infeasible | None = None
    cheapest: Recommendation | None = None
    reference: InstanceType | None = None
    fastest: bool = True
    passed_over: Recommendation | None = None
    traced_lifetimes: TracedLifetimes | None = None
    single_gpu: Recommendation | None = None

    @cached_property
    def next_measurement(self) -> NextMeasurement | None:
        speed = self.request.objective in (Objective.THROUGHPUT, Objective.MAKESPAN)
        if self.request.training is None or not self.configurations or not speed:
            return None
        # Slow to import, and only models need it
        from deepvm.planner.measurement import next_measurement, rivals

        return next_measurement(*rivals(self.catalog, self.request))

    @cached_property
    def frontier(self) -> Frontier:
        from deepvm.planner.search.frontier import frontier_of

        return frontier_of(self.catalog, self.request, self.rejections)

    @property
    def lives(self) -> Lives | None:
        if self.request.training is None:
            return None
        from deepvm.planner.recovery import lives_of

        return lives_of(self.configurations[0].cluster.gpu, self.request)

    @property
    def without_recomputing(self) -> WithoutRecomputing | None:
        """None where activations do not fit, the gain is small, or the user has decided."""
        training = self.request.training
        best = self.configurations[0]
        predicted = best.prediction
        if training is None or predicted is None or not predicted.checkpointing:
            return None
        workload = training.workload
        if workload.checkpointing is not None:
            return None
        plain = replace(workload, checkpointing=False)
        vms = np.array([float(best.cluster.gpu_count)])
        speed = training.speeds.speed(best.cluster.gpu, plain, vms)
        if isinstance(speed, str) or not speed.fits[0]:
            return None
        gain = float(speed.throughput[0]) / predicted.throughput.value - 1
        batch = workload.batch_on(speed.gpu_count)
        passes = math.ceil(batch / float(speed.micro_batch[0]) - 1e-9)
        if gain < MIN_GAIN_OF_AN_OPTION:
            return None
        return WithoutRecomputing(gain, passes, math.ceil(batch / passes))

    def __repr__(self) -> str:
        if self.infeasible is not None:
            return f"<Recommendations: {self.infeasible.reason}>"
        best, *others = self.configurations
        more = f"; {len(others)} more" if others else ""
        return (
            f"<Recommendations: {best.rank}: {best.cluster}, ${format_usd(best.usd_per_hour)}/h"
            f"{more}>"
        )

    @property
    def rows(self) -> tuple[Recommendation, ...]:  # type: ignore[override]
        return self.configurations


def solve(catalog: Catalog, request: PlanRequest) -> Recommendations:
    """Answer a validated request."""
    candidates = gather(catalog, request)
    request = candidates.request
    enumeration = candidates.plans(request.plans_of_a_size)
    budget = request.budget_micro_usd
    if request.derives_budget:  # no cluster costs more, and solvers like small numbers
        budget = int(enumeration.price.max(initial=0))
    choices = ranked(enumeration, request, budget, request.top)
    best = next(iter(choices), None)
    status = SolveStatus.OPTIMAL
    solver = "frontier"
    doubt = ""
    if request.solver is SolverName.ILP:
        # Loads PuLP and HiGHS, which the enumeration does not need
        from deepvm.planner.search import ilp

        proof = ilp.prove(enumeration.blocks, budget, time_limit_s=request.time_limit_s)
        status = proof.status
        solver = proof.solver
        doubt = _DOUBTS.get(status, "")
        proven, enumerated = (
            c and (c.cluster, c.price) for c in (proof.choice, enumeration.best(budget))
        )
        if not doubt and proven != enumerated:
            doubt = _DISAGREES
            status = SolveStatus.NUMERICAL
    next_change = None
    change = None
    if not request.derives_budget:
        change = next_first(enumeration, request, budget, best)
    if change is not None:
        gain = improvement(best, change, request)
        usd = Decimal(change.price) / MICRO_USD
        next_change = NextChange(usd, describe(change, candidates), gain)
    most = most_valuable(enumeration, request, budget, late=True)
    fastest = True
    passed_over = None
    if best is not None and most is not None:
        fastest = is_best(enumeration, request, budget, best)
        if most.refuted and most.value > best.value + abs(best.value) * (VALUE_TOLERANCE - 1):
            passed_over = describe(most, candidates)
    catalog = candidates.catalog
    described = tuple(_described(choices, candidates))
    if request.derives_budget and described:
        least = as_budget(described[0].counted_usd_per_hour)
        request = replace(request, budget=Decimal(least))
    cheapest = enumeration.cheapest()
    why = None if choices else infeasible(candidates, cheapest)
    if why is not None and not doubt:
        status = SolveStatus.INFEASIBLE
    return Recommendations(
        catalog=catalog,
        request=request,
        configurations=described,
        alternatives=tuple(_alternatives(enumeration, candidates, best)),
        rejections=tuple(_rejections(candidates, enumeration)),
        next_change=next_change,
        nearly=_nearly(enumeration, candidates, best),
        on_demand=_on_demand(enumeration, candidates),
        single_gpu=_single_gpu(enumeration, candidates, best),
        status=status,
        solver=solver,
        speedup_kind=request.curves_of(catalog),
        doubt=doubt,
        infeasible=why,
        cheapest=None if cheapest is None else describe(cheapest, candidates),
        reference=candidates.reference,
        fastest=fastest,
        passed_over=passed_over,
    )


def _described(choices: Sequence[Choice], candidates: Candidates) -> Iterator[Recommendation]:
    """The ranked plans, each with the probability that it is faster than the first."""
    speeds = [float(c.block.sizes.effective[c.size]) for c in choices]
    for rank, choice in enumerate(choices, start=1):
        recommendation = describe(
            choice, candidates, rank, binding(choice, candidates), elsewhere=True
        )
        if rank > 1 and recommendation.prediction is not None:
            ahead = float(np.log(speeds[rank - 1]) - np.log(speeds[0]))
            apart = distance(doubt_of(choices[0]), doubt_of(choice))
            odds = faster_probability(ahead, apart)
            recommendation = replace(
                recommendation,
                prediction=replace(recommendation.prediction, faster_than_first=odds),
            )
        yield recommendation


def ranking(catalog: Catalog, request: PlanRequest, count: int) -> Iterator[Recommendation]:
    """The best ``count`` clusters; at most ``request.top`` differ only in memory nodes."""
    candidates = gather(catalog, request)
    enumeration = candidates.plans(request.plans_of_a_size)
    choices = ranked(enumeration, request, request.budget_micro_usd, count)
    for place, choice in enumerate(choices, start=1):
        yield describe(choice, candidates, place, binding(choice, candidates))


_INSTEAD = "these clusters come from the exact enumeration"
_DOUBTS = {
    SolveStatus.TIME_LIMIT: f"the time limit ended the integer program; {_INSTEAD}",
    SolveStatus.NUMERICAL: f"the integer-program solver ran into numerical trouble; {_INSTEAD}",
}
_DISAGREES = (
    f"the integer program disagreed with the exact enumeration; {_INSTEAD}: please report this"
)


def _alternatives(
    enumeration: Enumeration, candidates: Candidates, best: Choice | None
) -> Iterator[Alternative]:
    request = candidates.request
    if best is None or not request.has_objective:
        return
    for objective in Objective:
        if objective is request.objective or (
            request.work is None and objective in WORK_OBJECTIVES
        ):
            continue
        asked = candidates.asked(objective=objective)
        other = asked.request
        if other.needs_work and not request.needs_work:  # these leave out endless jobs
            plans = asked.plans()
        else:
            plans = enumeration.scored(
                [replace(b, scoring=scoring(other, b.sizes)) for b in enumeration.blocks]
            )
        choice = first(plans, other, request.budget_micro_usd)
        if choice is not None and choice.cluster != best.cluster:
            r = describe(choice, asked, binding=binding(choice, asked))
            best_one = is_best(plans, other, request.budget_micro_usd, choice)
            yield Alternative(objective, r, best_one)


def _rejections(candidates: Candidates, enumeration: Enumeration) -> Iterator[Rejection]:
    yield from candidates.rejections
    budget = candidates.request.budget_micro_usd
    names, number = enumeration.trains
    types, first_rows = np.unique(number, return_index=True)
    cheapest_of = zip(types.tolist(), enumeration.price[first_rows].tolist(), strict=True)
    prices = {names[index]: price for index, price in cheapest_of}
    for name in dict.fromkeys(g.instance.name for g in candidates.gpus):
        cheapest = prices.get(name)
        if cheapest is None or cheapest > budget:
            yield rejection_of(candidates, name, cheapest)


def rejection_of(
    candidates: Candidates, name: str, cheapest: int | None, cluster: str = ""
) -> Rejection:
    """Why a type is in no cluster within the budget; ``cheapest``: its price, micro-dollars/h."""
    request = candidates.request
    instance = candidates.catalog[name]
    if cheapest is None:
        own = candidates.only(name)
        if instance.reserved is not None and request.work is not None:
            took_s = [float(s) for a in own.architectures for s in own.sizes(a).total_s]
            least_s = min(took_s, default=0.0)
            takes = "would never end"
            if math.isfinite(least_s):
                takes = f"would take {format_seconds(least_s)}"
            if least_s > instance.left_s:
                ends = (
                    f"its pool ends at {instance.reserved.until}, in"
                    f" {format_seconds(instance.left_s)}"
                )
                return Rejection(name, "reserved", f"{ends}, and the job {takes}")
        why = infeasible(own, None)
        return Rejection(name, why.constraint, why.reason)
    detail = f"its cheapest cluster{cluster} costs ${as_budget(cheapest)}/h{request.in_all}"
    lack = lacks_memory(candidates, name)
    if lack is None:
        return Rejection(name, "budget", detail)
    return replace(lack, detail=f"{lack.detail}; {detail}")


def lacks_memory(candidates: Candidates, name: str) -> Rejection | None:
    """The lack of memory of a type, if with enough memory it would be within the budget."""
    request = candidates.request
    own = candidates.only(name)
    instance = candidates.catalog[name]
    if request.work is not None and request.work.constrained:
        return None  # how long a cluster would take whose memory is too small is unknown
    if instance.gpu is None:
        enough = np.maximum(own.tier.share_bytes, own.tier.needed_bytes)
        tiered = tuple(a for a in own.architectures if a.tiered)
        own = replace(own, architectures=tiered, tier=replace(own.tier, share_bytes=enough))
    elif request.training is None or all((g.k > 0).all() for g in own.gpus):
        return None
    else:
        gpus = tuple(replace(g, k=np.ones(len(g.k))) for g in own.gpus)
        own = own.asked(objective=Objective.THROUGHPUT, work=None, training=None)
        own = replace(own, gpus=gpus)
    plan = own.plans().cheapest()
    if plan is None or plan.price > request.budget_micro_usd:
        return None
    if instance.gpu is None:
        rule = candidates.catalog.memory_nodes
        return Rejection(name, "memory", too_little_memory(instance, request, rule))
    speed = plan.speed
    if speed is not None and speed.needs:
        return Rejection(name, "gpu-memory", speed.needs)
    return None


# Share of the best throughput, and share of the price to save, of a cheaper plan to mention
NEARLY_AS_FAST = 0.95
MIN_SAVING = 0.10


def _nearly(
    enumeration: Enumeration, candidates: Candidates, best: Choice | None
) -> Recommendation | None:
    """The cheapest cluster that is nearly as fast, if it saves enough."""
    request = candidates.request
    fastest = request.objective in (Objective.THROUGHPUT, Objective.MAKESPAN)
    if best is None or not fastest or request.policy is not PolicyName.DEEPVM:
        return None
    enumeration = enumeration.only(np.arange(enumeration.affordable(best.price)))
    choice = cheapest_reaching(enumeration, request, best.value * NEARLY_AS_FAST)
    if choice is None or choice.price > (1 - MIN_SAVING) * best.price:
        return None
    return describe(choice, candidates)


def _single_gpu(
    enumeration: Enumeration, candidates: Candidates, best: Choice | None
) -> Recommendation | None:
    request = candidates.request
    if request.training is None or best is None:
        return None
    gpus = enumeration.column(lambda s: s.count * s.by_type(lambda t: t.gpu.count if t.gpu else 0))
    plans = enumeration.only(np.flatnonzero(gpus == 1))
    choice = first(plans, request, request.budget_micro_usd)
    if choice is None:
        return None
    return describe(choice, candidates)


def _on_demand(enumeration: Enumeration, candidates: Candidates) -> Recommendation | None:
    request = candidates.request
    if request.work is None and request.training is None:
        return None
    if (
        request.work is None
        and request.policy is PolicyName.DEEPVM
        and ON_DEMAND in candidates.architectures
    ):
        plans = enumeration.only(enumeration.block == candidates.architectures.index(ON_DEMAND))
    else:
        request = replace(request, policy=PolicyName.DEEPVM, architectures=(ON_DEMAND.name,))
        if request.work is not None:
            from deepvm.core.preemption.savepolicy import Never

            request = replace(request, work=replace(request.work, policy=Never()))
        # Gather again: types without a spot price are candidates only here
        if ON_DEMAND not in candidates.architectures:
            gathered = gather(candidates.catalog, request)
            candidates = replace(gathered, reference=candidates.reference or gathered.reference)
        candidates = replace(candidates, request=request, architectures=(ON_DEMAND,))
        plans = candidates.plans()
    choice = first(plans, request, request.budget_micro_usd)
    if choice is None:
        return None
    return describe(choice, candidates)
