"""The integer program, the enumeration and the brute-force oracle give the same answers."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import given, settings

from planner.agreement import assert_agree, blocks_for, by_frontier, by_ilp
from planner.strategies import Case, cases


@settings(max_examples=1500)
@given(case=cases())
def test_frontier_agrees_with_the_oracle(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_frontier(blocks_for(case.catalog, case.request), case.request), expected, case.request)


@settings(max_examples=500)
@given(case=cases())
def test_integer_program_agrees_with_the_oracle(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_ilp(blocks_for(case.catalog, case.request), case.request), expected, case.request)


@settings(max_examples=25)
@given(case=cases())
def test_cbc_agrees_with_the_oracle(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_ilp(blocks_for(case.catalog, case.request), case.request, ("cbc",)), expected, case.request)


@settings(max_examples=200)
@given(case=cases("extreme"))
def test_integer_program_agrees_where_a_micro_dollar_is_below_the_tolerances(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    blocks = blocks_for(case.catalog, case.request)
    assert_agree(by_frontier(blocks, case.request), expected, case.request)
    assert_agree(by_ilp(blocks, case.request), expected, case.request)


@pytest.mark.slow
@settings(max_examples=8000)
@given(case=cases())
def test_integer_program_agrees_with_the_oracle_at_length(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_ilp(blocks_for(case.catalog, case.request), case.request), expected, case.request)


@pytest.mark.slow
@settings(max_examples=30_000)
@given(case=cases())
def test_frontier_agrees_with_the_oracle_at_length(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_frontier(blocks_for(case.catalog, case.request), case.request), expected, case.request)


@pytest.mark.slow
@settings(max_examples=8000)
@given(case=cases("extreme"))
def test_integer_program_agrees_where_a_micro_dollar_is_below_the_tolerances_at_length(case: Case) -> None:
    expected = oracle.answer(case.catalog, case.request)
    assert_agree(by_ilp(blocks_for(case.catalog, case.request), case.request), expected, case.request)
