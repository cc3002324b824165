"""Speed-ups in a CSV of two columns, ``n,speedup``, as a person types them from a paper."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from deepvm.errors import CatalogFormatError, Problem

_ALLOWED = "allowed: a header n,speedup and below it numbers, such as 4,2.48"
_MOST = 10_000


def speedups_of(text: str, path: Path) -> list[tuple[int, float]]:
    """(n, S(n)), n increasing; the mean of repeats.

    Raises:
        CatalogFormatError: another header, or a row that is no pair of numbers; names every line.
    """
    rows = [(i, [c.strip() for c in row]) for i, row in enumerate(_rows(text, path), 1) if any(c.strip() for c in row)]
    if not rows or rows[0][1] != ["n", "speedup"]:
        found = ",".join(rows[0][1])[:60] if rows else "no header"
        raise CatalogFormatError(path, [Problem(f"line {rows[0][0] if rows else 1}", found, _ALLOWED)])
    problems: list[Problem] = []
    points: dict[int, list[float]] = {}
    for line, cells in rows[1:]:
        try:
            n, speedup = (float(c) for c in cells)
            if not (math.isfinite(n) and n.is_integer() and n >= 1 and 0 < speedup < math.inf):
                raise ValueError
        except ValueError:
            problems.append(Problem(f"line {line}", ",".join(cells)[:60], _ALLOWED))
        else:
            points.setdefault(int(n), []).append(speedup)
    if problems:
        raise CatalogFormatError(path, problems)
    return [(n, sum(values) / len(values)) for n, values in sorted(points.items())]


def _rows(text: str, path: Path) -> list[list[str]]:
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise CatalogFormatError(path, [Problem("file", f"not CSV: {error}", _ALLOWED)]) from None
    if len(rows) > _MOST:
        raise CatalogFormatError(path, [Problem("file", f"holds {len(rows)} lines", f"allowed: at most {_MOST}")])
    return rows
