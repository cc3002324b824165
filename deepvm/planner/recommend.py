"""Candidates, constraints, an exact solution, a ranking with reasons: the planner's front door."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, overload

import numpy as np

from deepvm.core.cluster.cluster import Recommendation, Rejection
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.core.units import MICRO_USD, Money, format_usd
from deepvm.planner.architectures.formulation import SolveStatus
from deepvm.planner.binding_constraints import binding
from deepvm.planner.candidates import Candidates, gather
from deepvm.planner.describe import block_of, blocks_of, describe, improvement, with_next_zone
from deepvm.planner.infeasible import Infeasible, infeasible
from deepvm.planner.request import WORK_OBJECTIVES, Objective, PlanRequest, PolicyName, SolverName, with_tables
from deepvm.planner.scoring import architectures_of, scoring
from deepvm.planner.search.frontier import Block, Choice, Frontier

if TYPE_CHECKING:
    from typing import Unpack

    from deepvm.planner.request import MeasuredTables, PlanOptions
    from deepvm.planner.search.ilp import Proof


@dataclass(frozen=True)
class Alternative:
    """The best cluster by another objective."""

    objective: Objective
    recommendation: Recommendation


@dataclass(frozen=True)
class NextChange:
    """What more money buys.

    Attributes:
        budget: the next budget, $/h, at which the best cluster is a better one.
        recommendation: that cluster.
        gain: by how much it is better, as a share (see :func:`deepvm.planner.describe.improvement`); None if nothing is
            feasible now.
    """

    budget: Decimal
    recommendation: Recommendation
    gain: float | None


@dataclass(frozen=True, repr=False)
class Recommendations(Sequence[Recommendation]):
    """The answer to a request: a sequence of recommendations, best first, with everything around them.

    Attributes:
        configurations: the ranked clusters; empty when nothing is feasible.
        alternatives: the best clusters by the other objectives, where they differ from the first.
        rejections: types that are in no feasible cluster, with reasons.
        next_change: the next budget that buys a better cluster, None when none does.
        nearly: the cheapest cluster with at least 95 % of the best one's throughput, or that takes at most 1 / 95 % of
            its expected time, where it saves at least 10 % of the price; None otherwise, and by other objectives.
        on_demand: the best cluster of on-demand VMs alone under the same limits, to compare with; None without a job.
        status: how the search ended. solver: who proved the best cluster.
        doubt: why the integer program did not prove it; empty when it did.
        infeasible: why nothing is feasible and what to change; None when something is.
        cheapest: the cheapest feasible cluster at any budget.
        reference: the type that the job's step is measured on, None without a job.
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

    def __repr__(self) -> str:
        """The ranked clusters, or why there are none; not the whole catalog."""
        if self.infeasible is not None:
            return f"<Recommendations: {self.infeasible.reason}>"
        ranked = "; ".join(f"{r.rank}: {r.cluster}, {format_usd(r.usd_per_hour)} $/h" for r in self.configurations)
        return f"<Recommendations: {ranked}>"

    def __len__(self) -> int:
        """How many clusters are ranked."""
        return len(self.configurations)

    def __iter__(self) -> Iterator[Recommendation]:
        """Best first."""
        return iter(self.configurations)

    @overload
    def __getitem__(self, index: int) -> Recommendation: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Recommendation]: ...

    def __getitem__(self, index: int | slice) -> Recommendation | Sequence[Recommendation]:
        """The recommendation at this place, 0 is the best."""
        return self.configurations[index]


