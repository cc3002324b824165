"""Figures as papers print them: read, compared to the printed digits, shown."""

from __future__ import annotations

import math

import pytest

from deepvm.reports.reproduction.published_figures import PrintedFigure


def test_what_is_printed_is_read() -> None:
    for text, kind, value in [
        ("2.8526", "", 2.8526),
        ("0", "", 0),
        ("-1.5", "", -1.5),
        ("66.3 %", "", 66.3),
        ("< 10 %", "<", 10),
        ("> 75 %", ">", 75),
        ("5d, 11:31:28", "time", 5 * 86_400 + 11 * 3600 + 31 * 60 + 28),
        ("0:34:11", "time", 2051),
        ("17 g4dn + 1 c5", "words", None),
        ("0.75 / 0.225", "words", None),
        ("1:75:00", "words", None),
        ("2.", "words", None),
        ("٣", "words", None),
    ]:
        found = PrintedFigure.read(text)
        assert (found.text, found.kind) == (text, kind)
        assert found.value == value if value is not None else math.isnan(found.value)


def test_same_is_to_the_printed_digits() -> None:
    for text, ours, same in [
        ("0.1339", 0.13394, True),
        ("0.1339", 0.13396, False),
        ("0.1380", 0.138, True),
        ("0.1380", 0.1382, False),
        ("6.1766", 6.176666667, False),
        ("2.5", 2.55, True),  # half a digit off, whichever way a binary float lies
        ("20 %", 20.4, True),
        ("20 %", 22.1, False),
        ("< 10 %", 9.99, True),
        ("< 10 %", 10.0, False),
        ("> 75 %", 75.1, True),
        ("> 75 %", 75.0, False),
        ("0:34:11", 2051.4, True),
        ("0:34:11", 2052.0, False),
        ("yes", "yes", True),
        ("yes", "no", False),
        ("1.6", "never", False),
        ("16 g4dn", 16.0, False),
        ("1.6", math.nan, False),
        ("< 10 %", math.nan, False),
    ]:
        assert PrintedFigure.read(text).agrees(ours) is same


def test_differences_are_in_the_printed_unit() -> None:
    assert PrintedFigure.read("66.3 %").difference(70.0) == pytest.approx(3.7)
    assert PrintedFigure.read("0:34:11").difference(2000.0) == -51
    assert math.isnan(PrintedFigure.read("< 10 %").difference(7.0))
    assert math.isnan(PrintedFigure.read("yes").difference("no"))
    assert math.isnan(PrintedFigure.read("1.6").difference("never"))


def test_ours_is_shown_as_theirs() -> None:
    for text, ours, shown in [
        ("0.1380", 0.138, "0.1380"),
        ("20 %", 22.13, "22 %"),
        ("< 10 %", 7.44, "7.4 %"),
        ("0", 3.0, "3"),
        ("0:34:11", 1653.2, "0:27:33"),
        ("1.6", "never", "never"),
        ("1.6", math.inf, "inf"),
    ]:
        assert PrintedFigure.read(text).show(ours) == shown


def test_times_go_both_ways() -> None:
    for text in ["0:00:00", "7:04:57", "1d, 0:00:00", "25d, 16:35:27"]:
        printed = PrintedFigure.read(text)
        assert printed.show(printed.value) == text
