"""Measured points of a speed-up curve, as people write them down: CSV, or what ``deepvm profile scaling`` printed.

::

    # what was run, where (lines that begin with # are left out)
    n,seconds
    1,100.2
    1,99.7
    2,61.3

A size may stand in many rows: each is one measurement. Seconds are those of the same work on n VMs, so S(n) is the
median of the seconds on one VM over those on n; without n = 1 they say nothing of the speed-up.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import statistics
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from deepvm.catalog.documents.json_file import parse_json
from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS
from deepvm.errors import CatalogFormatError, Problem
from deepvm.io.safe_read import read_text

Points = tuple[tuple[float, float], ...]
"""(n, S(n)): VMs, and how many times as fast as one they train; sorted by n, repeats allowed."""

SCALING = DOCUMENT_VERSIONS["scaling"]
MAX_ROWS = 10_000
MOST_NODES = 4096
LARGEST = 1e9
"""A time in seconds or a speed-up beyond it, or below its inverse, is a slip of the pen."""

_VALUES = ("speedup", "seconds")
_HEADER = "allowed: the columns n and speedup, or n and seconds (of the same work on n VMs)"
_EXPECTED = (
    "allowed: CSV with the columns n,speedup or n,seconds, one measurement a row, or a .json file that "
    "`deepvm profile scaling -o json` printed"
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", re.ASCII)
_SHOWN = 40
_SIZE = f"allowed: a whole number of VMs, 1 to {MOST_NODES}"
_SIZES = (1, MOST_NODES)
_SCALED = (1 / LARGEST, LARGEST)
_NO_UNIT = "a speed-up counts from one VM: measure n = 1 as well, or give n,speedup"


def read_points(path: str | os.PathLike[str]) -> Points:
    """Read the measurements of one curve.

    Args:
        path: ``.json`` for a document ``deepvm.scaling/1``; any other file is CSV.

    Raises:
        CatalogFormatError: the file is missing, cannot be read or does not hold points; every problem with its line and
            column, what stands there and what is allowed.
    """
    file = Path(path)
    try:
        text = read_text(file, _EXPECTED)
    except FileNotFoundError:
        raise CatalogFormatError(file, [Problem("file", "does not exist", _EXPECTED)]) from None
    raw = parse_json(text, file, _EXPECTED) if file.suffix.lower() == ".json" else None
    problems: list[Problem] = []
    points = _of_csv(text, problems) if raw is None else _of_scaling(raw, problems)
    if problems:
        raise CatalogFormatError(file, problems)
    return tuple(sorted(points, key=lambda p: p[0]))


def read_medians(path: str | os.PathLike[str]) -> Points:
    """As :func:`read_points`, with the median of the times of each size in the place of its repeats.

    That is the inverse of the median of 1/S(n): with seconds, S(1) is 1 to the last digit however often n = 1 stands.
    """
    rows = groupby(read_points(path), lambda p: p[0])
    found = {n: 1.0 / statistics.median(1.0 / s for _, s in own) for n, own in rows}
    # Of an even number of repeats the two middle ones are averaged, and 1 + 1e-16 is no unit.
    return tuple((n, 1.0 if math.isclose(s, 1.0, rel_tol=1e-12) else s) for n, s in found.items())


def speedups(rows: Sequence[tuple[float, float]]) -> Points:
    """Seconds as speed-ups: the median of the seconds at n = 1 over each row's, in the order of the rows.

    Args:
        rows: (n, seconds > 0) of the same work.

    Raises:
        ValueError: no row has n = 1.
    """
    unit = [seconds for n, seconds in rows if n == 1]
    if not unit:
        raise ValueError(_NO_UNIT)
    one = statistics.median(unit)
    return tuple((n, one / seconds) for n, seconds in rows)


def _of_csv(text: str, problems: list[Problem]) -> Points:
    # Lines that are left out become empty, so that the reader's line numbers remain the file's.
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    reader = csv.reader(io.StringIO("\n".join(lines)), strict=True)
    header: list[str] = []
    rows: list[tuple[float, float]] = []
    try:
        for cells in reader:
            place = f"line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not header:
                header = [cell.strip().lower() for cell in cells]
                if sorted(header) not in (["n", "seconds"], ["n", "speedup"]):
                    problems.append(Problem(place, _shown(",".join(cells)), _HEADER))
                    return ()
            elif len(cells) != 2:
                problems.append(
                    Problem(place, f"{len(cells)} fields", f"allowed: one field for {' and '.join(header)}")
                )
            else:
                row = dict(zip(header, (_number(cell.strip()) for cell in cells), strict=True))
                _keep(row, place + ", column {}", rows, problems)
            if max(len(rows), len(problems)) > MAX_ROWS:
                problems.append(Problem(place, f"more than {MAX_ROWS} rows", "allowed: one curve, measured by hand"))
                return ()
    except csv.Error as error:
        problems.append(Problem(f"line {reader.line_num}", f"not CSV: {error}", _HEADER))
    if not rows and not problems:
        problems.append(Problem("file", "holds no measurement", _EXPECTED))
    if problems or "speedup" in header:
        return tuple(rows)
    return _from_seconds(rows, "column n", problems)


def _of_scaling(raw: object, problems: list[Problem]) -> Points:
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or version != SCALING:
        expected = f"allowed: {SCALING!r}, as `deepvm profile scaling -o json` prints it"
        problems.append(Problem("schema_version", _shown(version), expected))
        return ()
    # The runs hold the repeats that the points are medians of. Images per second do not depend on how long the runs
    # were, so their inverse is the time of the same work.
    runs = raw.get("runs")
    done = [r for r in runs if not (isinstance(r, dict) and r.get("failed"))] if isinstance(runs, list) else []
    rows: list[tuple[float, float]] = []
    for i, run in enumerate(done):
        _keep(
            _fields(run, "images_per_s"),
            f"run {i + 1} that did not fail, {{}}",
            rows,
            problems,
        )
    if rows and any(n == 1 for n, _ in rows) and not problems:
        return speedups([(n, 1 / rate) for n, rate in rows])
    points = raw.get("points")
    rows = []
    for i, point in enumerate(points if isinstance(points, list) else []):
        _keep(_fields(point, "speedup"), f"points[{i}].{{}}", rows, problems)
    if not rows and not problems:
        problems.append(Problem("points", "holds no speed-up", _NO_UNIT))
    return tuple(rows)


def _from_seconds(rows: Sequence[tuple[float, float]], place: str, problems: list[Problem]) -> Points:
    try:
        return speedups(rows)
    except ValueError as error:
        sizes = ", ".join(f"{n:g}" for n in sorted({n for n, _ in rows})[:8])
        problems.append(Problem(place, f"no row with n = 1, only n = {sizes}", str(error)))
        return ()


def _fields(value: object, name: str) -> dict[str, Any]:
    own = value if isinstance(value, dict) else {}
    return {"n": own.get("n"), name: own.get(name)}


def _keep(row: dict[str, Any], place: str, rows: list[tuple[float, float]], problems: list[Problem]) -> None:
    """Append a row's n and value, or what is wrong with them; ``place`` has braces where the column's name belongs."""
    before = len(problems)
    for column, value in row.items():
        found = _float(value)
        low, high = _SIZES if column == "n" else _SCALED
        whole = column != "n" or found == math.floor(found if math.isfinite(found) else 0.5)
        if not (low <= found <= high and whole):
            expected = _SIZE if column == "n" else f"allowed: a number above 0, {low:g} to {high:g}"
            problems.append(Problem(place.format(column), _shown(value), expected))
    if len(problems) == before:
        n, other = float(row["n"]), next(float(v) for c, v in row.items() if c != "n")
        rows.append((n, other))


def _number(text: str) -> float | str:
    """The number, or the text as it is, to be refused: float() would take 1_000, nan and digits of other scripts."""
    return float(text) if _NUMBER.fullmatch(text) else text


def _float(value: object) -> float:
    if value is None or isinstance(value, (str, bool, list, dict)):
        return math.nan
    return float(value)  # type: ignore[arg-type]  # int, float or Decimal: what JSON has beside those above


def _shown(value: object) -> str:
    text = "is empty" if value == "" else "is missing" if value is None else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