def recommend(
    catalog: Catalog, budget: Money, *, tables: MeasuredTables | None = None, **options: Unpack[PlanOptions]
) -> Recommendations:
    """Rank the clusters that train fastest for a budget.

    Args:
        catalog: the types and prices; see :func:`deepvm.load_catalog`.
        budget: the most to pay, $/h (the paper's pricing willingness PW).
        tables: what was measured on your own machines, ``deepvm.load_tables()``; None for the catalog's own figures.
        **options: by keyword, with their defaults:

            - ``checkpoint_size=300_000_000``: bytes, or text such as ``"300MB"``;
            - ``buffers=2``: checkpoints that a memory node must hold at once (eq. 6);
            - ``objective="throughput"``, or ``"flopp"``, ``"cost-per-work"``;
            - ``policy="deepvm"``, or ``"noscale"``, ``"cost-first"``, ``"performance-first"``;
            - ``architecture=()``: ``"single-anchor"``, ``"tiering"``; none for all;
            - ``speedup=None``: ``"hybrid"``, ``"ring"``, ``"measured"``; None for the catalog's default;
            - ``gpu``, ``instance_type``, ``exclude``, ``memory_node``: glob or globs;
            - ``gpus_min``, ``gpus_max``: GPUs of a VM; ``gpu_memory_min`` and ``_max``, ``gpu_total_memory_min`` and
              ``_max``: bytes, or text such as ``"24GiB"``, of each GPU and of all of a VM;
            - ``cpu_architecture=None``: ``"x86_64"`` or ``"arm64"``; ``generation="auto"``, ``"current"`` or ``"any"``;
            - ``estimates=False``: also types whose eFLOPS are estimated; ``burstable=False``: also memory nodes that
              run at full speed only while they have credits;
            - ``max_nodes=255``: the most VMs that train in one cluster;
            - ``quotas=None``: account limits; None for those of the catalog, empty for none;
            - ``top=3``: how many clusters to rank;
            - ``solver="ilp"``: an integer program proves the best cluster; ``"frontier"``: the enumeration alone;
            - ``time_limit_s=60.0``: seconds for the integer program;
            - what is to be trained: see :class:`deepvm.planner.request.WorkOptions`; objectives ``makespan`` and
              ``total-cost`` need it.

    Returns:
        The ranked clusters; empty with a reason when nothing is feasible.

    Raises:
        RequestError: an argument cannot be used.
        MissingDataError: the catalog lacks what was asked for.
    """
    return plan(with_tables(catalog, tables), PlanRequest.parse(budget, **options))


def plan(catalog: Catalog, request: PlanRequest) -> Recommendations:
    """Answer a validated request; see :func:`recommend`."""
    candidates = gather(catalog, request, architectures_of(request))
    blocks = blocks_of(candidates, request)
    frontier = Frontier.build(blocks, request.top)
    choices = frontier.top(request.budget_micro_usd, request.top)
    status, solver, doubt = SolveStatus.OPTIMAL, "frontier", ""
    if request.solver is SolverName.ILP:
        from deepvm.planner.search import ilp  # loads PuLP and HiGHS, which the enumeration does without

        proof = ilp.prove(blocks, request.budget_micro_usd, time_limit_s=request.time_limit_s)
        status, solver = proof.status, proof.solver
        doubt = _doubt(proof, choices)
        if doubt and status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
            status = SolveStatus.NUMERICAL
    cheapest = frontier.cheapest()
    why = None if choices else infeasible(catalog, request, candidates, cheapest)
    if why is not None and not doubt:
        status = SolveStatus.INFEASIBLE
    best = choices[0] if choices else None
    return Recommendations(
        catalog=catalog,
        request=request,
        configurations=tuple(
            with_next_zone(describe(c, i, candidates, binding(c, candidates, request)), c)
            for i, c in enumerate(choices, start=1)
        ),
        alternatives=_alternatives(blocks, candidates, request, best),
        rejections=_rejections(catalog, candidates, frontier, request),
        next_change=_next_change(frontier, candidates, request),
        nearly=_nearly(frontier, candidates, request, best),
        on_demand=_on_demand(candidates, request),
        status=status,
        solver=solver,
        speedup_kind=candidates.speedup_kind,
        doubt=doubt,
        infeasible=why,
        cheapest=None if cheapest is None else describe(cheapest, 1, candidates),
        reference=candidates.reference,
    )


def ranking(catalog: Catalog, request: PlanRequest, count: int) -> Iterator[Recommendation]:
    """The best ``count`` clusters, best first, each made when it is asked for.

    For whoever looks further than :func:`plan` answers: of one training with several memory nodes at most
    ``request.top`` clusters stand in it.
    """
    candidates = gather(catalog, request, architectures_of(request))
    choices = Frontier.build(blocks_of(candidates, request), request.top).top(request.budget_micro_usd, count)
    for place, choice in enumerate(choices, start=1):
        yield describe(choice, place, candidates, binding(choice, candidates, request))


