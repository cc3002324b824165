"""Price against speed: the best plan of each budget, and the outcome for each GPU type."""

from collections.abc import Iterator, Sequence
from decimal import Decimal

import numpy as np

from deepvm.core.arrays import BoolArray, FloatArray, IntArray
from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import Catalog
from deepvm.core.units import MICRO_USD, budget_micro_usd
from deepvm.planner.candidates import Candidates, gather
from deepvm.planner.describe import describe, improvement
from deepvm.planner.ranking import first, firsts
from deepvm.planner.request import PlanRequest
from deepvm.planner.search.enumeration import Choice, Enumeration
from deepvm.records import dataclass

# Largest budget examined, relative to the request's or to the cheapest plan's if higher.
BUDGET_FACTOR = 2


@dataclass(frozen=True)
class Step:
    """The best plan from a budget, $/h, on; up to that of the next step."""

    budget: Decimal
    recommendation: Recommendation


@dataclass(frozen=True)
class Machines:
    """All clusters that differ in what trains, at their lowest price, the cheapest first.

    Columns as of a :class:`deepvm.planner.columns.TrainingTable`; prices include memory nodes.
    """

    types: tuple[str, ...]
    type_index: IntArray
    spot: IntArray
    on_demand: IntArray
    usd_per_hour: FloatArray
    effective: FloatArray
    trusted: BoolArray


@dataclass(frozen=True)
class TypeOutcome:
    """The outcome for a GPU type: its best cluster within the budget, or why there is none."""

    instance_type: str
    gpu: str
    best: Recommendation | None = None
    # share below the first choice (describe.improvement); < 0: better, not first
    gap: float | None = None
    rejection: Rejection | None = None


@dataclass(frozen=True)
class Frontier:
    """The answer at every budget up to ``most``, $/h; ``types``: each GPU type, by name."""

    most: Decimal
    steps: tuple[Step, ...]
    machines: Machines
    types: tuple[TypeOutcome, ...]


def frontier_of(
    catalog: Catalog, request: PlanRequest, rejections: Sequence[Rejection]
) -> Frontier:
    """The answer to the same request at every budget, exactly and from one enumeration."""
    candidates = gather(catalog, request)
    enumeration = candidates.plans()
    cheapest = enumeration.cheapest()
    budget = budget_micro_usd(request.budget)
    most = BUDGET_FACTOR * max(budget, 0 if cheapest is None else cheapest.price)
    steps = list(firsts(enumeration, most) if request.weighs_doubt else _bests(enumeration, most))
    winner = next((c for price, c in reversed(steps) if price <= budget), None)
    return Frontier(
        most=Decimal(most) / MICRO_USD,
        steps=tuple(
            Step(Decimal(price) / MICRO_USD, describe(c, candidates)) for price, c in steps
        ),
        machines=_machines(enumeration, enumeration.affordable(most)),
        types=tuple(_outcomes(rejections, candidates, enumeration, winner)),
    )


def _bests(enumeration: Enumeration, most: int) -> Iterator[tuple[int, Choice]]:
    """:meth:`Enumeration.best` of every budget: it changes only where the best value does."""
    within = enumeration.affordable(most)
    best = enumeration.best_so_far[:within]
    price = enumeration.price[:within]
    rises = np.flatnonzero(np.diff(best, prepend=-np.inf) > 0)
    last: Choice | None = None
    for budget in np.unique(price[rises]).tolist():
        choice = enumeration.best(budget)
        # Values that are equal but for rounding are one.
        if choice is not None and (last is None or choice.cluster != last.cluster):
            last = choice
            yield budget, choice


def _machines(enumeration: Enumeration, within: int) -> Machines:
    """The first plan of each (type, spot VMs, on-demand VMs) of those within a price."""
    names, number = enumeration.trains
    column = enumeration.column
    machines = np.stack(
        [number, column(lambda sizes: sizes.spot), column(lambda sizes: sizes.on_demand)]
    )
    rows = np.sort(np.unique(machines[:, :within], axis=1, return_index=True)[1])
    kind, spot, on_demand = machines[:, rows]
    return Machines(
        names,
        kind,
        spot,
        on_demand,
        enumeration.price[rows] / MICRO_USD,
        column(lambda sizes: sizes.effective)[rows],
        column(lambda sizes: sizes.trusted)[rows],
    )


def _outcomes(
    rejections: Sequence[Rejection],
    candidates: Candidates,
    enumeration: Enumeration,
    winner: Choice | None,
) -> Iterator[TypeOutcome]:
    reasons = {r.instance_type: r for r in rejections}
    request = candidates.request
    names, number = enumeration.trains
    for instance in sorted(candidates.catalog, key=lambda i: i.name):
        if instance.gpu is None:
            continue
        name = instance.name
        model = f"{instance.gpu.count} x {instance.gpu.name}"
        choice = None  # what would come first if no other type trained
        if name in names:
            own = enumeration.only(np.flatnonzero(number == names.index(name)))
            choice = first(own, request, request.budget_micro_usd)
        if choice is None:
            yield TypeOutcome(name, model, rejection=reasons.get(name))
            continue
        better = improvement(winner, choice, request)
        gap = None if better is None else 0.0 - better
        yield TypeOutcome(name, model, describe(choice, candidates), gap)
