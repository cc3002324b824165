"""Money and sizes are read exactly and shown without lying."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.units import (
    MICRO_USD,
    budget_micro_usd,
    format_bytes,
    format_usd,
    parse_bytes,
    to_decimal,
    to_micro_usd,
)
from deepvm.errors import RequestError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("300MB", 300_000_000),
        ("0.3GB", 300_000_000),
        (" 0.3 gb ", 300_000_000),
        ("512MiB", 512 * 2**20),
        ("1.5KiB", 1536),
        (".5kB", 500),
        ("2TB", 2 * 10**12),
        ("7000000", 7_000_000),
        (7, 7),
        ("7B", 7),
        ("1.0001kB", 1001),  # a part of a byte needs a whole one
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "many", "MB", "-1MB", "0", "0GB", "0.1B", "300", "1.4", "1PB", "1 M B", "1e3MB", "nan", True, "1.2.3MB"],
)
def test_what_is_no_size(text: str | bool) -> None:
    with pytest.raises(RequestError, match="300MB") as caught:
        parse_bytes(text)
    assert (caught.value.option, caught.value.value) == ("checkpoint_size", text)


@pytest.mark.parametrize("value", ["3", 3, 3.0, "3.00", Decimal(3), " 3 ", "+3", "3e0", "30e-1"])
def test_amounts(value: object) -> None:
    assert to_decimal(value, "budget") == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["", "abc", "nan", "inf", "-1", -1, float("nan"), True, "1_0", "٣", "0x3", "1e99", "$3"]
)
def test_what_is_no_amount(value: object) -> None:
    with pytest.raises(RequestError):
        to_decimal(value, "budget", zero=True)  # type: ignore[arg-type]


def test_zero_is_allowed_where_it_says_so() -> None:
    assert to_decimal("0", "budget", zero=True) == 0
    with pytest.raises(RequestError, match="> 0"):
        to_decimal("0", "price")


def test_a_float_is_read_by_its_shortest_form() -> None:
    assert to_micro_usd(to_decimal(0.1578, "price")) == 157_800


@given(st.integers(0, 10**15))
def test_micro_dollars_are_exact(micro: int) -> None:
    exact = Decimal(micro).scaleb(-6)
    assert to_micro_usd(exact) == micro == budget_micro_usd(exact)
    assert Decimal(format_usd(exact)) == exact == Decimal(format_usd(micro))
    assert len(format_usd(micro).split(".")[1]) >= 4


@given(st.decimals(0, 10**9, allow_nan=False, allow_infinity=False))
def test_a_budget_is_rounded_down_whatever_its_digits(budget: Decimal) -> None:
    assert budget_micro_usd(budget) == int(Fraction(budget) * MICRO_USD)


def test_a_price_with_too_many_digits_is_refused() -> None:
    for text in ("0.0000001", "1." + "0" * 40 + "1"):
        with pytest.raises(RequestError, match="at most 6 decimals"):
            to_micro_usd(Decimal(text))


def test_131_simulated_vms_cost_exactly_8_80() -> None:
    """130 J on the spot market at 0.3 x 0.22 and one on demand; a division of binary floats finds 130."""
    spot, on_demand = to_micro_usd(Decimal("0.066")), to_micro_usd(Decimal("0.22"))
    assert 130 * spot + on_demand == budget_micro_usd(Decimal("8.80"))
    assert (8.8 - 0.22) // 0.066 + 1 == 130


@given(st.integers(1, 10**20))
def test_a_shown_size_is_never_larger_than_the_size(count: int) -> None:
    assert parse_bytes(format_bytes(count)) <= count
    assert parse_bytes(format_bytes(count)) >= count * 0.99 - 1


def test_shown_sizes() -> None:
    assert [format_bytes(n) for n in (1, 999, 1000, 300_000_000, 17_179_869_184)] == [
        "1 B",
        "999 B",
        "1 kB",
        "300 MB",
        "17.17 GB",
    ]