def _doubt(proof: Proof, ranked: Sequence[Choice]) -> str:
    """Why the integer program does not prove the best cluster; empty when it does."""
    instead = "; these clusters come from the exact enumeration"
    if proof.status is SolveStatus.TIME_LIMIT:
        return f"the time limit ended the integer program{instead}"
    if proof.status is SolveStatus.NUMERICAL:
        return f"the integer-program solver ran into numerical trouble{instead}"
    proven, best = ((c.cluster, c.price) if c else None for c in (proof.choice, next(iter(ranked), None)))
    if proven != best:
        return f"the integer program disagreed with the exact enumeration{instead}: please report this"
    return ""


def _scored(block: Block, request: PlanRequest) -> Block:
    """A block under another objective."""
    sizes = block.sizes.take(np.isfinite(block.sizes.total_s)) if request.needs_work else block.sizes
    return replace(block, sizes=sizes, scoring=scoring(request, sizes))


def _alternatives(
    blocks: Sequence[Block], candidates: Candidates, request: PlanRequest, best: Choice | None
) -> tuple[Alternative, ...]:
    """The best clusters by the other objectives; the baselines have no objective to disagree about."""
    if best is None or not _has_objective(request):
        return ()
    found = []
    for objective in Objective:
        if objective is not request.objective and (request.work is not None or objective not in WORK_OBJECTIVES):
            other = replace(request, objective=objective)
            scored = [_scored(block, other) for block in blocks]
            choice = Frontier.build(scored).best(request.budget_micro_usd)
            if choice is not None and choice.cluster != best.cluster:
                reasons = binding(choice, candidates, other)
                found.append(Alternative(objective, describe(choice, 1, candidates, reasons)))
    return tuple(found)


def _rejections(
    catalog: Catalog, candidates: Candidates, frontier: Frontier, request: PlanRequest
) -> tuple[Rejection, ...]:
    """The types that were no candidates, and GPU types none of whose clusters is feasible."""
    found = list(candidates.rejections)
    prices = frontier.cheapest_of_each_type()
    for name in dict.fromkeys(g.instance.name for g in candidates.gpus):
        cheapest = prices.get(name)
        if cheapest is None:
            only = tuple(g for g in candidates.gpus if g.instance.name == name)
            why = infeasible(catalog, request, replace(candidates, gpus=only), None)
            found.append(Rejection(name, why.constraint, why.reason))
        elif cheapest > request.budget_micro_usd:
            kept = " that keeps to the job's limits" if request.work is not None and request.work.constrained else ""
            detail = f"its cheapest cluster{kept} costs {format_usd(cheapest)} $/h"
            found.append(Rejection(name, "budget", detail))
    return tuple(found)


NEARLY, WORTH_SAVING = 0.95, 0.10


def _nearly(
    frontier: Frontier, candidates: Candidates, request: PlanRequest, best: Choice | None
) -> Recommendation | None:
    """The cheapest cluster that is nearly as fast, if it saves enough to be worth a line."""
    fastest = request.objective in (Objective.THROUGHPUT, Objective.MAKESPAN)
    if best is None or not fastest or request.policy is not PolicyName.DEEPVM:
        return None
    enough = best.value * NEARLY if best.value > 0 else best.value / NEARLY  # times are compared as -seconds
    choice = frontier.choice(int(np.searchsorted(frontier.best_so_far, enough)))
    return describe(choice, 1, candidates) if choice.price <= (1 - WORTH_SAVING) * best.price else None


def _on_demand(candidates: Candidates, request: PlanRequest) -> Recommendation | None:
    """The best cluster that nobody takes away, and that need not be saved for it."""
    if candidates.work is None:
        return None
    from deepvm.core.preemption.savepolicy import Never
    from deepvm.planner.architectures.on_demand import OnDemand

    candidates = replace(candidates, work=replace(candidates.work, policy=Never()))
    request = replace(request, policy=PolicyName.DEEPVM)
    choice = Frontier.build([block_of(OnDemand(), candidates, request)]).best(request.budget_micro_usd)
    return None if choice is None else describe(choice, 1, candidates)


def _next_change(frontier: Frontier, candidates: Candidates, request: PlanRequest) -> NextChange | None:
    budget = request.budget_micro_usd
    now, change = frontier.best(budget), frontier.next_change(budget)
    if change is None:
        return None
    gain = None if now is None else improvement(now, change, request)
    return NextChange(Decimal(change.price) / MICRO_USD, describe(change, 1, candidates), gain)


def _has_objective(request: PlanRequest) -> bool:
    return request.policy in (PolicyName.DEEPVM, PolicyName.NOSCALE)
