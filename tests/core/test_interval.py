"""A figure with its doubt: what an interval says of other values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.interval import Interval

values = st.floats(1e-3, 1e9)


@given(value=values, sd=st.floats(0.001, 2.0))
def test_an_interval_holds_four_cases_in_five(value: float, sd: float) -> None:
    found = Interval.of_log(value, sd)
    assert found.probability_above(found.low) == pytest.approx(0.9)
    assert found.probability_above(found.value) == pytest.approx(0.5)
    assert found.probability_above(found.high) == pytest.approx(0.1)


@given(value=values, sd=st.floats(0.001, 2.0), one=values, other=values)
def test_more_is_less_likely(value: float, sd: float, one: float, other: float) -> None:
    found = Interval.of_log(value, sd)
    less, more = sorted((one, other))
    assert 0 <= found.probability_above(more) <= found.probability_above(less) <= 1


@given(value=values)
def test_what_is_known_exactly_is_above_or_not(value: float) -> None:
    assert Interval.exact(value).probability_above(value) == 1
    assert Interval.exact(value).probability_above(value * 1.01) == 0
