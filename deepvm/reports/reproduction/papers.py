"""The papers whose figures are computed again, in the order of ``deepvm reproduce``.

The published figures drive the computation: a module for each paper has ``COMPUTE``, which says by
the id of a part how a figure of it is computed from its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from deepvm.core.spelling import one_of
from deepvm.errors import RequestError
from deepvm.reports.reproduction.printed import Value
from deepvm.reports.reproduction.published_figures import Part, published_paper
from deepvm.reports.reproduction.verdicts import Comparison, Reproduction

PAPERS = ("deepvm", "thesis", "scaling")
Compute: TypeAlias = Callable[[Part, str], Value]


def computations(name: str) -> Mapping[str, Compute]:
    """How the figures of a paper are computed, by part.

    Raises ModuleNotFoundError: no scipy for ``scaling``.
    """
    if name not in PAPERS:
        raise RequestError("paper", name, one_of(name, PAPERS))
    if name == "deepvm":
        from deepvm.reports.reproduction.deepvm_figures import COMPUTE
    elif name == "thesis":
        from deepvm.reports.reproduction.thesis_figures import COMPUTE
    else:
        from deepvm.reports.reproduction.scaling_figures import COMPUTE
    return COMPUTE


def reproduce(
    names: Sequence[str] = PAPERS, *, progress: Callable[[int], None] | None = None
) -> list[Reproduction]:
    """Compute the papers' figures and compare each with what is published.

    ``progress``: called with how many more parts are done.

    Raises:
        RequestError: there is no such paper. ModuleNotFoundError: no scipy for ``scaling``.
    """
    # A missing library is found before anything is computed
    by_name = {name: computations(name) for name in names}
    reproductions = []
    for name, compute in by_name.items():
        paper = published_paper(name)
        comparisons = list[Comparison]()
        for part in paper.parts:
            comparisons += _compared(part, compute[part.id])
            if progress is not None:
                progress(1)
        reproductions.append(Reproduction(paper, tuple(comparisons)))
    return reproductions


def _compared(part: Part, compute: Compute) -> Iterator[Comparison]:
    for figure in part.figures:
        yield Comparison(part, figure, compute(part, figure.name))


def parts_of(names: Sequence[str]) -> int:
    """How many parts the papers have."""
    return sum(len(published_paper(name).parts) for name in names)
