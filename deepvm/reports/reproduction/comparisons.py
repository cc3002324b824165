"""The papers' figures and ours, as tables and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.documents.build import document_of
from deepvm.documents.outputs import performance
from deepvm.reports.reproduction.papers import Comparison, Reproduction, Verdict
from deepvm.reports.text import print_text

CSV_HEADER = ["paper", "part", "figure", "published", "ours", "difference", "verdict"]
CSV_HEADER += ["expected", "why"]


def print_reproductions(papers: Sequence[Reproduction], only: Verdict | None = None) -> None:
    """A table for each part, why figures are not the same, and a count for each paper.

    ``only``: show the figures of this verdict alone; counts are of all.
    """
    print_text("reproduce", also="-o csv", papers=papers, only=only, reasons=_reasons)


def _reasons(comparisons: Sequence[Comparison]) -> list[str]:
    """Why figures are not the same: the close ones by their tolerances, the others by name."""
    close = dict.fromkeys(f"close {c.why}" for c in comparisons if c.verdict == "close")
    names: dict[str, list[str]] = {}
    for comparison in comparisons:
        if comparison.verdict == "differs":
            names.setdefault(comparison.why, []).append(comparison.figure.name)
    return [*close, *(f"{'; '.join(own)}: {why}" for why, own in names.items())]


def document(papers: Sequence[Reproduction], only: Verdict | None = None) -> dict[str, Any]:
    """For programs; ``only``: as of :func:`print_reproductions`."""
    values = [
        {
            **vars(reproduction.paper),
            "paper": reproduction.paper.name,
            "counts": reproduction.counts,
            "unexpected": len(reproduction.unexpected),
            "parts": [{**vars(part), "figures": own} for part, own in reproduction.parts(only)],
        }
        for reproduction in papers
    ]
    return document_of(performance.Reproduction, {"papers": values})


def csv_rows(
    papers: Sequence[Reproduction], only: Verdict | None = None
) -> tuple[Sequence[str], list[list[Any]]]:
    """Header and a row for each figure, or for those of one verdict."""
    rows = []
    for paper in document(papers, only)["papers"]:
        for part in paper["parts"]:
            for figure in part["figures"]:
                own = {**figure, "ours": figure["ours_printed"], "figure": figure["name"]}
                own |= {"paper": paper["paper"], "part": part["id"]}
                rows.append([own[name] for name in CSV_HEADER])
    return CSV_HEADER, rows
