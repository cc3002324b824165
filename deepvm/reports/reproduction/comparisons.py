"""The papers' figures and ours, as tables and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deepvm.documents.build import document_of
from deepvm.reports.reproduction.published_figures import Figure, Paper
from deepvm.reports.text import print_text

CSV_HEADER = ["paper", "part", "figure", "published", "ours", "difference", "verdict"]
CSV_HEADER += ["expected", "why"]


def print_reproductions(papers: Sequence[Paper]) -> None:
    """A table for each part, why figures are not the same, and a count for each paper."""
    print_text("reproduce", also="-o csv", papers=papers, reasons=_reasons)


def _reasons(figures: Sequence[Figure]) -> list[str]:
    """Why figures are not the same: the close ones by their tolerances, the others by name."""
    close = dict.fromkeys(f"close {own.why}" for own in figures if own.verdict == "close")
    names: dict[str, list[str]] = {}
    for own in figures:
        if own.verdict == "differs":
            names.setdefault(own.why, []).append(own.name)
    return [*close, *(f"{'; '.join(differing)}: {why}" for why, differing in names.items())]


def document(papers: Sequence[Paper]) -> dict[str, Any]:
    """For programs."""
    return document_of("performance.Reproduction", {"papers": papers})


def csv_rows(papers: Sequence[Paper]) -> tuple[Sequence[str], list[list[Any]]]:
    """Header and a row for each figure."""
    rows = []
    for paper in document(papers)["papers"]:
        for part in paper["parts"]:
            for figure in part["figures"]:
                own = {**figure, "ours": figure["ours_printed"], "figure": figure["name"]}
                own |= {"paper": paper["paper"], "part": part["id"]}
                rows.append([own[name] for name in CSV_HEADER])
    return CSV_HEADER, rows
