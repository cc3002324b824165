"""What the papers print: ``data/reproduce/PAPER.json``, with where it stands and how close is close."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.io.user_dirs import data_folder
from deepvm.reports.reproduction.printed import Printed

SCHEMA_VERSION = "deepvm.published/1"
PAPER, OURS = "paper", "deepvm"
"""Who states a figure: the paper, or this project of its own work."""


@dataclass(frozen=True)
class Tolerance:
    """How far off is still close, and why: a share of the printed figure, or an amount in its unit (s for times)."""

    reason: str
    relative: float | None = None
    absolute: float | None = None

    def allows(self, difference: float, published: float) -> bool:
        """Whether ours less theirs is close."""
        most = self.absolute if self.relative is None else self.relative * abs(published)
        return most is not None and abs(difference) <= most

    def show(self, unit: str) -> str:
        """``within 0.3 %``, ``within 3 points``; ``unit`` is that of the printed figure."""
        if self.relative is not None:
            return f"within {100 * self.relative:g} %"
        return f"within {self.absolute:g}{' points' if unit else ''}"


@dataclass(frozen=True)
class KnownDifference:
    """A difference that is known: what ours is, as printed, and why."""

    ours: Printed
    why: str


@dataclass(frozen=True)
class Figure:
    """A published figure; ``source``: how it follows from what is printed, such as ``0.2013 / 0.1991``."""

    name: str
    published: Printed
    tolerance: Tolerance | None = None
    known: KnownDifference | None = None
    source: str = ""


@dataclass(frozen=True)
class Part:
    """A table, a figure or some sentences of a paper; ``where``: the section; ``stated_by``: see :data:`OURS`."""

    id: str
    title: str
    where: str
    stated_by: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Paper:
    """A paper's published figures."""

    name: str
    title: str
    note: str
    parts: tuple[Part, ...]


def published_paper(name: str, folder: Path | None = None) -> Paper:
    """Read what a paper prints, from ``folder`` or from the data that come with deepvm.

    Raises:
        DataError: the file is missing, or is none of published figures.
    """
    path = (folder or data_folder() / "reproduce") / f"{name}.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema_version"] != SCHEMA_VERSION:
            raise DataError(
                f"{path}: schema_version {raw['schema_version']!r}; allowed: {SCHEMA_VERSION!r}"
            )
        return Paper(
            raw["paper"],
            raw["title"],
            raw.get("note", ""),
            tuple(_part(part) for part in raw["parts"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        said = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: no published figures ({said}); install deepvm again") from None


def _part(raw: Mapping[str, Any]) -> Part:
    rules = [(rule["of"], _tolerance(rule)) for rule in raw.get("tolerances", ())]
    figures = tuple(_figure(name, found, rules) for name, found in raw["figures"].items())
    return Part(raw["id"], raw["title"], raw["where"], raw.get("stated_by", PAPER), figures)


def _figure(
    name: str, raw: str | Mapping[str, Any], rules: Sequence[tuple[str, Tolerance]]
) -> Figure:
    """A figure, with its own tolerance or the first of the part's rules that names it."""
    own: Mapping[str, Any] = {"published": raw} if isinstance(raw, str) else raw
    given, differs = own.get("tolerance"), own.get("differs")
    tolerance = (
        _tolerance(given) if given else next((t for of, t in rules if fnmatchcase(name, of)), None)
    )
    known = KnownDifference(Printed.read(differs["ours"]), differs["why"]) if differs else None
    return Figure(name, Printed.read(own["published"]), tolerance, known, own.get("from", ""))


def _tolerance(raw: Mapping[str, Any]) -> Tolerance:
    return Tolerance(raw["reason"], raw.get("relative"), raw.get("absolute"))
