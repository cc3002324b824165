"""The papers whose figures are computed again, in the order of ``deepvm reproduce``.

The published figures drive the computation: they name the function of the paper's module that
computes them, and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType

from deepvm.core.spelling import refuse_unknown
from deepvm.reports.reproduction.published_figures import Paper, Verdict, read_paper, read_part

PAPERS = ("deepvm", "thesis", "scaling")


def computations(name: str) -> ModuleType:
    """The functions that compute the figures of a paper.

    Raises ModuleNotFoundError: no scipy for ``scaling``.
    """
    refuse_unknown("paper", name, PAPERS)
    return import_module(f"deepvm.reports.reproduction.{name}_figures")


def reproduce(
    names: Sequence[str] = PAPERS,
    only: Verdict | None = None,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Paper]:
    """Compute the papers' figures and compare each with what is published.

    ``only``: show the figures of this verdict alone. ``progress``: called with how many more parts
    are done.

    Raises:
        RequestError: there is no such paper. ModuleNotFoundError: no scipy for ``scaling``.
    """
    # A missing library is found before anything is computed
    modules = [computations(name) for name in names]
    papers = []
    for name, module in zip(names, modules, strict=True):
        raw = read_paper(name)
        parts = []
        for part in raw["parts"]:
            parts.append(read_part(module, **part))
            progress(1)
        papers.append(Paper(name, raw["title"], raw["note"], parts, only))
    return papers


def parts_of(names: Sequence[str]) -> int:
    """How many parts the papers have."""
    return sum(len(read_paper(name)["parts"]) for name in names)
