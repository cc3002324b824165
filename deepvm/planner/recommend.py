"""Candidates, constraints, an exact solution, a ranking with reasons: the planner's front door."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import overload

from deepvm.core.cluster import Recommendation, Rejection
from deepvm.core.instances import Catalog, Quota
from deepvm.core.units import MICRO_USD, Money, usd
from deepvm.planner.build import blocks_of, describe
from deepvm.planner.candidates import Candidates, gather
from deepvm.planner.explain import binding, infeasible_reason
from deepvm.planner.formulation import SolveStatus
from deepvm.planner.frontier import Block, Choice, Frontier, rank
from deepvm.planner.policies import architectures_of, scoring
from deepvm.planner.request import Objective, PlanRequest, PolicyName, SolverName


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
        gain: by how much its value is better, as a share; None if nothing is feasible now.
    """

    budget: Decimal
    recommendation: Recommendation
    gain: float | None


@dataclass(frozen=True)
class Recommendations(Sequence[Recommendation]):
    """The answer to a request: a sequence of recommendations, best first, with everything around them.

    Attributes:
        configurations: the ranked clusters; empty when nothing is feasible.
        alternatives: the best clusters by the other objectives, where they differ from the first.
        rejections: types that are in no feasible cluster, with reasons.
        next_change: the next budget that buys a better cluster, None when none does.
        status: how the search ended. solver: who did it.
        reason: why there is no configuration, or why they are not proven to be the best; empty otherwise.
        relax: the constraint to relax when nothing is feasible.
        cheapest: the cheapest feasible cluster at any budget.
    """

    catalog: Catalog
    request: PlanRequest
    configurations: tuple[Recommendation, ...]
    alternatives: tuple[Alternative, ...]
    rejections: tuple[Rejection, ...]
    next_change: NextChange | None
    status: SolveStatus
    solver: str
    speedup_kind: str
    reason: str = ""
    relax: str = ""
    cheapest: Recommendation | None = None

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
    catalog: Catalog,
    budget: Money,
    *,
    checkpoint_size: str | int = 300_000_000,
    buffers: int = 2,
    objective: str = "throughput",
    policy: str = "deepvm",
    architecture: str | Sequence[str] = (),
    speedup: str | None = None,
    gpu: str | Sequence[str] = (),
    instance_type: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    memory_node: str | Sequence[str] = (),
    max_nodes: int = 255,
    quotas: Iterable[Quota] | None = None,
    top: int = 3,
    solver: str = "ilp",
    time_limit_s: float = 60.0,
) -> Recommendations:
    """Rank the clusters that train fastest for a budget.

    Args:
        catalog: the types and prices; see :func:`deepvm.load_catalog`.
        budget: the most to pay, $/h (the paper's pricing willingness PW).
        checkpoint_size: bytes, or text such as ``"300MB"``; with ``buffers``, what a memory node must hold (eq. 6).
        buffers: checkpoints that a memory node holds at once.
        objective: ``throughput``, ``flopp`` or ``cost-per-work``.
        policy: ``deepvm``, ``noscale``, ``cost-first`` or ``performance-first``.
        architecture: ``single-anchor``, ``tiering``, or both (default).
        speedup: ``hybrid``, ``ring`` or ``measured``; None for the catalogue's default.
        gpu: glob(s) on GPU models.
        instance_type: glob(s) on the types that train.
        exclude: glob(s) on types that must not be used.
        memory_node: glob(s) on the types that hold checkpoints.
        max_nodes: the most VMs that train in one cluster.
        quotas: account limits; None for those of the catalogue, empty for none.
        top: how many clusters to rank.
        solver: ``ilp`` or ``frontier``; both are exact and agree.
        time_limit_s: seconds for the integer program.

    Returns:
        The ranked clusters; empty with a reason when nothing is feasible.

    Raises:
        RequestError: an argument cannot be used. MissingDataError: the catalogue lacks what was asked for.
    """
    request = PlanRequest.parse(
        budget,
        checkpoint_size=checkpoint_size,
        buffers=buffers,
        objective=objective,
        policy=policy,
        architecture=architecture,
        speedup=speedup,
        gpu=gpu,
        instance_type=instance_type,
        exclude=exclude,
        memory_node=memory_node,
        max_nodes=max_nodes,
        quotas=quotas,
        top=top,
        solver=solver,
        time_limit_s=time_limit_s,
    )
    return plan(catalog, request)


