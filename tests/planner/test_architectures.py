"""The contract of an architecture, run on every entry of the registry."""

from __future__ import annotations

import inspect
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from support import oracle
from support.builders import catalog, cpu_type, gpu_type, paper
from support.effort import examples
from support.planner.agreement import assert_agree, blocks_for, by_ilp, enumerated, summary
from support.planner.strategies import Case, cases
from support.planning import explain, recommend

from deepvm.core.cluster.instances import Catalog, Market, Quota, ZonePrice
from deepvm.planner.columns import REGISTRY, Architecture
from deepvm.planner.request import PlanRequest
from deepvm.planner.search.enumeration import Block, SolveStatus
from deepvm.planner.search.ilp import Formulation, IntegerProgram, decode, formulate
from deepvm.services.recommend import sweep

UNDER_CONTRACT = {
    # name: (spot, on-demand) of 5 training VMs, markets, whether memory nodes stand beside them,
    # constraints
    "on-demand": ((0, 5), {Market.ON_DEMAND}, False, {"budget", "quota"}),
    "single-anchor": ((4, 1), {Market.SPOT, Market.ON_DEMAND}, False, {"budget", "quota"}),
    "spot-storage": ((5, 0), {Market.SPOT}, False, {"budget", "quota"}),
    "tiering": ((5, 0), {Market.SPOT}, True, {"budget", "quota", "memory", "saturation", "zone"}),
}
each = pytest.mark.parametrize("name", sorted(REGISTRY))


def small(name: str, catalog: Catalog | None = None) -> tuple[Block, PlanRequest]:
    """A block of this architecture in which budget and quotas of both markets matter."""
    request = PlanRequest(budget=Decimal(3), architectures=(name,), max_nodes=6)
    (block,) = blocks_for(catalog or paper(), request)
    return block, request


def formulated(block: Block, budget: int) -> Formulation:
    return formulate(block.sizes, block.tier if block.architecture.tiered else None, budget)


def test_every_architecture_is_under_contract() -> None:
    assert set(REGISTRY) == set(UNDER_CONTRACT), (
        "an architecture was added: write what it promises into UNDER_CONTRACT"
    )


def test_the_registry_is_in_the_order_of_its_names() -> None:
    # The enumeration breaks ties by the place of a block, the oracle by its name.
    assert list(REGISTRY) == sorted(REGISTRY)


def test_the_interface_stays_short() -> None:
    assert len(inspect.getsource(Architecture).splitlines()) < 50


@each
def test_it_describes_itself(name: str) -> None:
    architecture = REGISTRY[name]
    assert architecture.name == name
    assert architecture.smallest_count >= 1


@each
def test_markets_and_tier_are_as_promised(name: str) -> None:
    split, markets, tiered, _ = UNDER_CONTRACT[name]
    architecture = REGISTRY[name]
    assert architecture.markets == markets
    assert architecture.tiered is tiered
    on_demand = int(architecture.on_demand(np.array([5]))[0])
    assert (5 - on_demand, on_demand) == split


@each
def test_the_split_adds_up(name: str) -> None:
    architecture = REGISTRY[name]
    counts = np.arange(architecture.smallest_count, 300, dtype=np.int64)
    on_demand = architecture.on_demand(counts)
    assert on_demand.shape == counts.shape
    assert (on_demand >= 0).all() and (on_demand <= counts).all()


@each
def test_the_promised_constraints_are_those_of_the_formulation(name: str) -> None:
    somewhere = gpu_type("here", spot_zones=(ZonePrice("A", Decimal("0.3")),))
    apart = (
        cpu_type("near", zones=("A",)),
        cpu_type("far", zones=("B",), on_demand_usd_per_hour="0.1"),
    )
    quotas = [Quota(f, m, 64) for f in ("G and VT", "Standard") for m in Market]
    block, request = small(name, catalog(somewhere, *apart, quotas=tuple(quotas)))
    formulation = formulated(block, request.budget_micro_usd)
    assert {c.name for c in formulation.constraints} - {"choose"} == UNDER_CONTRACT[name][3]


@each
def test_the_program_is_plain_whole_numbers(name: str) -> None:
    block, request = small(name)
    formulation = formulated(block, request.budget_micro_usd)
    assert len(formulation.prices) == len(formulation.upper)
    assert all(upper == 1 for upper in list(formulation.upper.values())[: len(block.sizes)])
    for constraint in formulation.constraints:
        assert type(constraint.bound) is int
        assert all(type(x) is int for term in constraint.terms for x in term)


@each
def test_decode_reads_back_what_was_chosen(name: str) -> None:
    block, _ = small(name)
    formulation = formulated(block, 100_000_000)
    program = IntegerProgram(formulation, deadline=float("inf"))
    for row in range(len(block.sizes)):
        prices = {v: float(p) for v, p in enumerate(formulation.prices) if p}
        # The size is worth more than any price: the cheapest plan that has it.
        values = program.minimize(prices | {row: -1e9})
        assert formulation.violated(values) == ()
        found = decode(block, values)
        assert found.size == row
        assert found.price == found.cluster.micro_usd_per_hour
        assert found.price == sum(p * v for p, v in zip(formulation.prices, values, strict=True))
        assert (found.memory is not None) == block.architecture.tiered
        if found.memory is not None:
            needed = block.tier.needed(block.sizes.count[[row]], block.sizes.n_sat[[row]])[
                0, found.memory
            ]
            assert found.memory_count == needed


@each
def test_a_broken_constraint_is_named(name: str) -> None:
    block, _ = small(name)
    formulation = formulated(block, 1)
    nothing = [0] * len(formulation.upper)
    assert "choose" in formulation.violated(nothing)
    everything = list(formulation.upper.values())
    assert {"choose", "budget"} <= set(formulation.violated(everything))


@each
@settings(max_examples=examples(60))
@given(case=cases())
def test_solver_enumeration_and_oracle_agree(name: str, case: Case) -> None:
    request = replace(case.request, architectures=(name,))
    expected = oracle.answer(case.catalog, request)
    blocks = blocks_for(case.catalog, request)
    listed = enumerated(blocks, request)
    assert_agree(listed, expected, request)
    assert [summary(c) for c in by_ilp(blocks, request)] == [summary(c) for c in listed[:1]]


def test_an_architecture_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """n spot(v) <= PW, n >= 1: from here on it is planned, proven, explained and swept like any
    other.
    """
    monkeypatch.setitem(REGISTRY, "spot-only", Architecture("spot-only", np.zeros_like))
    proven = recommend(paper(), 3, architecture="spot-only", top=2)
    assert (proven.status, proven.doubt) == (SolveStatus.OPTIMAL, "")
    assert str(proven[0].cluster) == "19 x g4dn.xlarge (spot)"  # 19 x $0.1578/h
    assert list(proven) == list(
        recommend(paper(), 3, architecture="spot-only", top=2, solver="frontier")
    )
    assert recommend(paper(), 3)[0].cluster == proven[0].cluster
    (row,) = sweep(paper(), [3], ["deepvm"], architecture="spot-only")
    assert row.recommendation is not None
    assert row.recommendation.cluster == proven[0].cluster
    best = explain(paper(), 3, "g5.xlarge", architecture="spot-only").best
    assert best is not None
    assert best.cluster.architecture == "spot-only"
    none = recommend(paper(), "0.1", architecture="spot-only").infeasible
    assert none is not None
    assert none.constraint == "budget"
