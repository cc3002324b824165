"""What it means that planner and oracle agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal

from deepvm.core.cluster.instances import Catalog
from deepvm.planner.candidates import gather
from deepvm.planner.request import Objective, PlanRequest, PolicyName
from deepvm.planner.search import ilp
from deepvm.planner.search.enumeration import Block, Choice, Enumeration, SolveStatus
from deepvm.planner.search.frontier import Frontier, Step
from support.oracle import Plan


def blocks_for(shop: Catalog, request: PlanRequest) -> tuple[Block, ...]:
    candidates = gather(shop, request)
    return tuple(map(candidates.block, candidates.architectures))


def enumerated(blocks: Sequence[Block], request: PlanRequest) -> list[Choice]:
    return Enumeration.build(blocks, request.top).top(request.budget_micro_usd, request.top)


class NumericalTrouble(Exception):
    """The integer program says itself that its answer is not to be believed."""


def by_ilp(blocks: Sequence[Block], request: PlanRequest) -> list[Choice]:
    """The best plan by the integer program alone, if there is one: :func:`deepvm.recommend` would
    hide a wrong answer.

    Raises:
        NumericalTrouble: when it gives up.
    """
    found = ilp.prove(blocks, request.budget_micro_usd, time_limit_s=60)
    if found.status is SolveStatus.NUMERICAL:
        raise NumericalTrouble
    assert found.status is (SolveStatus.OPTIMAL if found.choice else SolveStatus.INFEASIBLE)
    return [found.choice] if found.choice else []


def step_at(frontier: Frontier, budget: Decimal) -> Step | None:
    return next((s for s in reversed(frontier.steps) if s.budget <= budget), None)


def summary(choice: Choice) -> tuple[str, str, int, str, int, int, str]:
    cluster = choice.cluster
    memory = (cluster.memory.instance.name, cluster.memory.count) if cluster.memory else ("", 0)
    assert cluster.micro_usd_per_hour == choice.price
    assert choice.memory_count == memory[1]
    zone = cluster.zone.zone if cluster.zone else ""
    return (cluster.architecture, cluster.gpu.name, cluster.gpu_count, *memory, choice.price, zone)


def assert_agree(choices: Sequence[Choice], expected: Sequence[Plan], request: PlanRequest) -> None:
    """The same clusters in the same order at the same prices, with the same values."""
    assert [summary(c) for c in choices] == [(*p.cluster, p.micro_usd, p.zone) for p in expected]
    if request.policy is PolicyName.PERFORMANCE_FIRST:
        return  # its value is a place in an order, not an amount
    per_dollar = (
        request.objective is Objective.COST_PER_WORK and request.policy is not PolicyName.COST_FIRST
    )
    for choice, plan in zip(choices, expected, strict=True):
        # The planner counts money in micro-dollars, the oracle in dollars.
        value = choice.value / 10**6 if per_dollar else choice.value
        assert math.isclose(value, float(plan.value[0]), rel_tol=1e-9)
