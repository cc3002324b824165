"""Why a type is not in the best cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.meanings import meant_type
from deepvm.core.spelling import examples, listed
from deepvm.core.units import MICRO_USD, format_usd
from deepvm.errors import RequestError
from deepvm.planner.candidates import gather
from deepvm.planner.describe import binding, blocks_of, describe, improvement
from deepvm.planner.infeasible import rejection_of
from deepvm.planner.ranking import CLOSE, LITTLE, SELDOM, cheapest_reaching, first
from deepvm.planner.rejections import why_absent
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.scoring import tie_floor
from deepvm.planner.search.enumeration import Block, Choice, Enumeration


@dataclass(frozen=True, repr=False)
class WhyNot(Answer):
    """The answer to "why not this type?".

    Attributes:
        catalog: the one that was asked about.
        best: the best cluster with this type within the budget, None when there is none.
        gap: how far that is below the winner, as a share
            (:func:`deepvm.planner.describe.improvement`), or None.
        matches_at: the lowest budget, $/h, at which a cluster with this type would equal the
            winner, None if never.
        rejection: why the type is in no feasible cluster at all, None when it is.
        reference: the type that the job's step is measured on, None without a job or without
            ``best``.
        units: of throughputs, such as ``tokens/s``; empty where eFLOPS are counted.
    """

    catalog: Catalog
    instance_type: str
    verdict: str
    best: Recommendation | None = None
    gap: float | None = None
    matches_at: Decimal | None = None
    rejection: Rejection | None = None
    reference: InstanceType | None = None
    units: str = ""

    def __repr__(self) -> str:
        """The verdict."""
        return f"<WhyNot: {self.verdict}>"


def why_not(catalog: Catalog, request: PlanRequest, name: str) -> WhyNot:
    """Answer a validated request; see :func:`deepvm.explain`."""
    units = "" if request.training is None else request.training.workload.units
    return replace(_why_not(catalog, request, name), units=units)


def _why_not(catalog: Catalog, request: PlanRequest, name: str) -> WhyNot:
    known = catalog.by_name
    if name not in known:
        absence = why_absent(catalog, name)
        allowed = f"a type of catalog {catalog.name}{f' ({absence})' if absence else ''}"
        with_it = [
            i.name
            for i in catalog
            if i.gpu is not None and i.gpu.name.casefold() == name.casefold()
        ]
        allowed += (
            f"; {listed(with_it)} have it"
            if with_it
            else examples(name, known, meant_type(name, known))
        )
        raise RequestError("explain", name, allowed)
    budget = request.budget_micro_usd
    candidates = gather(catalog, request)
    rejection = next((r for r in candidates.rejections if r.instance_type == name), None)
    if (
        rejection is None
        and known[name].gpu is None
        and not any(a.tiered for a in candidates.architectures)
    ):
        names = " and ".join(a.name for a in candidates.architectures) or request.policy.value
        rejection = Rejection(name, "excluded", f"{names} clusters have no memory nodes")
    if rejection is not None:
        return WhyNot(
            catalog, name, f"{name} is not considered: {rejection.detail}", rejection=rejection
        )
    blocks = blocks_of(candidates)
    winner = first(Enumeration.build(blocks), request, budget)
    # The same blocks with fewer rows, so that values that are ranks stay comparable.
    enumeration = Enumeration.build([_having(b, name) for b in blocks])
    best = first(enumeration, request, budget)
    if best is None:
        cheapest = enumeration.cheapest()
        price = None if cheapest is None else cheapest.price
        cluster = f", {cheapest.cluster}," if cheapest else ""
        rejection = rejection_of(candidates, name, price, cluster)
        verdict = "is in no cluster"
        if cheapest is not None:
            short = rejection.reason in ("memory", "gpu-memory")
            verdict = "has too little memory" if short else "is beyond the budget"
        text = f"{name} {verdict}: {rejection.detail}"
        return WhyNot(catalog, name, text, rejection=rejection)
    found = describe(best, candidates, binding=binding(best, candidates), elsewhere=True)
    assert winner is not None  # if any plan has this type
    if best.cluster == winner.cluster:
        verdict = f"{name} is in the best cluster"
        price_usd = Decimal(best.price) / MICRO_USD
        return WhyNot(catalog, name, verdict, found, 0.0, price_usd, reference=candidates.reference)
    better = improvement(winner, best, request)
    gap = None if better is None else -better
    equal = cheapest_reaching(enumeration, request, tie_floor(winner.value))
    matches_at = None if equal is None else Decimal(equal.price) / MICRO_USD
    verdict = _verdict(
        name, best, winner, gap, _matched(enumeration, winner, matches_at, request), request
    )
    return WhyNot(catalog, name, verdict, found, gap, matches_at, reference=candidates.reference)


def _having(block: Block, name: str) -> Block:
    """The plans of a block with a type."""
    sizes = block.sizes
    tier = block.tier
    nodes = np.array([t.name == name for t in tier.types], dtype=np.bool_)
    if block.architecture.tiered and nodes.any():
        return replace(block, tier=tier.take(nodes))
    rows = np.array([t.name == name for t in sizes.types], dtype=np.bool_)[sizes.type_index]
    return replace(block, sizes=sizes.take(rows), scoring=block.scoring.take(rows))


def _matched(
    enumeration: Enumeration, winner: Choice, matches_at: Decimal | None, request: PlanRequest
) -> str:
    """At which price a type would equal the winner, or why at none."""
    floor = tie_floor(winner.value)
    if matches_at is not None:
        return (
            f"it would equal the winner's {format_usd(winner.price)} $/h cluster at"
            f" {format_usd(matches_at)} $/h"
        )
    if cheapest_reaching(enumeration, request, floor, late=True) is not None:
        return "what would equal the winner misses the deadline more often than once in ten times"
    if enumeration.reaching(floor) is not None:
        return (
            "only clusters larger than what such ones were measured with would equal the winner:"
            " --extrapolate"
        )
    return "no cluster with it that the quotas and the number of nodes allow equals the winner"


def _verdict(
    name: str, best: Choice, winner: Choice, gap: float | None, matched: str, request: PlanRequest
) -> str:
    what = f"The best cluster with {name}, {best.cluster} at {format_usd(best.price)} $/h,"
    ahead = improvement(winner, best, request)
    late = float(best.block.sizes.late[best.size])
    misses = f" and misses the deadline in {late:.0%} of cases" if late > SELDOM else ""
    if best.value > winner.value and request.weighs_doubt and ahead is not None:
        price = f"{best.price / winner.price:.2f} times the winner's price"
        if not best.block.sizes.trusted[best.size]:
            return (
                f"{what} is {ahead:.1%} better on paper, but larger than what such clusters were"
                " measured with"
            )
        if late > SELDOM:
            return f"{what} is {ahead:.1%} better{misses}; {winner.cluster} is first"
        if ahead >= LITTLE - 1 and best.value > 0:
            return (
                f"{what} is {ahead:.1%} better, but too uncertain, at {price}; {winner.cluster} is"
                " first"
            )
        hardly = "hardly" if ahead < 0.0005 else f"only {ahead:.1%}"
        return f"{what} is {hardly} better, at {price}; {winner.cluster} is first"
    if request.weighs_doubt and gap is not None and gap < CLOSE - 1 and best.price <= winner.price:
        order = "lower quota needs, rarer interruptions and lower prices decide, in this order"
        return (
            f"{what} is within 1 % of the winner, {winner.cluster} at {format_usd(winner.price)}"
            f" $/h; {order}"
        )
    if best.value >= tie_floor(winner.value):
        over = best.price - winner.price
        if not over:
            return (
                f"{what} is as good as the winner and costs the same; fewer memory nodes, then"
                " names decide"
            )
        return f"{what} is as good as the winner and costs {format_usd(over)} $/h more"
    share = "no measured throughput to compare"
    if gap is not None and request.policy is PolicyName.DEEPVM:
        # Makespans are compared by jobs in the same time.
        worse = gap / (1 - gap) if request.objective is Objective.MAKESPAN else gap
        share = f"{worse:.1%} {_WORSE[request.objective]}"
    elif gap is not None:
        share = (
            f"{abs(gap):.1%} {'less' if gap > 0 else 'more'} throughput, which is not what this"
            " policy looks at"
        )
    return f"{what} has {share}{misses}; {matched}"


_WORSE = {
    Objective.THROUGHPUT: "less throughput",
    Objective.FLOPP: "lower Z",
    Objective.COST_PER_WORK: "higher cost per work",
    Objective.MAKESPAN: "longer expected time",
    Objective.TOTAL_COST: "higher expected bill",
}
