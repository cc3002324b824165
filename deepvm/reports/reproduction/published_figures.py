"""What the papers print: ``data/reproduce/PAPER.json``, with the section and how close is close."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from deepvm.io.user_dirs import data_folder


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

    ``known``: ours, where it is known to differ, and ``why``. ``source``: how the figure follows
    from what is printed, such as ``0.2013 / 0.1991``.
    """

    name: str
    published: str
    tolerance: Tolerance | None = None
    known: str = ""
    why: str = ""
    source: str = ""


@dataclass(frozen=True)
class Part:
    """A table, a figure or some sentences of a paper.

    ``where``: the section. ``stated_by``: ``paper``, or ``deepvm`` of its own work. ``plans``:
    options of ``recommend`` by the names that figures refer to.
    """

    id: str
    title: str
    where: str
    figures: tuple[Figure, ...]
    stated_by: str = "paper"
    plans: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(
        cls, figures: Mapping[str, Any], tolerances: Sequence[Any] = (), **values: Any
    ) -> Part:
        """Of the file of the paper; the first tolerance that names a figure counts."""
        rules = [Tolerance(**rule) for rule in tolerances]
        read = []
        for name, raw in figures.items():
            rule = next((rule for rule in rules if fnmatchcase(name, rule.of)), None)
            facts = {"published": raw} if isinstance(raw, str) else raw
            read.append(Figure(name, tolerance=rule, **facts))
        return cls(figures=tuple(read), **values)


@dataclass(frozen=True)
class Paper:
    """A paper's published figures."""

    name: str
    title: str
    note: str
    parts: tuple[Part, ...]


def published_paper(name: str) -> Paper:
    """What a paper prints."""
    path = data_folder() / "reproduce" / f"{name}.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Paper(name, raw["title"], raw["note"], tuple(Part.read(**part) for part in raw["parts"]))
