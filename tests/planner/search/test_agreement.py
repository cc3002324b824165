"""The integer program, the enumeration and the brute-force oracle give the same answers."""

from __future__ import annotations

import pytest
from hypothesis import event, given, settings
from support import oracle
from support.effort import examples
from support.planner.agreement import NumericalTrouble, assert_agree, blocks_for, by_ilp, enumerated
from support.planner.strategies import Case, cases

from deepvm.planner.recommend import solve
from deepvm.planner.search.enumeration import SolveStatus


@settings(max_examples=examples(1200))
@given(case=cases())
def test_enumeration_agrees_with_the_oracle(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(
        enumerated(blocks_for(case.catalog, case.request), case.request), expected, case.request
    )


@settings(max_examples=examples(400))
@given(case=cases())
def test_integer_program_agrees_with_the_oracle(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(
        by_ilp(blocks_for(case.catalog, case.request), case.request), expected[:1], case.request
    )


def assert_right_or_in_doubt(case: Case) -> None:
    """Where a micro-dollar is close to the tolerances, a solver may give up, but must not answer
    wrongly.
    """
    expected = oracle.answer(case.catalog, case.request)
    blocks = blocks_for(case.catalog, case.request)
    assert_agree(enumerated(blocks, case.request), expected, case.request)
    try:
        found = by_ilp(blocks, case.request)
    except NumericalTrouble:
        event("numerical trouble")
    else:
        assert_agree(found, expected[:1], case.request)


@settings(max_examples=examples(200))
@given(case=cases("extreme"))
def test_integer_program_is_right_or_in_doubt_at_extreme_prices(case: Case) -> None:
    assert_right_or_in_doubt(case)


@settings(max_examples=examples(100))
@given(case=cases("absurd"))
def test_recommend_is_right_where_solvers_are_not(case: Case) -> None:
    """At 100 $000/h HiGHS is wrong now and then; the answer is right all the same, and says so."""
    answer = solve(case.catalog, case.request)
    expected = oracle.answer(case.catalog, case.request)
    assert [
        (r.cluster.gpu.name, r.cluster.gpu_count, r.cluster.micro_usd_per_hour) for r in answer
    ] == [(p.gpu, p.count, p.micro_usd) for p in expected]
    event(answer.status.value)
    assert (answer.status is SolveStatus.NUMERICAL) == bool(answer.doubt)


@pytest.mark.slow
@settings(max_examples=examples(8000))
@given(case=cases())
def test_integer_program_agrees_with_the_oracle_at_length(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(
        by_ilp(blocks_for(case.catalog, case.request), case.request), expected[:1], case.request
    )


@pytest.mark.slow
@settings(max_examples=30_000)
@given(case=cases())
def test_enumeration_agrees_with_the_oracle_at_length(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(
        enumerated(blocks_for(case.catalog, case.request), case.request), expected, case.request
    )


@pytest.mark.slow
@settings(max_examples=examples(5000))
@given(case=cases("extreme"))
def test_integer_program_is_right_or_in_doubt_at_extreme_prices_at_length(case: Case) -> None:
    assert_right_or_in_doubt(case)
