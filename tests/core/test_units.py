from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepvm.core.units import (
    MOST_USD,
    budget_micro_usd,
    format_bytes,
    format_usd,
    parse_bytes,
    parse_hours,
    parse_seconds,
    to_decimal,
    to_micro_usd,
    to_positive,
    to_whole,
)
from deepvm.errors import DeepVMError, RequestError

micro_amounts = st.integers(0, 10**15)


def test_sizes() -> None:
    for text, expected in [
        ("300MB", 300_000_000),
        ("0.3GB", 300_000_000),
        ("512MiB", 512 * 2**20),
        ("1KiB", 1024),
        ("1kB", 1000),
        ("1kb", 1000),
        (" 2 TiB ", 2 * 2**40),
        ("1TB", 10**12),
        ("1.5GiB", 3 * 2**29),
        (".5MB", 500_000),
        ("7B", 7),
        ("1000000", 10**6),
        (300_000_000, 300_000_000),
        (1, 1),
        ("0.0000011MB", 2),  # what does not fit a whole byte needs the next one
    ]:
        assert parse_bytes(text) == expected


def test_what_is_no_size() -> None:
    for text in [
        *(
            "",
            "MB",
            "300 XB",
            "-5MB",
            "0",
            "0MB",
            "0.1B",
            "1e9",
            "3,5GB",
            "1 2MB",
            "nan",
            "inf",
            "５MB",
        ),
        *("300", "999999"),  # without a unit: nobody means bytes
        *(True, 0, -3, None, 0.3),
        *("9" * 5000, "0." + "1" * 5000 + "GB"),
    ]:
        with pytest.raises(RequestError) as caught:
            parse_bytes(text)
        assert caught.value.option == "checkpoint_size"
        assert caught.value.value == text
        assert "300MB" in caught.value.allowed


def test_a_size_of_0_is_not_called_too_large() -> None:
    with pytest.raises(RequestError) as caught:
        parse_bytes("0")
    assert "at most" not in caught.value.allowed


def test_the_option_is_named() -> None:
    with pytest.raises(
        RequestError, match=r"^invalid value for memory: 'x' \(expected a size above 0"
    ):
        parse_bytes("x", "memory")


@given(count=st.integers(1, 10**16))
def test_a_shown_size_is_never_more_than_there_is(count: int) -> None:
    shown = format_bytes(count)
    number, unit = shown.split()
    exact = Fraction(number) * 1000 ** ("B", "kB", "MB", "GB", "TB").index(unit)
    assert exact <= count
    assert exact >= count * Fraction(99, 100)
    assert 1 <= Fraction(number) < 1000 or unit == "TB"


def test_shown_sizes() -> None:
    assert [format_bytes(n) for n in (1, 999, 1000, 300_000_000, 1_999_999_999, 5 * 10**15)] == [
        "1 B",
        "999 B",
        "1 kB",
        "300 MB",
        "1.99 GB",
        "5000 TB",
    ]


def test_amounts() -> None:
    for value, expected in [(3, "3"), (0.1, "0.1"), ("2.8526", "2.8526"), (" 1e-6 ", "0.000001")]:
        assert to_decimal(value, "budget") == Decimal(expected)


def test_a_float_is_read_as_it_is_written() -> None:
    assert to_decimal(0.1578, "price") * 16 == Decimal("2.5248")
    assert to_decimal(Decimal("0.1578"), "price") == Decimal("0.1578")


def test_what_is_no_amount() -> None:
    for value in [
        "",
        "abc",
        "nan",
        "inf",
        "-inf",
        "1_000",
        "0x10",
        "٣",
        "-1",
        -0.5,
        0,
        True,
        None,
        Decimal("sNaN"),
        "2e9",
        "1e999999999999999999999",
        "1e-99999",
    ]:
        with pytest.raises(RequestError) as caught:
            to_decimal(value, "budget", unit="$/h")
        assert caught.value.option == "budget"
        assert "$/h" in caught.value.allowed


def test_zero_where_it_is_allowed() -> None:
    assert to_decimal(0, "budget", zero=True) == 0
    assert to_decimal("0.00", "budget", zero=True) == 0
    assert to_decimal(MOST_USD, "budget") == MOST_USD


@given(micro=micro_amounts)
def test_money_is_exact(micro: int) -> None:
    exact = Decimal(micro) / 10**6
    assert to_micro_usd(exact) == micro
    assert budget_micro_usd(exact) == micro
    assert budget_micro_usd(exact + Decimal("0.0000009")) == micro
    assert Decimal(format_usd(micro)) == exact
    assert format_usd(exact) == format_usd(micro)
    assert len(format_usd(micro).partition(".")[2]) >= 4