def plan(catalog: Catalog, request: PlanRequest) -> Recommendations:
    """Answer a validated request; see :func:`recommend`."""
    candidates = gather(catalog, request, architectures_of(request))
    blocks = blocks_of(candidates, request)
    frontier = Frontier.build(blocks, request.top)
    expected = frontier.top(request.budget_micro_usd, request.top)
    choices, status, solver, reason = expected, SolveStatus.OPTIMAL, "frontier", ""
    if request.solver is SolverName.ILP:
        choices, status, solver = _by_integer_program(blocks, request)
        reason = _doubt(choices, expected, status)
        if reason and status is not SolveStatus.TIME_LIMIT:
            choices, status = expected, SolveStatus.NUMERICAL
    relax, cheapest = "", frontier.cheapest()
    if not choices and not reason:
        status = SolveStatus.INFEASIBLE
        relax, reason = infeasible_reason(catalog, request, candidates, cheapest)
    best = choices[0] if choices else None
    return Recommendations(
        catalog=catalog,
        request=request,
        configurations=tuple(
            describe(c, i, candidates, binding(c, candidates, request)) for i, c in enumerate(choices, start=1)
        ),
        alternatives=_alternatives(blocks, candidates, request, best),
        rejections=_rejections(catalog, candidates, frontier, request),
        next_change=_next_change(frontier, candidates, request),
        status=status,
        solver=solver,
        speedup_kind=candidates.speedup_kind,
        reason=reason,
        relax=relax,
        cheapest=None if cheapest is None else describe(cheapest, 1, candidates),
    )


def _by_integer_program(blocks: Sequence[Block], request: PlanRequest) -> tuple[list[Choice], SolveStatus, str]:
    """Solve each architecture (DeepVM step 3), then compare them (step 4)."""
    from deepvm.planner import ilp  # loads PuLP and HiGHS, which the enumeration does without

    choices: list[Choice] = []
    status, solver = SolveStatus.OPTIMAL, ""
    for block in blocks:
        found = ilp.solve(block, request.budget_micro_usd, request.top, time_limit_s=request.time_limit_s)
        choices += found.choices
        solver = found.solver or solver
        if found.status not in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE):
            status = found.status
    return rank(choices, request.top), status, solver


def _doubt(choices: Sequence[Choice], expected: Sequence[Choice], status: SolveStatus) -> str:
    """Why the integer program's answer should not be taken as proven; empty when the enumeration agrees with it."""
    if status is SolveStatus.TIME_LIMIT:
        return "the time limit ended the search: better clusters may exist; raise --time-limit or use --solver frontier"
    if status is SolveStatus.NUMERICAL:
        return "the integer-program solver ran into numerical trouble; these clusters come from the exact enumeration"
    if [(c.cluster, c.price) for c in choices] != [(c.cluster, c.price) for c in expected]:
        return (
            "the integer-program solver disagreed with the exact enumeration, whose clusters these are: please report"
        )
    return ""


def _alternatives(
    blocks: Sequence[Block], candidates: Candidates, request: PlanRequest, best: Choice | None
) -> tuple[Alternative, ...]:
    """The best clusters by the other objectives; the baselines have no objective to disagree about."""
    if best is None or not _has_objective(request):
        return ()
    found = []
    for objective in Objective:
        if objective is not request.objective:
            other = replace(request, objective=objective)
            scored = [replace(block, scoring=scoring(other, block.sizes)) for block in blocks]
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
    for gpu in candidates.gpus:
        name = gpu.instance.name
        cheapest = prices.get(name)
        if cheapest is None:
            relax, reason = infeasible_reason(catalog, request, replace(candidates, gpus=(gpu,)), None)
            found.append(Rejection(name, relax, reason))
        elif cheapest > request.budget_micro_usd:
            detail = f"its cheapest cluster costs {usd(cheapest):.4f} $/h"
            found.append(Rejection(name, "budget", detail))
    return tuple(found)


def _next_change(frontier: Frontier, candidates: Candidates, request: PlanRequest) -> NextChange | None:
    budget = request.budget_micro_usd
    now, change = frontier.best(budget), frontier.next_change(budget)
    if change is None:
        return None
    gain = None
    if now is not None and _has_objective(request):
        gain = (change.value - now.value) / abs(now.value)
    elif now is not None:  # a baseline's value is an order, not an amount
        work = [float(c.block.sizes.throughput[c.size]) for c in (now, change)]
        gain = work[1] / work[0] - 1
    return NextChange(Decimal(change.price) / MICRO_USD, describe(change, 1, candidates), gain)


def _has_objective(request: PlanRequest) -> bool:
    return request.policy in (PolicyName.DEEPVM, PolicyName.NOSCALE)
