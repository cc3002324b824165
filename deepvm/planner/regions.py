"""One request in several regions or clouds, ranked together; a cluster is in one of them.

Each region has its own catalog, so no cluster, and no memory node of one, is ever in two of them.
"""

from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from deepvm.core.answer import Answer
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.extras import COSTS
from deepvm.core.units import MICRO_USD, format_usd
from deepvm.planner.describe import by_memory_nodes
from deepvm.planner.ranking import MAX_GAIN_IN_DOUBT, Plans, band_of, distance, doubt_of
from deepvm.planner.recommend import Recommendations
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search.enumeration import counted_share, tie_floor
from deepvm.records import dataclass, replace

_MAX_BUDGET_FACTOR = Decimal("1.1")


@dataclass(frozen=True)
class RankedPlan:
    """A recommendation, with its rank among all regions, and its region's answer."""

    answer: Recommendations
    recommendation: Recommendation


@dataclass(frozen=True)
class Omission:
    """A cloud, or one region of it, that was asked for and is not in the comparison."""

    cloud: str
    reason: str
    region: str = ""


@dataclass(frozen=True)
class AccountSource:
    """Where a limit of new accounts is documented."""

    cloud: str
    says: str
    url: str
    read: str


@dataclass(frozen=True)
class NewAccount:
    """Why a new account may not rent the first plan, and what it may rent.

    ``plan``: the best of those compared. ``cloud``: where it is, or else which cloud has some, up
    to ``usd_per_hour``; empty: none is known.
    """

    reason: str
    plan: RankedPlan | None
    cloud: str
    usd_per_hour: float | None
    sources: tuple[AccountSource, ...]


@dataclass(frozen=True, repr=False)
class Comparison(Answer):
    """The answers of several regions, the best region first, and the best clusters of all."""

    answers: tuple[Recommendations, ...]
    ranked: tuple[RankedPlan, ...]
    left_out: tuple[Omission, ...] = ()
    new_account: NewAccount | None = None

    @property
    def of_several_clouds(self) -> bool:
        return len({cloud_name(a.catalog) for a in self.answers}) > 1

    def place(self, catalog: Catalog) -> str:
        """A catalog's location: the region, after the cloud if several (``gcp us-central1``)."""
        if self.of_several_clouds:
            return f"{cloud_name(catalog)} {catalog.region}"
        return catalog.region

    @property
    def first_for_more(self) -> tuple[Decimal, RankedPlan] | None:
        """The lowest budget up to 10 % higher, $/h, at which another answer comes first; which.

        By the rules of :func:`compare`, with what that budget buys in each of them.
        """
        request = self.answers[0].request
        changes = [
            (c.budget, RankedPlan(a, c.recommendation))
            for a in self.answers
            if (c := a.next_change) is not None
        ]
        firsts = [RankedPlan(a, a[0]) for a in self.answers if a]
        most = request.budget * _MAX_BUDGET_FACTOR
        for budget in sorted({budget for budget, _ in changes if budget <= most}):
            bought = [placed for least, placed in changes if least <= budget]
            left = sorted([*firsts, *bought], key=_tie_break)
            best = left[_first(left, request)]
            if best.answer is not self.answers[0]:
                return budget, best
        return None

    def __repr__(self) -> str:
        regions = ", ".join(self.place(a.catalog) for a in self.answers)
        if not self.ranked:
            return f"<Comparison of {regions}: nothing is feasible>"
        best = self.ranked[0].recommendation
        price = format_usd(best.usd_per_hour)
        where = self.place(self.ranked[0].answer.catalog)
        return f"<Comparison of {regions}: best {best.cluster}, ${price}/h in {where}>"


def compare(answers: Sequence[Recommendations]) -> Comparison:
    """Rank the clusters of all answers by the rules within one region, then by region name."""
    if len(answers) == 1:
        return Comparison(
            tuple(answers), tuple(RankedPlan(answers[0], r) for r in answers[0].configurations)
        )
    left = sorted((RankedPlan(a, r) for a in answers for r in a), key=_tie_break)
    ranked: list[RankedPlan] = []
    while left:
        best = left.pop(_first(left, answers[0].request))
        ranked.append(
            replace(best, recommendation=replace(best.recommendation, rank=len(ranked) + 1))
        )
    # Two clouds may have regions of the same name.
    best_rank = {_where(p.answer.catalog): p.recommendation.rank for p in reversed(ranked)}
    order = sorted(
        answers,
        key=lambda a: (best_rank.get(_where(a.catalog), len(ranked) + 1), *_where(a.catalog)),
    )
    return Comparison(tuple(order), tuple(ranked[: answers[0].request.top]))