def test_shown_amounts() -> None:
    assert [format_usd(n) for n in (0, 3_000_000, 2_852_600, 324_199, 1)] == [
        "0.0000",
        "3.0000",
        "2.8526",
        "0.324199",
        "0.000001",
    ]
    assert format_usd(Decimal(3)) == "3.0000"


def test_a_price_below_a_micro_dollar_is_refused() -> None:
    for price in ["0.0000001", "1.23456789", "0.1" + "0" * 40 + "1", "1e-400"]:
        with pytest.raises(RequestError, match="at most 6 decimals"):
            to_micro_usd(Decimal(price))


def test_a_price_of_many_zeros_is_not() -> None:
    assert to_micro_usd(Decimal("0.1000000000000")) == 100_000


def test_errors_are_values_and_deepvm_s() -> None:
    assert issubclass(RequestError, ValueError)
    assert issubclass(RequestError, DeepVMError)
    assert RequestError.exit_code == 2


def test_work_in_hours_or_with_a_unit() -> None:
    for text, seconds in [
        ("48", 172800),
        ("48h", 172800),
        ("+48.", 172800),
        ("+48.h", 172800),
        (48, 172800),
        ("90min", 5400),
        (" 2 d ", 172800),
        (0.5, 1800),
        ("1e2", 360000),
    ]:
        assert parse_hours(text, "work") == seconds


def test_what_is_no_work() -> None:
    for text in [
        "",
        "h",
        "-1",
        "0",
        0,
        "0h",
        "nan",
        float("nan"),
        "1e9",
        "inf",
        True,
        "3 weeks",
        [1],
        10**400,
    ]:
        with pytest.raises(RequestError) as caught:
            parse_hours(text, "work")
        assert caught.value.option == "work" and caught.value.value is text


def test_times_as_programs_write_them() -> None:
    for text, seconds in [("1e2", 100), ("1.5E1min", 900), ("2e-1d", 17280), (".5", 0.5)]:
        assert parse_seconds(text, "save", bare="s") == pytest.approx(seconds, rel=1e-15)


def test_what_is_no_such_time() -> None:
    for text in ["e2", "1e", "1e2e2", "1e999", "1e"]:
        with pytest.raises(RequestError):
            parse_seconds(text, "save", bare="s")


def test_a_unit_that_is_nearly_right_is_named() -> None:
    for read, text, meant in [
        (parse_bytes, "300MBB", "300MB"),
        (parse_bytes, "5 Gibs", "5GiB"),
        (lambda v: parse_seconds(v, "deadline"), "12 hours", "12h"),
        (lambda v: parse_seconds(v, "deadline"), "90mins", "90min"),
        (lambda v: parse_seconds(v, "deadline"), "1.5 weeks", "10.5d"),
        (lambda v: parse_hours(v, "work"), "90 minutes", "90min"),
        (lambda v: to_decimal(v, "pw"), "3$", "3"),
        (lambda v: to_decimal(v, "pw"), "$3.50/h", "3.50"),
        (lambda v: to_decimal(v, "pw"), "3 USD", "3"),
        (lambda v: to_decimal(v, "pw"), "3 dollars per hour", "3"),
        (lambda v: to_decimal(v, "pw"), "3,5", "3.5"),
        (lambda v: to_decimal(v, "pw"), "$1,200.50", "1200.50"),
        (parse_bytes, "16G", "16GB"),
        (parse_bytes, "16Gi", "16GiB"),
        (parse_bytes, "300 megs", "300MB"),
        (parse_bytes, "2 terabytes", "2TB"),
        (parse_bytes, "500k", "500kB"),
    ]:
        with pytest.raises(RequestError) as caught:
            read(text)
        assert str(caught.value).endswith(f"; did you mean {meant}?)")
        assert read(meant)


def test_no_unit_is_made_up() -> None:
    for text in ["3", "x hours", "1.2.3 weeks", "12 fortnights", "hours", "1.5.3\n q"]:
        for read in (parse_bytes, lambda v: parse_seconds(v, "deadline")):
            with pytest.raises(RequestError) as caught:
                read(text)
            assert "did you mean" not in str(caught.value)


# No float holds the one, and the interpreter writes not even the other
@pytest.mark.parametrize("digits", [400, 5000])
def test_numbers_beyond_a_float(digits: int) -> None:
    for value in (10**digits, -(10**digits)):
        with pytest.raises(RequestError, match="n: .*"):
            to_positive(value, "n")
        with pytest.raises(RequestError, match="n: .*"):
            to_whole(value, "n", "a count", least=1, most=100)
        with pytest.raises(RequestError, match="n: .*"):
            parse_bytes(value, "n")
