"""Published figures and ours: the difference, and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from deepvm.reports.reproduction.printed import Printed, Value
from deepvm.reports.reproduction.published_figures import Figure, Paper, Part


class Verdict(str, Enum):
    """``same``: to the printed digits; ``close``: within the tolerance; ``differs``: else."""

    SAME = "same"
    CLOSE = "close"
    DIFFERS = "differs"


@dataclass(frozen=True)
class Comparison:
    """A published figure and ours, in the printed unit, seconds for a time."""

    part: Part
    figure: Figure
    ours: Value

    @cached_property
    def verdict(self) -> Verdict:
        if self.figure.published.agrees(self.ours):
            return Verdict.SAME
        return Verdict.CLOSE if self._is_close(self.figure.published) else Verdict.DIFFERS

    @property
    def expected(self) -> bool:
        """False where ours differs and that is not known, or is not the known difference."""
        known = self.figure.known
        if self.verdict is not Verdict.DIFFERS:
            return True
        return known is not None and (known.agrees(self.ours) or self._is_close(known))

    def _is_close(self, printed: Printed) -> bool:
        difference = printed.difference(self.ours)
        tolerance = self.figure.tolerance
        if difference is None or printed.value is None or tolerance is None:
            return False
        return tolerance.allows(difference, printed.value)

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
        """The difference as a share of the published figure; None where that is 0."""
        difference = self.difference
        published = self.figure.published.value
        if difference is None or not published:
            return None
        return difference / abs(published)

    @property
    def why(self) -> str:
        """Why it is not the same, as far as is known."""
        figure = self.figure
        if self.verdict is Verdict.CLOSE and figure.tolerance is not None:
            return f"{figure.tolerance.show(figure.published.unit)}: {figure.tolerance.reason}"
        if self.verdict is not Verdict.DIFFERS:
            return ""
        if self.expected:
            return figure.why
        if figure.known is not None:
            return f"not expected: the known difference is {figure.known.text}"
        return "not expected, and no reason is known"


@dataclass(frozen=True)
class Reproduction:
    """All figures of a paper."""

    paper: Paper
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many figures have which verdict."""
        counts = Counter(comparison.verdict for comparison in self.comparisons)
        return {verdict: counts[verdict] for verdict in Verdict}

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
