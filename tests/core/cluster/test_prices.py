"""Prices over time: every price counts for as long as it held."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.cluster.prices import PriceBasis, PricePoint, price_over_time, windows_below
from deepvm.errors import RequestError

HOUR = 3600


def changes(*pairs: tuple[int, str]) -> list[PricePoint]:
    return [PricePoint(at, Decimal(price)) for at, price in pairs]


def test_a_price_counts_for_its_time_and_not_for_its_row() -> None:
    # 9 hours at 0.10, then three changes within the last hour: an average over rows would say
    # 0.775.
    found = changes((0, "0.10"), (9 * HOUR, "1.0"), (9 * HOUR + 60, "1.0"), (9 * HOUR + 120, "1.0"))
    assert price_over_time(found, 0, 10 * HOUR, PriceBasis.P50) == Decimal("0.10")
    assert price_over_time(found, 0, 10 * HOUR, PriceBasis.P95) == Decimal("1.0")
    assert price_over_time(found, 0, 10 * HOUR, PriceBasis.MAX) == Decimal("1.0")


def test_what_held_at_the_beginning_was_set_before_it() -> None:
    found = changes((-100 * HOUR, "0.2"), (5 * HOUR, "0.4"))
    assert price_over_time(found, 0, 10 * HOUR, PriceBasis.P50) == Decimal("0.2")
    assert price_over_time(found, 5 * HOUR, 10 * HOUR, PriceBasis.P50) == Decimal("0.4")
    assert price_over_time(found, 6 * HOUR, 10 * HOUR, PriceBasis.MAX) == Decimal("0.4")


def test_a_share_that_is_met_exactly_is_met() -> None:
    found = changes((0, "0.1"), (95, "0.9"))
    assert price_over_time(found, 0, 100, PriceBasis.P95) == Decimal("0.1")
    assert price_over_time(found, 0, 101, PriceBasis.P95) == Decimal("0.9")


def test_time_before_the_first_price_does_not_count() -> None:
    assert price_over_time(changes((90, "0.3")), 0, 100, PriceBasis.P50) == Decimal("0.3")
    assert price_over_time(changes((100, "0.3")), 0, 100, PriceBasis.P50) is None
    assert price_over_time([], 0, 100, PriceBasis.MAX) is None


def test_current_is_the_last_one() -> None:
    assert price_over_time(changes((5, "0.3"), (1, "0.2")), 0, 100, PriceBasis.CURRENT) == Decimal(
        "0.3"
    )


def test_an_empty_window_is_refused() -> None:
    with pytest.raises(RequestError, match="end_s: 5"):
        price_over_time([], 5, 5, PriceBasis.P50)


@given(
    pairs=st.lists(st.tuples(st.integers(-50, 120), st.integers(1, 5)), max_size=12),
    basis=st.sampled_from([PriceBasis.P50, PriceBasis.P95, PriceBasis.MAX]),
)
def test_it_is_what_counting_second_by_second_gives(
    pairs: list[tuple[int, int]], basis: PriceBasis
) -> None:
    points = [PricePoint(at, Decimal(price)) for at, price in pairs]
    seconds = []
    for second in range(100):
        before = [p for p in points if p.at_s <= second]
        if before:
            latest = max(p.at_s for p in before)
            seconds.append([p.usd_per_hour for p in before if p.at_s == latest][-1])
    found = price_over_time(points, 0, 100, basis)
    if not seconds:
        assert found is None
        return
    share = {PriceBasis.P50: 50, PriceBasis.P95: 95, PriceBasis.MAX: 100}[basis]
    expected = next(
        p
        for p in sorted(set(seconds))
        if 100 * sum(s <= p for s in seconds) >= share * len(seconds)
    )
    assert found == expected


def test_windows_below_a_limit_by_hand() -> None:
    changes = [
        PricePoint(HOUR, Decimal("0.2")),
        PricePoint(5 * HOUR, Decimal("0.4")),
        PricePoint(6 * HOUR, Decimal("0.2")),
    ]
    # Of windows of 2 h from 0 to 9 h, the first knows a price from its middle on; the third, 4 to 6
    # h, is dear.
    assert windows_below(changes, 0, 9 * HOUR, 2 * HOUR, Decimal("0.3")) == (3, 4)
    assert windows_below(changes, 0, 9 * HOUR, 2 * HOUR, Decimal("0.4")) == (4, 4)
    assert windows_below(changes, 0, 9 * HOUR, 2 * HOUR, Decimal("0.1")) == (0, 4)
    assert windows_below(changes, 0, HOUR, 2 * HOUR, Decimal("1")) == (0, 0)
    # Nothing is known before
    assert windows_below(changes[1:], 0, 6 * HOUR, 2 * HOUR, Decimal("1")) == (1, 1)
