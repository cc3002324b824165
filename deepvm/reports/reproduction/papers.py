"""The papers whose figures are computed again, in the order of ``deepvm reproduce``."""

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from deepvm.core.spelling import refuse_unknown
from deepvm.documents.build import With, document_of
from deepvm.reports.reproduction import published_figures as published
from deepvm.services.schemas import Table, rows_as

PAPERS = ("deepvm", "thesis", "scaling")


def computations(name: str) -> ModuleType:
    """The functions that compute the figures of a paper."""
    refuse_unknown("paper", name, PAPERS)
    return import_module(f"deepvm.reports.reproduction.{name}_figures")


def reproduce(
    names: Sequence[str] = PAPERS,
    only: published.Verdict | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[published.Paper]:
    """Compute the papers' figures and compare each; ``only``: those of this verdict alone."""
    # A missing library is found before anything is computed
    modules = [computations(name) for name in names]
    papers = []
    for name, module in zip(names, modules, strict=True):
        raw = published.read_paper(name)
        parts = []
        for part in raw["parts"]:
            parts.append(published.read_part(module, **part))
            progress(1)
        papers.append(published.Paper(name, raw["title"], raw["note"], parts, only))
    return papers


def parts_of(names: Sequence[str]) -> int:
    """How many parts the papers have."""
    return sum(len(published.read_paper(name)["parts"]) for name in names)


def reasons(figures: Sequence[published.Figure]) -> list[str]:
    """Why figures are not the same: the close ones by their tolerances, the others by name."""
    close = dict.fromkeys(f"close {own.why}" for own in figures if own.verdict == "close")
    names: dict[str, list[str]] = {}
    for own in figures:
        if own.verdict == "differs":
            names.setdefault(own.why, []).append(own.name)
    return [*close, *(f"{'; '.join(differing)}: {why}" for why, differing in names.items())]


def csv_rows(papers: Sequence[published.Paper]) -> Table:
    """Header and a row for each figure."""
    rows = [
        document_of("performance.FigureRow", With(figure, paper=paper.name, part=part.id))
        for paper in papers
        for part in paper.shown_parts
        for figure in part.figures
    ]
    return rows_as("performance.FigureRow", rows)