def cloud_name(catalog: Catalog) -> str:
    """The cloud of a market's catalog, ``aws`` of ``aws-us-east-1``; else the catalog's name."""
    if catalog.region:
        return catalog.name.removesuffix(f"-{catalog.region}")
    return catalog.name


def _where(catalog: Catalog) -> tuple[str, str]:
    return catalog.region, catalog.name


def _first(left: Sequence[RankedPlan], request: PlanRequest) -> int:
    """The index of the plan that comes first.

    One that may be unavailable, or whose bill is not fully known, comes after the best of the
    others, unless it is more than a quarter better.
    """
    best = _best(left, request)
    sure = [i for i, p in enumerate(left) if _is_sure(p, request)]
    if best in sure or not sure:
        return best
    other = sure[_best([left[i] for i in sure], request)]
    value, certain = (_worth(left[i].recommendation, request)[0] for i in (best, other))
    near = certain >= value * MAX_GAIN_IN_DOUBT
    if value > 0:
        near = certain * MAX_GAIN_IN_DOUBT >= value
    if near:
        return other
    return best


def _is_sure(placed: RankedPlan, request: PlanRequest) -> bool:
    """Whether it is known to be available, with rates for all that users ask of the bill."""
    bill = placed.recommendation.bill
    extras = request.extras
    if bill is None:
        unknown = set(COSTS)
    else:
        unknown = {part.name for part in bill.not_counted if part.unknown}
    return not placed.answer.catalog.unsure and not (unknown & set(extras.given)) - extras.excluded


def _best(left: Sequence[RankedPlan], request: PlanRequest) -> int:
    """The index of the best plan as if each were available, of equals the first."""
    worth = [_worth(p.recommendation, request) for p in left]
    if not request.weighs_doubt:
        floors = [tie_floor(value) for value in max(worth)]
        return next(
            i for i, w in enumerate(worth) if all(x >= y for x, y in zip(w, floors, strict=True))
        )
    clusters = [p.recommendation.cluster for p in left]
    predictions = [p.recommendation.prediction for p in left]
    doubts = [doubt_of(cluster) for cluster in clusters]

    plans = Plans(
        value=np.array([value for (value,) in worth]),
        price=np.array(
            [int(p.recommendation.counted_usd_per_hour * MICRO_USD) for p in left], dtype=np.int64
        ),
        type_number=np.arange(len(left), dtype=np.int64),
        vcpus=np.array(
            [sum(g.count * g.instance.vcpus for g in c.groups) for c in clusters], dtype=np.int64
        ),
        band=np.array([band_of(c.gpu) if c.spot_count else -1 for c in clusters], dtype=np.int64),
        trusted=np.array([p is None or p.trusted for p in predictions]),
        late=np.array([p.recommendation.late for p in left]),
        refuted=np.array([p.recommendation.refuted for p in left]),
        apart=lambda row, other: distance(doubts[row], doubts[other]),
    )
    return plans.first(np.ones(len(left), dtype=np.bool_))


def _tie_break(placed: RankedPlan) -> tuple[object, ...]:
    cluster = placed.recommendation.cluster
    where = _where(placed.answer.catalog)
    nodes, node = by_memory_nodes(cluster)
    names = (cluster.architecture, cluster.gpu.name, cluster.gpu_count, node, *where)
    return (placed.recommendation.counted_usd_per_hour, nodes, *names)


def _worth(r: Recommendation, request: PlanRequest) -> tuple[float, ...]:
    """What the policy maximizes, comparable between catalogs; higher is better."""
    if request.policy is PolicyName.PERFORMANCE_FIRST:
        return (r.cluster.gpu.eflops or 0.0, float(r.cluster.gpu_count))
    if request.needs_work and request.policy is PolicyName.DEEPVM and r.outlook is not None:
        # From the outlook, not from ``value``: these may be simulated means
        longer = 1.0
        if r.prediction is not None:
            kept = r.prediction.kept
            longer = float(kept.value / counted_share(kept.value, kept.low))
        if request.objective is Objective.MAKESPAN:
            return (1 / (longer * r.outlook.total_s),)
        return (-longer * r.outlook.cost_usd,)
    return (r.value,)
