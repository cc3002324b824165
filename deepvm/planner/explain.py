"""Why a type is not in the best cluster."""

from decimal import Decimal

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.spelling import examples, listed
from deepvm.core.units import MICRO_USD, format_usd
from deepvm.errors import RequestError
from deepvm.planner.candidates import gather
from deepvm.planner.describe import binding, describe, improvement
from deepvm.planner.ranking import (
    MAX_LATE_PROBABILITY,
    MIN_WORTHWHILE_GAIN,
    VALUE_TOLERANCE,
    cheapest_reaching,
    first,
)
from deepvm.planner.recommend import rejection_of
from deepvm.planner.rejections import why_absent
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search.enumeration import Block, Choice, Enumeration, tie_floor
from deepvm.records import dataclass, replace


@dataclass(frozen=True, repr=False)
class WhyNot(Answer):
    """The answer to "why not this type?"."""

    catalog: Catalog
    instance_type: str
    verdict: str
    best: Recommendation | None = None  # the best cluster with this type within the budget
    gap: float | None = None  # how far that is below the winner (describe.improvement)
    matches_at: Decimal | None = None  # budget, $/h, at which this type would equal the winner
    rejection: Rejection | None = None  # why the type is in no feasible cluster at all
    reference: InstanceType | None = None  # the type that the job's step is measured on
    units: str = ""  # of throughputs; empty for eFLOPS

    def __repr__(self) -> str:
        return f"<WhyNot: {self.verdict}>"


def why_not(catalog: Catalog, request: PlanRequest, name: str) -> WhyNot:
    """Answer a validated request; see :func:`deepvm.explain`."""
    units = ""
    if request.workload is not None:
        units = request.workload.units
    if name not in catalog.by_name:
        raise RequestError("explain", name, allowed_type(catalog, name))
    budget = request.budget_micro_usd
    candidates = gather(catalog, request)
    rejection = next((r for r in candidates.rejections if r.instance_type == name), None)
    tiered = any(a.tiered for a in candidates.architectures)
    if rejection is None and catalog[name].gpu is None and not tiered:
        names = " and ".join(a.name for a in candidates.architectures) or request.policy.value
        rejection = Rejection(name, "excluded", f"{names} clusters have no memory nodes")
    if rejection is not None:
        verdict = f"{name} is not considered: {rejection.detail}"
        return WhyNot(catalog, name, verdict, rejection=rejection, units=units)
    plans = candidates.plans()
    winner = first(plans, request, budget)
    # The same blocks with fewer rows, so that values that are ranks stay comparable.
    enumeration = Enumeration.build([_having(b, name) for b in plans.blocks])
    best = first(enumeration, request, budget)
    if best is None:
        cheapest = enumeration.cheapest()
        if cheapest is None:
            rejection = rejection_of(candidates, name, None)
            verdict = "is in no cluster"
        else:
            rejection = rejection_of(candidates, name, cheapest.price, f", {cheapest.cluster},")
            verdict = "is beyond the budget"
            if rejection.reason in ("memory", "gpu-memory"):
                verdict = "has too little memory"
        text = f"{name} {verdict}: {rejection.detail}"
        return WhyNot(catalog, name, text, rejection=rejection, units=units)
    assert winner is not None  # since a plan with this type is feasible
    why = WhyNot(
        catalog,
        name,
        f"{name} is in the best cluster",
        describe(best, candidates, binding=binding(best, candidates), elsewhere=True),
        0.0,
        Decimal(best.price) / MICRO_USD,
        reference=candidates.reference,
        units=units,
    )
    if best.cluster == winner.cluster:
        return why
    better = improvement(winner, best, request)
    equal = cheapest_reaching(enumeration, request, tie_floor(winner.value))
    return replace(
        why,
        verdict=_verdict(name, best, winner, enumeration, request),
        gap=None if better is None else -better,
        matches_at=None if equal is None else Decimal(equal.price) / MICRO_USD,
    )


