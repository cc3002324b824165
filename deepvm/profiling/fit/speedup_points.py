"""Measured points of a speed-up curve: output of ``deepvm profile scaling``, or CSV.

Lines of CSV that begin with # are comments; each row is one measurement, and a size may have many.
Seconds are those of the same work on n VMs, so S(n) is the median of the seconds on one VM over
those on n.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from deepvm.catalog.measured.entries import DOCUMENT_VERSIONS
from deepvm.documents.files import read_file, read_object
from deepvm.documents.formats import json as json_format
from deepvm.errors import CatalogFormatError, Problem
from deepvm.profiling.fit.csv_table import number, shown, table_of

Points = tuple[tuple[float, float], ...]
"""(n, S(n)): VMs, and how many times as fast as one they train; sorted by n, repeats allowed."""

MAX_ROWS = 10_000
MOST_NODES = 4096
# A time in seconds or a speed-up beyond it, or below its inverse, is a slip of the pen
LARGEST = 1e9

_SCALING = DOCUMENT_VERSIONS["scaling"]
_HEADER = "the columns n and speedup, or n and seconds (of the same work on n VMs)"
_EXPECTED = (
    "CSV with the columns n,speedup or n,seconds, one measurement a row, or a .json file"
    " that `deepvm profile scaling -o json` printed"
)
_NO_UNIT = "a measurement of n = 1 as well, or the columns n,speedup"


def read_points(path: str | os.PathLike[str]) -> Points:
    """Read one curve's measurements: a ``.json`` file is ``deepvm.scaling/1``, others are CSV.

    Raises:
        CatalogFormatError: every problem with its line and column, what was found and what is
            allowed.
    """
    file = Path(path)
    rows: list[tuple[float, float]] = []
    if file.suffix.lower() == ".json":
        problems = list(_of_scaling(read_object(file, _EXPECTED, json_format.load).value, rows))
    else:
        problems = list(_of_csv(read_file(file, _EXPECTED), file, rows))
    if problems:
        raise CatalogFormatError(file, problems)
    return tuple(sorted(rows, key=lambda p: p[0]))


def read_medians(path: str | os.PathLike[str]) -> Points:
    """As :func:`read_points`, with one point per size: the inverse median of 1/S(n).

    With seconds, S(1) is 1 to the last digit.
    """
    rows = groupby(read_points(path), lambda p: p[0])
    found = {n: 1.0 / statistics.median(1.0 / s for _, s in own) for n, own in rows}
    # The mean of two middle repeats may be 1 + 1e-16.
    return tuple((n, 1.0 if math.isclose(s, 1.0, rel_tol=1e-12) else s) for n, s in found.items())


def _of_csv(text: str, file: Path, rows: list[tuple[float, float]]) -> Iterator[Problem]:
    """Fill ``rows`` with (n, S(n)) and yield the problems of the others."""
    table = [(row.place, row.cells) for row in table_of(text, file, _HEADER)]
    place, titles = table.pop(0) if table else ("file", ())
    header = [title.strip().lower() for title in titles]
    if sorted(header) not in (["n", "seconds"], ["n", "speedup"]):
        yield Problem(place, shown(",".join(titles)), _HEADER)
        return
    if len(table) > MAX_ROWS:
        yield Problem(
            table[MAX_ROWS][0], f"more than {MAX_ROWS} rows", "one curve, measured by hand"
        )
        return
    for place, cells in table:
        if len(cells) == 2:
            yield from _keep(
                dict(zip(header, map(number, cells), strict=True)), place + ", column {}", rows
            )
        else:
            yield Problem(place, f"{len(cells)} fields", f"one field for {' and '.join(header)}")
    if not table:
        yield Problem("file", "holds no measurement", _EXPECTED)
    elif "seconds" in header and len(rows) == len(table):
        yield from _to_speedups(rows)


def _of_scaling(document: dict[str, Any], rows: list[tuple[float, float]]) -> Iterator[Problem]:
    """As :func:`_of_csv`, from the runs that did not fail."""
    if (version := document.get("schema_version")) != _SCALING:
        yield Problem(
            "schema_version",
            shown(version),
            f"{_SCALING!r}, as `deepvm profile scaling -o json` prints it",
        )
        return
    runs = document.get("runs")
    own = [run if isinstance(run, dict) else {} for run in runs] if isinstance(runs, list) else []
    done = [run for run in own if not run.get("failed")]
    for i, run in enumerate(done, start=1):
        numbers = {name: run.get(name) for name in ("n", "images_per_s")}
        yield from _keep(numbers, f"run {i} that did not fail, {{}}", rows)
    if len(rows) < len(done):
        return
    if any(n == 1 for n, _ in rows):
        # Images per second do not depend on how long the runs were: their inverse is the time of
        # the same work.
        rows[:] = [(n, 1 / rate) for n, rate in rows]
        yield from _to_speedups(rows)
        return
    rows.clear()  # speed-ups count from one VM: where no run tells its speed, the points may
    points = document.get("points")
    for i, point in enumerate(points if isinstance(points, list) else []):
        own_point = point if isinstance(point, dict) else {}
        numbers = {name: own_point.get(name) for name in ("n", "speedup")}
        yield from _keep(numbers, f"points[{i}].{{}}", rows)
    if not points:
        yield Problem("points", "holds no speed-up", _NO_UNIT)


def _keep(row: dict[str, Any], place: str, rows: list[tuple[float, float]]) -> Iterator[Problem]:
    """Append a row's n and value, or yield problems; ``place`` has a field for the column."""
    numbers: dict[str, float] = {}
    wrong = []
    for column, value in row.items():
        is_number = isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
        numbers[column] = own = float(value) if is_number else math.nan
        if column == "n" and not (1 <= own <= MOST_NODES and own.is_integer()):
            wrong.append((column, f"a whole number of VMs, 1 to {MOST_NODES}"))
        elif column != "n" and not 1 / LARGEST <= own <= LARGEST:
            wrong.append((column, f"a number above 0, {1 / LARGEST:g} to {LARGEST:g}"))
    yield from (
        Problem(place.format(column), shown(row[column]), expected) for column, expected in wrong
    )
    if not wrong:
        n = numbers.pop("n")
        (other,) = numbers.values()
        rows.append((n, other))


def _to_speedups(rows: list[tuple[float, float]]) -> Iterator[Problem]:
    """Turn seconds into speed-ups over the median of those at n = 1, or say that there are none."""
    units = [seconds for n, seconds in rows if n == 1]
    if units:
        unit = statistics.median(units)
        rows[:] = [(n, unit / seconds) for n, seconds in rows]
    else:
        sizes = ", ".join(f"{n:g}" for n in sorted({n for n, _ in rows})[:8])
        yield Problem("column n", f"no row with n = 1, only n = {sizes}", _NO_UNIT)
