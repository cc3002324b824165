"""Figures as papers print them: numbers and shares to some digit, times, bounds, words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta

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
