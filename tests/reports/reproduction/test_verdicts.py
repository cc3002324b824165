"""Verdicts: same, close, differs.

A known difference is pinned, and everything else is not expected.
"""

from __future__ import annotations

import math
from dataclasses import replace

from deepvm.reports.reproduction.published_figures import Figure, Paper, Part, Tolerance, Value

SAME, CLOSE, DIFFERS = "same", "close", "differs"


def figure(
    published: str, relative: float | None = None, absolute: float | None = None, known: str = ""
) -> Figure:
    tolerance = None if relative is absolute is None else Tolerance("noise", relative, absolute)
    return Figure("it", published, math.nan, tolerance, known, "so" if known else "")


def compared(own: Figure, ours: Value) -> Figure:
    return replace(own, ours=ours)


def test_verdicts() -> None:
    for published, ours, verdict, expected, why in [
        (figure("2.85"), 2.853, SAME, True, ""),
        (figure("2.85"), 2.9, DIFFERS, False, "not expected, and no reason is known"),
        (figure("2.85", relative=0.05), 2.9, CLOSE, True, "within 5 %: noise"),
        (
            figure("2.85", relative=0.05),
            2.7,
            DIFFERS,
            False,
            "not expected, and no reason is known",
        ),
        (figure("20 %", absolute=3), 22.5, CLOSE, True, "within 3 points: noise"),
        (figure("20 %", absolute=3), 23.5, DIFFERS, False, "not expected, and no reason is known"),
        (figure("0", absolute=1), -1.0, CLOSE, True, "within 1: noise"),
        (figure("0", relative=0.5), 1.0, DIFFERS, False, "not expected, and no reason is known"),
        (figure("0:10:00", relative=0.01), 605.0, CLOSE, True, "within 1 %: noise"),
        (figure("2.85", known="3.10"), 3.1, DIFFERS, True, "so"),
        (
            figure("2.85", known="3.10"),
            3.2,
            DIFFERS,
            False,
            "not expected: the known difference is 3.10",
        ),
        (figure("2.85", relative=0.01, known="3.10"), 3.12, DIFFERS, True, "so"),
        (figure("2.85", known="3.10"), 2.85, SAME, True, ""),
        (
            figure("< 10 %", relative=9),
            10.5,
            DIFFERS,
            False,
            "not expected, and no reason is known",
        ),
        (figure("17 g4dn + 1 c5"), "17 g4dn + 1 c5", SAME, True, ""),
        (
            figure("17 g4dn + 1 c5", relative=9),
            "16 g4dn",
            DIFFERS,
            False,
            "not expected, and no reason is known",
        ),
        (
            figure("1.6", relative=9, known="2.2"),
            "never",
            DIFFERS,
            False,
            "not expected: the known difference is 2.2",
        ),
        (
            figure("2.85", relative=9),
            float("nan"),
            DIFFERS,
            False,
            "not expected, and no reason is known",
        ),
    ]:
        found = compared(published, ours)
        assert (found.verdict, found.expected, found.why) == (verdict, expected, why)


def test_differences() -> None:
    found = compared(figure("2.00"), 2.5)
    assert (found.shown, found.difference, found.relative) == ("2.50", 0.5, 0.25)
    assert math.isnan(compared(figure("0"), 2.0).relative)
    assert math.isnan(compared(figure("yes"), "no").difference)
    assert math.isnan(compared(figure("< 10 %"), 3.0).relative)


def test_counts() -> None:
    figures = [compared(figure("1"), ours) for ours in (1.0, 2.0, 1.2)]
    part = Part("table-1", "Table 1", "section 1", figures)
    paper = Paper("deepvm", "DeepVM", "", [part])
    assert paper.counts == {SAME: 2, CLOSE: 0, DIFFERS: 1}
    assert paper.unexpected == [(part, figures[1])]
    assert paper.shown_parts == [part]
    assert replace(paper, only="same").shown_parts == [
        replace(part, figures=[figures[0], figures[2]])
    ]
