"""Moments are read with a time zone or as a day, and written in UTC."""

from __future__ import annotations

import contextlib
import re
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deepvm.core.units import format_time, parse_time

ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
# A day inside the years of four digits, so that no zone leaves them.
MOMENTS = st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=ZONES)


@given(MOMENTS)
def test_what_is_written_is_read_again(moment: datetime) -> None:
    text = format_time(moment)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", text)
    assert timedelta(0) <= moment - parse_time(text) < timedelta(seconds=1)
    assert format_time(parse_time(text)) == text


@given(MOMENTS)
def test_any_zone_is_read_as_utc_in_whole_seconds(moment: datetime) -> None:
    found = parse_time(moment.isoformat())
    assert found.tzinfo is timezone.utc and found.microsecond == 0
    assert timedelta(0) <= moment - found < timedelta(seconds=1)


@given(st.dates())
def test_a_day_is_its_midnight_in_utc(day: date) -> None:
    assert parse_time(day.isoformat()) == datetime(
        day.year, day.month, day.day, tzinfo=timezone.utc
    )


def test_what_is_no_moment() -> None:
    for text, why in [
        ("2026-01-31T12:00:00", "names no time zone"),
        ("2026-01-31 12:00", "names no time zone"),
        ("0001-01-01T00:00:00+01:00", "out of range"),
        ("9999-12-31T23:59:59-01:00", "out of range"),
        ("2026-02-30", "day"),
        ("yesterday", "Invalid isoformat"),
        ("Z", "Invalid isoformat"),
        ("", "Invalid isoformat"),
    ]:
        with pytest.raises(ValueError, match=why):
            parse_time(text)


@given(st.text("0123456789-:.+TZW ", max_size=30) | st.text())
@example("2026-01-31")
def test_any_text_is_a_moment_in_utc_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_time(text).tzinfo is timezone.utc
