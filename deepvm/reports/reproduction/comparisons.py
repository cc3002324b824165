"""The papers' figures beside ours, as tables and for programs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from deepvm.reports.reproduction.printed import Kind
from deepvm.reports.reproduction.published_figures import OURS, Part
from deepvm.reports.reproduction.verdicts import Comparison, Reproduction, Verdict
from deepvm.reports.tables import Column, print_items, print_lines

SCHEMA_VERSION = "deepvm.reproduce/1"
_WIDTH = 100


def print_reproductions(found: Sequence[Reproduction], only: Verdict | None = None) -> None:
    """A table for each part, why figures are not the same, and a count for each paper.

    ``only``: show the figures of this verdict alone; counts are of all.
    """
    for reproduction in found:
        paper, parts = reproduction.paper, list(_shown(reproduction, only))
        if parts:
            print_lines([*_wrapped(paper.title), *_wrapped(paper.note), ""])
        for part, comparisons in parts:
            said = "stated by deepvm" if part.stated_by == OURS else part.where
            print_lines(_wrapped(f"{part.title} [{said}]"))
            # Words may be wrapped on a narrow terminal, numbers never.
            words = any(c.figure.published.kind is Kind.WORDS for c in comparisons)
            print_items(
                [_cells(c, "left" if words else "right") for c in comparisons], also="-o csv"
            )
            print_lines(
                [line for reason in _reasons(comparisons) for line in _wrapped(reason, "- ")] + [""]
            )
    print_items([_summary(reproduction) for reproduction in found])


def _wrapped(text: str, bullet: str = "") -> list[str]:
    # Into a pipe, too: sentences of a report, not data.
    indent = " " * len(bullet)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=bullet, subsequent_indent=indent, break_on_hyphens=False
    )


def _shown(
    reproduction: Reproduction, only: Verdict | None
) -> Iterator[tuple[Part, list[Comparison]]]:
    """The parts that have such figures, with these."""
    for part in reproduction.parts:
        chosen = [c for c in part.comparisons if only is None or c.verdict is only]
        if chosen:
            yield part.part, chosen


def _reasons(comparisons: Sequence[Comparison]) -> list[str]:
    """Why figures are not the same: the close ones by their tolerances, the others by name, each reason once."""
    close = dict.fromkeys(f"close {c.why}" for c in comparisons if c.verdict is Verdict.CLOSE)
    names: dict[str, list[str]] = {}
    for comparison in comparisons:
        if comparison.verdict is Verdict.DIFFERS:
            names.setdefault(comparison.why, []).append(comparison.figure.name)
    return [*close, *(f"{'; '.join(own)}: {why}" for why, own in names.items())]


def _cells(comparison: Comparison, align: Literal["left", "right"]) -> dict[Column, str]:
    verdict = comparison.verdict.value
    return {
        Column("figure"): comparison.figure.name,
        Column("published", align, drop=1): comparison.figure.published.text,
        Column("ours", align): comparison.shown,
        Column("difference", "right", drop=2): _difference(comparison),
        Column("verdict"): verdict if comparison.expected else verdict.upper(),
    }


def _difference(comparison: Comparison) -> str:
    """As a share, of shares in points; nothing to the printed digits, and of words, is ``-``."""
    difference, relative = comparison.difference, comparison.relative
    if comparison.verdict is Verdict.SAME or difference is None:
        return "-"
    if comparison.figure.published.unit:
        return f"{difference:+.2f} points"
    if relative is None:
        return f"{difference:+.4g}"
    return f"{100 * relative:+.{2 if abs(relative) >= 1e-4 else 4}f} %"


def _summary(reproduction: Reproduction) -> dict[Column, str]:
    counts = reproduction.counts
    return {
        Column("paper"): reproduction.paper.name,
        Column("figures", "right", drop=1): str(len(reproduction.comparisons)),
        **{Column(verdict.value, "right"): str(counts[verdict]) for verdict in Verdict},
        Column("not expected", "right"): str(len(reproduction.unexpected)),
    }


def document(found: Sequence[Reproduction], only: Verdict | None = None) -> dict[str, Any]:
    """For programs: figures as printed.

    Ours and differences as numbers in the printed unit, seconds for times.

    ``only``: as of :func:`print_reproductions`.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "papers": [
            {
                "paper": reproduction.paper.name,
                "title": reproduction.paper.title,
                "note": reproduction.paper.note,
                "counts": {verdict.value: n for verdict, n in reproduction.counts.items()},
                "unexpected": len(reproduction.unexpected),
                "parts": [
                    {
                        "id": part.id,
                        "title": part.title,
                        "where": part.where,
                        "stated_by": part.stated_by,
                        "figures": [_document(comparison) for comparison in comparisons],
                    }
                    for part, comparisons in _shown(reproduction, only)
                ],
            }
            for reproduction in found
        ],
    }


def _document(comparison: Comparison) -> dict[str, Any]:
    figure = comparison.figure
    tolerance = figure.tolerance
    return {
        "name": figure.name,
        "published": figure.published.text,
        "from": figure.source or None,
        "published_value": figure.published.value,
        "ours": comparison.ours,
        "ours_printed": comparison.shown,
        "difference": comparison.difference,
        "relative_difference": comparison.relative,
        "tolerance": (
            None
            if tolerance is None
            else {
                "relative": tolerance.relative,
                "absolute": tolerance.absolute,
                "reason": tolerance.reason,
            }
        ),
        "verdict": comparison.verdict.value,
        "expected": comparison.expected,
        "why": comparison.why or None,
    }


def csv_rows(
    found: Sequence[Reproduction], only: Verdict | None = None
) -> tuple[list[str], list[list[Any]]]:
    """Header and a row for each figure, or for those of one verdict."""
    header = [
        "paper",
        "part",
        "figure",
        "published",
        "ours",
        "difference",
        "verdict",
        "expected",
        "why",
    ]
    rows = [
        [
            reproduction.paper.name,
            part.id,
            comparison.figure.name,
            comparison.figure.published.text,
            comparison.shown,
            comparison.difference,
            comparison.verdict.value,
            comparison.expected,
            comparison.why,
        ]
        for reproduction in found
        for part, comparisons in _shown(reproduction, only)
        for comparison in comparisons
    ]
    return header, rows
