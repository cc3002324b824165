"""Measured points of a speed-up curve: output of ``deepvm profile scaling``, or CSV.

Lines of CSV that begin with # are comments; each row is one measurement, and a size may have many.
Seconds are those of the same work on n VMs, so S(n) is the median of the seconds on one VM over
those on n.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat
from deepvm.documents.tree import KeyPath
from deepvm.errors import CatalogFormatError, Issue
from deepvm.profiling.fit.csv_table import load_rows
from deepvm.profiling.fit.scaling_document import read_scaling

Points = tuple[tuple[float, float], ...]
"""(n, S(n)): VMs, and how many times as fast as one they train; sorted by n, repeats allowed."""

_COLUMNS = "the columns n and speedup, or n and seconds (of the same work on n VMs)"
_NO_UNIT = "a measurement of n = 1 as well, or the columns n,speedup"


def _rules(document: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    rows = document["rows"]
    columns = {name for row in rows for name in row if row[name] is not None} - {"n"}
    if len(columns) != 1:
        yield ("n",), f"no column with its values (expected {_COLUMNS})"
    elif columns == {"seconds"} and all(row["n"] > 1 for row in rows):
        yield ("n",), f"no row with n = 1 (expected {_NO_UNIT})"


_FORMAT = FileFormat(
    model_of("points.Points"),
    f"CSV with {_COLUMNS}",
    partial(load_rows, columns=["n"]),
    by_values(_rules),
)


def read_points(path: str | os.PathLike[str]) -> Points:
    """Read one curve's measurements: a ``.json`` file is ``deepvm.scaling/1``, others are CSV.

    Raises:
        DataError: what cannot be used, with its line and column, and what is expected.
    """
    file = Path(path)
    points: list[tuple[float, float]] = []
    if file.suffix.lower() == ".json":
        points += read_scaling(file).samples
        if not points:
            raise CatalogFormatError(file, [Issue(f"no run with n = 1 (expected {_NO_UNIT})")])
    else:
        rows = _FORMAT.read(file).model_dump()["rows"]
        units = [row["seconds"] for row in rows if row["n"] == 1 and row["seconds"] is not None]
        for row in rows:
            speedup = row["speedup"]
            if row["seconds"] is not None:
                speedup = statistics.median(units) / row["seconds"]
            points.append((float(row["n"]), speedup))
    return tuple(sorted(points, key=itemgetter(0)))


def read_medians(path: str | os.PathLike[str]) -> Points:
    """As :func:`read_points`, with one point per size: the inverse median of 1/S(n).

    With seconds, S(1) is 1 to the last digit.
    """
    rows = groupby(read_points(path), itemgetter(0))
    found = {n: 1.0 / statistics.median(1.0 / s for _, s in own) for n, own in rows}
    # The mean of two middle repeats may be 1 + 1e-16.
    return tuple((n, 1.0 if math.isclose(s, 1.0, rel_tol=1e-12) else s) for n, s in found.items())
