"""CSV of measurements written by users: rows with line numbers, and numbers or other text."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from deepvm.errors import CatalogFormatError, Problem

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_SHOWN = 40


@dataclass(frozen=True)
class Row:
    """A row of a file and where it stands, such as ``line 7``."""

    place: str
    cells: tuple[str, ...]


def table_of(text: str, file: Path, allowed: str) -> list[Row]:
    """The rows of a file's text with the header, without empty lines and # comments.

    Raises a CatalogFormatError if it is no CSV.
    """
    # Comments become empty lines, so that the reader's line numbers remain the file's.
    lines = ["\n" if line.lstrip().startswith("#") else f"{line}\n" for line in text.splitlines()]
    reader = csv.reader(lines, strict=True)
    try:
        return [
            Row(f"line {reader.line_num}", tuple(cells))
            for cells in reader
            if any(c.strip() for c in cells)
        ]
    except csv.Error as error:
        problem = Problem(f"line {reader.line_num}", f"not CSV: {error}", allowed)
        raise CatalogFormatError(file, [problem]) from None


def number(cell: str) -> float | str:
    """The number, or the text, rejected later: float() would take 1_000, nan and other digits."""
    text = cell.strip()
    return float(text) if _NUMBER.fullmatch(text) else text


def shown(value: object) -> str:
    """What was found, at most 40 characters."""
    text = "is empty" if value == "" else "is missing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
