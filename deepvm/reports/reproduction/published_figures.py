"""What the papers print: ``data/reproduce/PAPER.json``, with the section and how close is close.

Figures are numbers and shares to some digit, times, bounds, or words.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any

from deepvm.io.user_dirs import data_folder

Value = float | str
"""What is computed: a number in the printed unit, seconds for a time, words for words."""

_NUMBER = re.compile(r"(?:([<>]) )?(-?\d+(?:\.(\d+))?)( %)?", re.ASCII)
_TIME = re.compile(r"(?:(\d+)d, )?(\d+):([0-5]\d):([0-5]\d)", re.ASCII)
_SLACK = 1e-9
"""Of the last digit: 0.1 + 0.2 is 0.3, and a binary float half a digit off is half a digit off."""


@dataclass(frozen=True)
class PrintedFigure:
    """A printed figure.

    Attributes:
        kind: ``<`` and ``>`` for bounds, ``time``, ``words``, empty for a number.
        value: the number, the bound, or seconds; None for words. decimals: digits after the point.
        unit: `` %`` or empty.
    """

    text: str
    kind: str
    value: float | None = None
    decimals: int = 0
    unit: str = ""

    @classmethod
    def read(cls, text: str) -> PrintedFigure:
        """``2.8526``, ``66.3 %``, ``< 10 %``, ``> 75 %``, ``5d, 11:31:28``.

        Everything else is words.
        """
        if match := _TIME.fullmatch(text):
            days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
            time = timedelta(days, seconds, minutes=minutes, hours=hours)
            return cls(text, "time", time.total_seconds())
        if match := _NUMBER.fullmatch(text):
            sign, number, decimals, unit = (part or "" for part in match.groups())
            return cls(text, sign, float(number), len(decimals), unit)
        return cls(text, "words")

    def agrees(self, ours: Value) -> bool:
        """Whether ours is printed the same, or keeps the bound."""
        if self.value is None or isinstance(ours, str):
            return ours == self.text
        if self.kind == "<":
            return ours < self.value
        if self.kind == ">":
            return ours > self.value
        return abs(ours - self.value) <= (0.5 + _SLACK) * 10.0**-self.decimals

    def difference(self, ours: Value) -> float | None:
        """Ours less theirs in the printed unit, seconds for a time; None for words and bounds."""
        if self.value is None or isinstance(ours, str) or self.kind in ("<", ">"):
            return None
        return ours - self.value

    def show(self, ours: Value) -> str:
        """Ours as the paper would print it; of a bound, one digit more."""
        if isinstance(ours, str) or not math.isfinite(ours):
            return str(ours)
        if self.kind == "time":
            return show_time(ours)
        decimals = self.decimals + (self.kind != "")
        return f"{ours:.{decimals}f}{self.unit}"


def show_time(seconds: float) -> str:
    """``5d, 11:31:28`` or ``0:34:11``, as the thesis prints times."""
    return re.sub(" days?", "d", str(timedelta(seconds=round(seconds))))


@dataclass(frozen=True)
class Tolerance:
    """How far off is still close: a share of the printed figure, or an amount in its unit.

    ``of``: a pattern of the names of figures, for all of a part.
    """

    reason: str
    relative: float | None = None
    absolute: float | None = None
    of: str = "*"

    def allows(self, difference: float, published: float) -> bool:
        """Whether ours less theirs is close."""
        limit = self.absolute or 0.0
        if self.relative is not None:
            limit = self.relative * abs(published)
        return abs(difference) <= limit

    def show(self, unit: str) -> str:
        """``within 0.3 %``, ``within 3 points``; ``unit`` is that of the printed figure."""
        if self.relative is not None:
            return f"within {100 * self.relative:g} %"
        points = " points" if unit else ""
        return f"within {self.absolute:g}{points}"


@dataclass(frozen=True)
class Figure:
    """A published figure.

    ``compute``: the function of the paper's module that computes ours, with its ``arguments``.
    ``known``: ours, where it is known to differ, and ``why``. ``source``: how the figure follows
    from what is printed, such as ``0.2013 / 0.1991``.
    """

    name: str
    published: str
    tolerance: Tolerance | None = None
    known: str = ""
    why: str = ""
    source: str = ""
    compute: str = ""
    arguments: Sequence[Any] = ()


@dataclass(frozen=True)
class Part:
    """A table, a figure or some sentences of a paper.

    ``where``: the section. ``stated_by``: ``paper``, or ``deepvm`` of its own work.
    """

    id: str
    title: str
    where: str
    figures: tuple[Figure, ...]
    stated_by: str = "paper"

    @classmethod
    def read(
        cls,
        figures: Mapping[str, Any],
        tolerances: Sequence[Any] = (),
        compute: str = "",
        arguments: Sequence[Any] = (),
        **values: Any,
    ) -> Part:
        """Of the file of the paper; the first tolerance that names a figure counts.

        A figure is computed as the part says, unless it says how itself. Arguments of the part come
        before its own, which are the parts of its name if it has none.
        """
        rules = [Tolerance(**rule) for rule in tolerances]
        read = []
        for name, raw in figures.items():
            facts: dict[str, Any] = {"compute": compute, "arguments": name.split(", ")}
            facts |= {"published": raw} if isinstance(raw, str) else raw
            facts["arguments"] = (*arguments, *facts["arguments"])
            rule = next((rule for rule in rules if fnmatchcase(name, rule.of)), None)
            read.append(Figure(name, tolerance=rule, **facts))
        return cls(figures=tuple(read), **values)


@dataclass(frozen=True)
class Paper:
    """A paper's published figures; ``plans``: what is computed for several of them, by name."""

    name: str
    title: str
    note: str
    parts: tuple[Part, ...]
    plans: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def published_paper(name: str) -> Paper:
    """What a paper prints."""
    path = data_folder() / "reproduce" / f"{name}.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    parts = tuple(Part.read(**part) for part in raw["parts"])
    return Paper(name, raw["title"], raw["note"], parts, raw.get("plans", {}))
