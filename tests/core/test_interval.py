"""A figure with its doubt: what an interval says of other values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lognormal import probability_above

from deepvm.core.units import Interval

values = st.floats(1e-3, 1e9)


@given(value=values, sd=st.floats(0.001, 2.0))
def test_an_interval_holds_four_cases_in_five(value: float, sd: float) -> None:
    found = Interval.of_log(value, sd)
    assert probability_above(found, found.low) == pytest.approx(0.9)
    assert probability_above(found, found.value) == pytest.approx(0.5)
    assert probability_above(found, found.high) == pytest.approx(0.1)


@given(value=values, sd=st.floats(0.001, 2.0), one=values, other=values)
def test_more_is_less_likely(value: float, sd: float, one: float, other: float) -> None:
    found = Interval.of_log(value, sd)
    less, more = sorted((one, other))
    assert 0 <= probability_above(found, more) <= probability_above(found, less) <= 1


@given(value=values)
def test_what_is_known_exactly_is_above_or_not(value: float) -> None:
    assert probability_above(Interval.exact(value), value) == 1
    assert probability_above(Interval.exact(value), value * 1.01) == 0
