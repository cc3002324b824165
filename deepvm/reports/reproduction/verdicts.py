"""Ours beside what is published: the difference, and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from deepvm.errors import DataError
from deepvm.reports.reproduction.printed import Printed, Value
from deepvm.reports.reproduction.published_figures import Figure, Paper, Part, Tolerance


class Verdict(str, Enum):
    """``same``: to the printed digits; ``close``: within the stated tolerance; ``differs``: everything else."""

    SAME = "same"
    CLOSE = "close"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Comparison:
    """A published figure and ours, in the printed unit, seconds for a time.

    ``expected``: False where ours differs and that is not known, or is not the known difference any
    more.
    """

    figure: Figure
    ours: Value
    verdict: Verdict
    expected: bool

    @classmethod
    def of(cls, figure: Figure, ours: Value) -> Comparison:
        """Compare."""
        verdict = Verdict.DIFFERS
        if figure.published.agrees(ours):
            verdict = Verdict.SAME
        elif _close(figure.published, ours, figure.tolerance):
            verdict = Verdict.CLOSE
        known = figure.known
        as_known = known is not None and (
            known.ours.agrees(ours) or _close(known.ours, ours, figure.tolerance)
        )
        return cls(figure, ours, verdict, verdict is not Verdict.DIFFERS or as_known)

    @property
    def shown(self) -> str:
        """Ours as the paper would print it."""
        return self.figure.published.show(self.ours)

    @property
    def difference(self) -> float | None:
        """Ours less theirs; None for words and bounds."""
        return self.figure.published.difference(self.ours)

    @property
    def relative(self) -> float | None:
        """The difference as a share of the published figure.

        None without one, or where that is 0.
        """
        difference, published = self.difference, self.figure.published.value
        return difference / abs(published) if difference is not None and published else None

    @property
    def why(self) -> str:
        """Why it is not the same, as far as is known."""
        figure = self.figure
        if self.verdict is Verdict.CLOSE and figure.tolerance is not None:
            return f"{figure.tolerance.show(figure.published.unit)}: {figure.tolerance.reason}"
        if self.verdict is not Verdict.DIFFERS:
            return ""
        if self.expected and figure.known is not None:
            return figure.known.why
        if figure.known is not None:
            return f"not expected: the known difference is {figure.known.ours.text}"
        return "not expected, and no reason is known"


def _close(printed: Printed, ours: Value, tolerance: Tolerance | None) -> bool:
    difference = printed.difference(ours)
    if difference is None or printed.value is None or tolerance is None:
        return False
    return tolerance.allows(difference, printed.value)


@dataclass(frozen=True)
class ComparedPart:
    """All figures of a part."""

    part: Part
    comparisons: tuple[Comparison, ...]

    @classmethod
    def of(cls, part: Part, ours: Mapping[str, Value]) -> ComparedPart:
        """Compare a part; raises a DataError unless exactly its figures are computed."""
        wrong = {figure.name for figure in part.figures} ^ set(ours)
        if wrong:
            raise DataError(
                f"published figures, {part.id}: not both published and computed:"
                f" {', '.join(sorted(wrong))}"
            )
        return cls(part, tuple(Comparison.of(figure, ours[figure.name]) for figure in part.figures))


@dataclass(frozen=True)
class Reproduction:
    """All figures of a paper."""

    paper: Paper
    parts: tuple[ComparedPart, ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Of all parts."""
        return tuple(comparison for part in self.parts for comparison in part.comparisons)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many figures have which verdict."""
        found = Counter(comparison.verdict for comparison in self.comparisons)
        return {verdict: found[verdict] for verdict in Verdict}

    @property
    def unexpected(self) -> tuple[tuple[Part, Comparison], ...]:
        """What differs and should not."""
        return tuple(
            (part.part, found)
            for part in self.parts
            for found in part.comparisons
            if not found.expected
        )
