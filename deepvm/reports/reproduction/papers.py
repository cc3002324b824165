"""The papers whose figures are computed again, in the order of ``deepvm reproduce``.

The published figures drive the computation: they name the function of the paper's module that
computes them, and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import Literal, get_args

from deepvm.core.spelling import refuse_unknown
from deepvm.reports.reproduction.published_figures import (
    Figure,
    Paper,
    Part,
    PrintedFigure,
    Value,
    published_paper,
)

PAPERS = ("deepvm", "thesis", "scaling")
Verdict = Literal["same", "close", "differs"]
"""``same``: to the printed digits; ``close``: within the tolerance; ``differs``: else."""


@dataclass(frozen=True)
class Comparison:
    """A published figure and ours, in the printed unit, seconds for a time."""

    part: Part
    figure: Figure
    ours: Value

    @cached_property
    def published(self) -> PrintedFigure:
        return PrintedFigure.read(self.figure.published)

    @cached_property
    def verdict(self) -> Verdict:
        return self._judge(self.published)

    def _judge(self, printed: PrintedFigure) -> Verdict:
        if printed.agrees(self.ours):
            return "same"
        difference = printed.difference(self.ours)
        tolerance = self.figure.tolerance
        if difference is None or printed.value is None or tolerance is None:
            return "differs"
        if tolerance.allows(difference, printed.value):
            return "close"
        return "differs"

    @property
    def expected(self) -> bool:
        """False where ours differs and that is not known, or is not the known difference."""
        known = PrintedFigure.read(self.figure.known)
        return self.verdict != "differs" or self._judge(known) != "differs"

    @property
    def shown(self) -> str:
        """Ours as the paper would print it."""
        return self.published.show(self.ours)

    @property
    def difference(self) -> float | None:
        """Ours less theirs; None for words and bounds."""
        return self.published.difference(self.ours)

    @property
    def relative(self) -> float | None:
        """The difference as a share of the published figure; None where that is 0."""
        difference = self.difference
        published = self.published.value
        if difference is None or not published:
            return None
        return difference / abs(published)

    @property
    def why(self) -> str:
        """Why it is not the same, as far as is known."""
        figure = self.figure
        if self.verdict == "close" and figure.tolerance is not None:
            return f"{figure.tolerance.show(self.published.unit)}: {figure.tolerance.reason}"
        if self.verdict == "same":
            return ""
        if self.expected:
            return figure.why
        if figure.known:
            return f"not expected: the known difference is {figure.known}"
        return "not expected, and no reason is known"


@dataclass(frozen=True)
class Reproduction:
    """All figures of a paper."""

    paper: Paper
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many figures have which verdict."""
        verdicts = [comparison.verdict for comparison in self.comparisons]
        return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}

    @property
    def unexpected(self) -> list[Comparison]:
        """What differs and should not."""
        return [comparison for comparison in self.comparisons if not comparison.expected]

    def parts(self, only: Verdict | None = None) -> Iterator[tuple[Part, list[Comparison]]]:
        """The parts with figures of this verdict, and these figures."""
        for part in self.paper.parts:
            own = [c for c in self.comparisons if c.part is part and only in (None, c.verdict)]
            if own:
                yield part, own


def computations(name: str) -> ModuleType:
    """The functions that compute the figures of a paper.

    Raises ModuleNotFoundError: no scipy for ``scaling``.
    """
    refuse_unknown("paper", name, PAPERS)
    return import_module(f"deepvm.reports.reproduction.{name}_figures")


def reproduce(
    names: Sequence[str] = PAPERS, *, progress: Callable[[int], None] = lambda _: None
) -> list[Reproduction]:
    """Compute the papers' figures and compare each with what is published.

    ``progress``: called with how many more parts are done.

    Raises:
        RequestError: there is no such paper. ModuleNotFoundError: no scipy for ``scaling``.
    """
    # A missing library is found before anything is computed
    by_name = {name: computations(name) for name in names}
    reproductions = []
    for name, module in by_name.items():
        paper = published_paper(name)
        comparisons = []
        for part in paper.parts:
            for figure in part.figures:
                compute: Callable[..., Value] = getattr(module, figure.compute)
                comparisons.append(Comparison(part, figure, compute(*figure.arguments)))
            progress(1)
        reproductions.append(Reproduction(paper, tuple(comparisons)))
    return reproductions


def parts_of(names: Sequence[str]) -> int:
    """How many parts the papers have."""
    return sum(len(published_paper(name).parts) for name in names)
