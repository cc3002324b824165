"""What papers print next to ours: ``data/reproduce/PAPER.json``, and when two figures agree."""

import math
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from types import ModuleType
from typing import Any, Literal, get_args

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.io.user_dirs import read_data
from deepvm.records import dataclass, replace

# What is computed: a number in the printed unit, seconds for a time, words for words
Value = float | str
# ``same``: to the printed digits; ``close``: within the tolerance; ``differs``: else
Verdict = Literal["same", "close", "differs"]

_NUMBER = re.compile(r"(?:([<>]) )?(-?\d+(?:\.(\d+))?)( %)?", re.ASCII)
_TIME = re.compile(r"(?:(\d+)d, )?(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
# Of the last digit: 0.1 + 0.2 is 0.3, and a binary float half a digit off is half a digit off
_SLACK = 1e-9


@dataclass(frozen=True)
class PrintedFigure:
    """A printed number, a bound (``<``, ``>``), a ``time`` in seconds, or ``words`` (NaN)."""

    text: str
    kind: str
    value: float = math.nan
    decimals: int = 0
    unit: str = ""

    @classmethod
    def read(cls, text: str) -> "PrintedFigure":
        """``2.8526``, ``66.3 %``, ``< 10 %``, ``> 75 %``, ``5d, 11:31:28``."""
        if match := _TIME.fullmatch(text):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            time = timedelta(days, seconds, minutes=minutes, hours=hours)
            return cls(text, "time", time.total_seconds())
        if match := _NUMBER.fullmatch(text):
            sign, number, decimals, unit = match.groups("")
            return cls(text, sign, float(number), len(decimals), unit)
        return cls(text, "words")

    def agrees(self, ours: Value) -> bool:
        if isinstance(ours, str):
            return ours == self.text
        if self.kind == "<":
            return ours < self.value
        if self.kind == ">":
            return ours > self.value
        return abs(ours - self.value) <= (0.5 + _SLACK) * 10.0**-self.decimals

    def difference(self, ours: Value) -> float:
        """Ours less theirs in the printed unit, seconds for a time; NaN for words and bounds."""
        if isinstance(ours, str) or self.kind in ("<", ">"):
            return math.nan
        return ours - self.value

    def show(self, ours: Value) -> str:
        if isinstance(ours, str) or not math.isfinite(ours):
            return str(ours)
        if self.kind == "time":
            return re.sub(" days?", "d", str(timedelta(seconds=round(ours))))
        decimals = self.decimals + (self.kind != "")
        return f"{ours:.{decimals}f}{self.unit}"


@dataclass(frozen=True)
class Tolerance:
    """How far off is still close: a share of the printed figure, or an amount in its unit."""

    reason: str
    relative: float | None = None
    absolute: float | None = None
    of: str = "*"

    def limit(self, published: float) -> float:
        if self.absolute is not None:
            return self.absolute
        return (self.relative or 0.0) * abs(published)

    def show(self, unit: str) -> str:
        if self.relative is not None:
            return f"within {100 * self.relative:g} %"
        if unit:
            return f"within {self.absolute:g} points"
        return f"within {self.absolute:g}"


@dataclass(frozen=True)
class Figure:
    """A published figure and ours, in the printed unit, seconds for a time."""

    name: str
    published: str
    ours: Value = math.nan
    tolerance: Tolerance | None = None
    known: str = ""
    known_why: str = ""
    source: str = ""

    @cached_property
    def printed(self) -> PrintedFigure:
        return PrintedFigure.read(self.published)

    @property
    def verdict(self) -> Verdict:
        return self._judge(self.printed)

    def _judge(self, printed: PrintedFigure) -> Verdict:
        if printed.agrees(self.ours):
            return "same"
        difference = abs(printed.difference(self.ours))
        if self.tolerance is not None and difference <= self.tolerance.limit(printed.value):
            return "close"
        return "differs"

    @property
    def expected(self) -> bool:
        """False where ours differs and that is not known, or is not the known difference."""
        known = PrintedFigure.read(self.known)
        return self.verdict != "differs" or self._judge(known) != "differs"

    @property
    def shown(self) -> str:
        return self.printed.show(self.ours)

    @property
    def difference(self) -> float:
        """Ours less theirs; NaN for words and bounds."""
        return self.printed.difference(self.ours)

    @property
    def relative(self) -> float:
        """The difference as a share of the published figure; NaN where that is 0."""
        return self.difference / (abs(self.printed.value) or math.nan)

    @property
    def why(self) -> str:
        """Why it is not the same, as far as is known."""
        if self.verdict == "close" and self.tolerance:
            return f"{self.tolerance.show(self.printed.unit)}: {self.tolerance.reason}"
        if self.verdict == "same":
            return ""
        if self.expected:
            return self.known_why
        if self.known:
            return f"not expected: the known difference is {self.known}"
        return "not expected, and no reason is known"


@dataclass(frozen=True)
class Part:
    """A table, a figure or some sentences of a paper."""

    id: str
    title: str
    where: str
    figures: Sequence[Figure]
    stated_by: str = "paper"


@dataclass(frozen=True)
class Paper:
    """A paper; ``only``: the verdict of the figures to show, None for all of them."""

    name: str
    title: str
    note: str
    parts: Sequence[Part]
    only: Verdict | None = None

    @property
    def counts(self) -> dict[str, int]:
        verdicts = [own.verdict for part in self.parts for own in part.figures]
        return {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}

    @property
    def unexpected(self) -> list[tuple[Part, Figure]]:
        return [(part, own) for part in self.parts for own in part.figures if not own.expected]

    @property
    def shown_parts(self) -> list[Part]:
        parts = []
        for part in self.parts:
            if shown := [own for own in part.figures if self.only in (None, own.verdict)]:
                parts.append(replace(part, figures=shown))
        return parts


def read_paper(name: str) -> Any:
    """The file of a paper; ``plans``: what is computed for several figures, by name."""
    return read_data(f"reproduce/{name}.json")


def read_part(
    module: ModuleType,
    figures: JsonObject,
    tolerances: Sequence[Any] = (),
    compute: str = "",
    arguments: Sequence[Any] = (),
    **about: Any,
) -> Part:
    """A part of the file of a paper, computed; the first tolerance that names a figure counts."""
    rules = [Tolerance(**rule) for rule in tolerances]
    computed = []
    for name, raw in figures.items():
        facts: JsonDict = {"compute": compute, "arguments": name.split(", ")}
        facts |= {"published": raw} if isinstance(raw, str) else raw
        function: Callable[..., Value] = getattr(module, facts.pop("compute"))
        ours = function(*arguments, *facts.pop("arguments"))
        rule = next((rule for rule in rules if fnmatchcase(name, rule.of)), None)
        computed.append(Figure(name, ours=ours, tolerance=rule, **facts))
    return Part(figures=computed, **about)
