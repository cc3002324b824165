"""The papers whose figures are computed again, in the order of ``deepvm reproduce``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from deepvm.core.spelling import one_of
from deepvm.errors import DataError, RequestError
from deepvm.reports.reproduction.printed import Value
from deepvm.reports.reproduction.published_figures import published_paper
from deepvm.reports.reproduction.verdicts import ComparedPart, Reproduction

Computation: TypeAlias = Callable[[], Iterator[tuple[str, dict[str, Value]]]]
"""Yields each part's id with its figures by name, in the order of the paper's file."""


def _deepvm() -> Computation:
    from deepvm.reports.reproduction.deepvm_figures import compute

    return compute


def _thesis() -> Computation:
    from deepvm.reports.reproduction.thesis_figures import compute

    return compute


def _scaling() -> Computation:
    from deepvm.reports.reproduction.scaling_figures import compute

    return compute


PAPERS: dict[str, Callable[[], Computation]] = {
    "deepvm": _deepvm,
    "thesis": _thesis,
    "scaling": _scaling,
}
"""By name: what loads the code, so that one paper costs nothing of the others, and fits alone need scipy."""


def reproduce(
    names: Sequence[str] = tuple(PAPERS),
    *,
    folder: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Reproduction]:
    """Compute the papers' figures and compare each with what is published.

    ``folder``: of the published figures; by default those that come with deepvm. ``progress``: told
    how many more parts are done.

    Raises:
        RequestError: there is no such paper. MissingExtraError, by way of the command line: no
            scipy for ``scaling``.
        DataError: published figures and computed ones are not the same set.
    """
    for name in names:
        if name not in PAPERS:
            raise RequestError("paper", name, one_of(name, PAPERS))
    # A missing library is found before anything is computed
    computations = [PAPERS[name]() for name in names]
    return [
        _compared(name, compute, folder, progress)
        for name, compute in zip(names, computations, strict=True)
    ]


def parts_of(names: Sequence[str]) -> int:
    """How many parts the papers have."""
    return sum(len(published_paper(name).parts) for name in names)


def _compared(
    name: str, compute: Computation, folder: Path | None, progress: Callable[[int], None] | None
) -> Reproduction:
    paper = published_paper(name, folder)
    left, found = {part.id: part for part in paper.parts}, []
    for part_id, ours in compute():
        if part_id not in left:
            raise DataError(f"published figures of {name}: no part {part_id!r}, which is computed")
        found.append(ComparedPart.of(left.pop(part_id), ours))
        if progress is not None:
            progress(1)
    if left:
        raise DataError(f"published figures of {name}: nothing computes {', '.join(left)}")
    return Reproduction(paper, tuple(found))
