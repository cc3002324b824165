"""Pruning keeps everything that can be among the best k."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from support import oracle
from support.effort import examples
from support.planner.agreement import blocks_for, enumerated, summary
from support.planner.strategies import Case, cases

from deepvm.planner.search import enumeration, ilp
from deepvm.planner.search.enumeration import Enumeration, price_order, skyband

tables = arrays.arrays(
    np.int64,
    st.tuples(st.integers(0, 12), st.integers(1, 4)),
    elements=st.sampled_from([-3, 0, 0, 1, 2, 5]),
)


def naive(costs: np.ndarray, depth: int) -> list[bool]:
    """The definition, row by row."""
    kept = []
    for i, row in enumerate(costs.tolist()):
        dominators = 0
        for j, other in enumerate(costs.tolist()):
            if all(b <= a for a, b in zip(row, other, strict=True)) and (row != other or j < i):
                dominators += 1
        kept.append(dominators < depth)
    return kept


@settings(max_examples=examples(500))
@given(costs=tables, depth=st.integers(1, 4))
def test_skyband_is_its_definition(costs: np.ndarray, depth: int) -> None:
    assert skyband(costs, depth).tolist() == naive(costs, depth)


@settings(max_examples=examples(300))
@given(costs=tables, depth=st.integers(1, 3))
def test_blocks_change_nothing(costs: np.ndarray, depth: int) -> None:
    with mock.patch.object(enumeration, "_ROWS_AT_ONCE", 2):
        assert skyband(costs, depth).tolist() == naive(costs, depth)


def test_more_rows_than_a_block() -> None:
    for depth in [1, 2, 5]:
        costs = np.random.default_rng(7).integers(0, 12, (700, 3))
        assert skyband(costs, depth).tolist() == naive(costs, depth)


def test_equal_rows_are_kept_in_their_order() -> None:
    costs = np.array([[2, 2], [1, 1], [1, 1], [1, 1]])
    assert skyband(costs, 1).tolist() == [False, True, False, False]
    assert skyband(costs, 2).tolist() == [False, True, True, False]
    assert skyband(costs, 4).tolist() == [True, True, True, True]


@given(values=st.lists(st.integers(0, 5), max_size=20))
def test_price_order_is_the_place_in_a_stable_sort(values: list[int]) -> None:
    order = price_order(np.array(values, dtype=np.int64)).tolist()
    assert order == [
        sorted((v, i) for i, v in enumerate(values)).index((v, i)) for i, v in enumerate(values)
    ]


@settings(max_examples=examples(150))
@given(case=cases())
def test_the_tier_is_pruned_without_loss(case: Case) -> None:
    blocks = blocks_for(case.catalog, case.request)
    pruned = [summary(c) for c in enumerated(blocks, case.request)]
    with mock.patch.object(
        enumeration, "useful_tier", lambda tier, *_, **__: np.ones(len(tier), dtype=np.bool_)
    ):
        whole = [summary(c) for c in enumerated(blocks, case.request)]
    assert pruned == whole


@settings(max_examples=examples(150))
@given(case=cases())
def test_the_best_plan_survives_both_prunings(case: Case) -> None:
    for block in blocks_for(case.catalog, case.request):
        request = replace(case.request, architectures=(block.architecture.name,), top=1)
        for plan in oracle.answer(case.catalog, request):
            useful = ilp.useful(block, request.budget_micro_usd)
            kept = zip(useful.sizes.type_index.tolist(), useful.sizes.count.tolist(), strict=True)
            assert (plan.gpu, plan.count) in {(useful.sizes.types[t].name, n) for t, n in kept}
            assert not plan.memory or plan.memory in [t.name for t in useful.tier.types]


def test_nothing_in_nothing_out() -> None:
    assert skyband(np.zeros((0, 2), dtype=np.int64), 1).tolist() == []
    assert len(Enumeration.build([])) == 0
    assert Enumeration.build([]).best(10**9) is None
    assert Enumeration.build([]).cheapest() is None
    assert Enumeration.build([]).next_change(0) is None
    assert Enumeration.build([]).top(10**9, 3) == []