def allowed_type(catalog: Catalog, name: str) -> str:
    """What an error allows instead of a type that a catalog does not have."""
    absence = why_absent(catalog, name)
    allowed = f"a type of catalog {catalog.name}{f' ({absence})' if absence else ''}"
    gpu = name.casefold()
    with_it = [i.name for i in catalog if i.gpu is not None and i.gpu.name.casefold() == gpu]
    if with_it:
        return f"{allowed}; {listed(with_it)} have it"
    return allowed + examples(name, catalog.by_name)


def _having(block: Block, name: str) -> Block:
    sizes = block.sizes
    nodes = block.tier.only(name)
    if block.architecture.tiered and len(nodes):
        return replace(block, tier=nodes)
    rows = sizes.by_type(lambda t: t.name == name).astype(np.bool_)
    scored = replace(block.scoring, scores=block.scoring.scores[rows])
    return replace(block, sizes=sizes.take(rows), scoring=scored)


def _matched(enumeration: Enumeration, winner: Choice, request: PlanRequest) -> str:
    floor = tie_floor(winner.value)
    equal = cheapest_reaching(enumeration, request, floor)
    if equal is not None:
        return (
            f"it would equal the winner's ${format_usd(winner.price)}/h cluster at"
            f" ${format_usd(equal.price)}/h"
        )
    if cheapest_reaching(enumeration, request, floor, late=True) is not None:
        return "what would equal the winner misses the deadline more often than once in ten times"
    if enumeration.reaching(floor) is not None:
        return (
            "only clusters larger than any that were measured would equal the winner: --extrapolate"
        )
    return "no cluster with it that the quotas and the number of nodes allow equals the winner"


def _verdict(
    name: str, best: Choice, winner: Choice, enumeration: Enumeration, request: PlanRequest
) -> str:
    cluster = f"The best cluster with {name}, {best.cluster} at ${format_usd(best.price)}/h,"
    ahead = improvement(winner, best, request)
    late = float(best.block.sizes.late[best.size])
    misses = f"misses the deadline in {late:.0%} of cases"
    if request.weighs_doubt and ahead is not None and best.value > winner.value:
        if not best.block.sizes.trusted[best.size]:
            but = "larger than such clusters that were measured"
        elif late > MAX_LATE_PROBABILITY:
            but = misses
        elif ahead >= MIN_WORTHWHILE_GAIN - 1 and best.value > 0:
            but = "too uncertain"
        else:
            but = "too little"
        price = f"at {best.price / winner.price:.2f} times the winner's price"
        return f"{cluster} is {ahead:.1%} better, but {but}, {price}; {winner.cluster} is first"
    close = ahead is not None and -ahead < VALUE_TOLERANCE - 1
    if request.weighs_doubt and close and best.price <= winner.price:
        order = "lower quota needs, rarer interruptions and lower prices decide, in this order"
        return (
            f"{cluster} is within 1 % of the winner, {winner.cluster} at"
            f" ${format_usd(winner.price)}/h; {order}"
        )
    if best.value >= tie_floor(winner.value):
        costs = "the same; fewer memory nodes, then names decide"
        if best.price > winner.price:
            costs = f"${format_usd(best.price - winner.price)}/h more"
        return f"{cluster} is as good as the winner and costs {costs}"
    share = "no measured throughput to compare"
    if ahead is not None and request.policy is PolicyName.DEEPVM:
        worse = -ahead
        if request.objective is Objective.MAKESPAN:  # compared by jobs in the same time
            worse /= 1 + ahead
        share = f"{worse:.1%} {_WORSE[request.objective]}"
    elif ahead is not None:
        more = "more" if ahead >= 0 else "less"
        share = f"{abs(ahead):.1%} {more} throughput, which this policy does not rank by"
    if late > MAX_LATE_PROBABILITY:
        share += f" and {misses}"
    return f"{cluster} has {share}; {_matched(enumeration, winner, request)}"


_WORSE = {
    Objective.THROUGHPUT: "less throughput",
    Objective.FLOPP: "lower Z",
    Objective.COST_PER_WORK: "higher cost per work",
    Objective.MAKESPAN: "longer expected time",
    Objective.TOTAL_COST: "higher expected bill",
}
