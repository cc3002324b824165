"""Verdicts: same, close, differs.

A known difference is pinned, and everything else is not expected.
"""

from __future__ import annotations

import pytest

from deepvm.errors import DataError
from deepvm.reports.reproduction.printed import Printed
from deepvm.reports.reproduction.published_figures import (
    Figure,
    KnownDifference,
    Paper,
    Part,
    Tolerance,
)
from deepvm.reports.reproduction.verdicts import ComparedPart, Comparison, Reproduction, Verdict

SAME, CLOSE, DIFFERS = Verdict.SAME, Verdict.CLOSE, Verdict.DIFFERS


def figure(
    published: str, relative: float | None = None, absolute: float | None = None, known: str = ""
) -> Figure:
    tolerance = None if relative is absolute is None else Tolerance("noise", relative, absolute)
    return Figure(
        "it",
        Printed.read(published),
        tolerance,
        KnownDifference(Printed.read(known), "so") if known else None,
    )


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
        found = Comparison.of(published, ours)
        assert (found.verdict, found.expected, found.why) == (verdict, expected, why)


def test_differences() -> None:
    found = Comparison.of(figure("2.00"), 2.5)
    assert (found.shown, found.difference, found.relative) == ("2.50", 0.5, 0.25)
    assert Comparison.of(figure("0"), 2.0).relative is None
    assert Comparison.of(figure("yes"), "no").difference is None
    assert Comparison.of(figure("< 10 %"), 3.0).relative is None


def part(*names: str) -> Part:
    return Part(
        "table-1",
        "Table 1",
        "section 1",
        "paper",
        tuple(Figure(n, Printed.read("1")) for n in names),
    )


def test_what_is_published_is_computed_and_the_other_way_round() -> None:
    assert len(ComparedPart.of(part("a", "b"), {"b": 1.0, "a": 1.0}).comparisons) == 2
    for ours in ({"a": 1.0}, {"a": 1.0, "b": 1.0, "c": 1.0}):
        with pytest.raises(DataError, match="table-1: not both published and computed: [bc]$"):
            ComparedPart.of(part("a", "b"), ours)


def test_counts() -> None:
    compared = ComparedPart.of(part("a", "b", "c"), {"a": 1.0, "b": 2.0, "c": 1.2})
    found = Reproduction(Paper("deepvm", "DeepVM", "", (compared.part,)), (compared,))
    assert found.counts == {SAME: 2, CLOSE: 0, DIFFERS: 1}
    assert [(p.id, c.figure.name) for p, c in found.unexpected] == [("table-1", "b")]
