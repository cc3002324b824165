"""CSV of measured steps, and of clusters to predict: nodes, gpus, local_batch, step_time_s.

Columns may be in any order and among others; lines that begin with # are comments.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from deepvm.core.spelling import did_you_mean, joined
from deepvm.core.training.steptime import Steps
from deepvm.documents.files import read_file
from deepvm.errors import CatalogFormatError, Problem, RequestError
from deepvm.profiling.fit.csv_table import Row, number, shown, table_of
from deepvm.profiling.fit.speedup_points import MOST_NODES

MAX_ROWS = 20_000
MOST_GPUS = 65_536
MOST_BATCH = 1e9  # samples on a GPU; beyond it, or below its inverse, is a slip of the pen
LONGEST_S = 1e6  # a step of 12 days
SHORTEST_S = 1e-9

_CLUSTER = ("nodes", "gpus", "local_batch")
_STEP = (*_CLUSTER, "step_time_s")
_INLINE = ("nodes", "gpus", "batch")
_FORM = (
    "nodes=N,gpus=K,batch=B (VMs, GPUs of all of them, samples on each GPU), or a .csv with those"
)
_IS_INLINE = re.compile(r"[^=]*=", re.ASCII)


@dataclass(frozen=True)
class Asked:
    """A cluster and a batch: VMs, GPUs of all of them together, samples on each GPU."""

    nodes: int
    gpus: int
    batch: float

    def __str__(self) -> str:
        """As ``--predict`` takes it."""
        return f"nodes={self.nodes},gpus={self.gpus},batch={self.batch:g}"


def read_steps(path: str | os.PathLike[str]) -> Steps:
    """Read measured steps, in the order of the file.

    Raises:
        CatalogFormatError: every problem with its line and column, what was found and what is
            allowed.
    """
    rows = _read(Path(path), _STEP)
    return Steps(*(np.array([row[column] for row in rows]) for column in _STEP))


def read_asked(path: str | os.PathLike[str]) -> tuple[Asked, ...]:
    """Read clusters to predict steps of, in the order of the file; raises as :func:`read_steps`."""
    return tuple(_asked(row, "local_batch") for row in _read(Path(path), _CLUSTER))


def asked_of(texts: Iterable[str]) -> tuple[Asked, ...]:
    """What ``--predict`` requests, in order: ``nodes=8,gpus=32,batch=200``, or CSV files.

    Raises:
        RequestError: a text that is neither. CatalogFormatError: as :func:`read_steps`.
    """
    found: list[Asked] = []
    for text in texts:
        if _IS_INLINE.match(text) and not text.lower().endswith(".csv"):
            found.append(_inline(text))
        elif text.strip():
            found += read_asked(text)
        else:
            raise RequestError("predict", text, _FORM)
    return tuple(found)


def _inline(text: str) -> Asked:
    pairs = [part.partition("=") for part in text.split(",")]
    names = [name.strip().lower() for name, _, _ in pairs]
    for name, (_, equals, value) in zip(names, pairs, strict=True):
        if name not in _INLINE or not equals:
            hint = did_you_mean(name, _INLINE)
            part = "".join((name, equals, value))
            raise RequestError(
                "predict",
                text,
                f"{_FORM}; not {shown(part.strip() or ' ')}{f', {hint}' if hint else ''}",
            )
        if names.count(name) > 1:
            raise RequestError("predict", text, f"{_FORM}; {name} is given twice")
    if lacking := [name for name in _INLINE if name not in names]:
        raise RequestError(
            "predict",
            text,
            f"{_FORM}; {joined(lacking)} {'is' if len(lacking) == 1 else 'are'} missing",
        )
    values = {name: number(value) for name, (_, _, value) in zip(names, pairs, strict=True)}
    wrong = [f"{name}: {allowed} (not {_found(found)})" for name, found, allowed in _wrong(values)]
    if wrong:
        raise RequestError("predict", text, "; ".join(wrong))
    return _asked({name: float(value) for name, value in values.items()}, "batch")


def _asked(row: Mapping[str, float], batch: str) -> Asked:
    return Asked(int(row["nodes"]), int(row["gpus"]), row[batch])


def _read(file: Path, columns: Sequence[str]) -> list[dict[str, float]]:
    what = "one measured step a row" if columns is _STEP else "one cluster a row"
    expected = f"CSV with the columns {','.join(columns)}, {what}"
    text = read_file(file, expected)
    rows: list[dict[str, float]] = []
    problems = list(_fill(table_of(text, file, expected), columns, expected, rows))
    if problems:
        raise CatalogFormatError(file, problems)
    return rows


def _fill(
    table: list[Row], columns: Sequence[str], expected: str, rows: list[dict[str, float]]
) -> Iterator[Problem]:
    """Append the rows that hold what they should, and yield the problems of the others."""
    if not table:
        yield Problem("file", "is empty", expected)
        return
    header, *body = table
    titles = [title.strip().lower() for title in header.cells]
    for column in columns:
        if titles.count(column) != 1:
            found = (
                f"{titles.count(column)} columns {column}"
                if column in titles
                else f"no column {column}"
            )
            hint = (
                ""
                if column in titles
                else did_you_mean(column, [t for t in titles if t not in columns])
            )
            yield Problem(
                header.place,
                f"{found} in {shown(','.join(header.cells))}",
                f"{expected}{_hint(hint)}",
            )
    if any(titles.count(column) != 1 for column in columns):
        return
    if not body:
        yield Problem("file", "holds no row below its header", expected)
    if len(body) > MAX_ROWS:
        yield Problem(body[MAX_ROWS].place, f"more than {MAX_ROWS} rows", f"at most {MAX_ROWS}")
        return
    for row in body:
        if len(row.cells) != len(titles):
            allowed = f"{len(titles)}, one for each column of the header"
            yield Problem(row.place, f"{len(row.cells)} fields", allowed)
            continue
        values = {column: number(row.cells[titles.index(column)]) for column in columns}
        wrong = [
            Problem(f"{row.place}, column {c}", shown(v), f"{text}")
            for c, v, text in _wrong(values)
        ]
        yield from wrong
        if not wrong:
            rows.append({column: float(value) for column, value in values.items()})


def _wrong(values: Mapping[str, float | str]) -> Iterator[tuple[str, float | str, str]]:
    """Which values cannot be, with their names and what is allowed."""
    nodes = values["nodes"]
    known = isinstance(nodes, float) and 1 <= nodes <= MOST_NODES and nodes.is_integer()
    if not known:
        yield "nodes", nodes, f"a whole number of VMs, 1 to {MOST_NODES}"
    least = int(float(nodes)) if known else 1
    for name, value in values.items():
        own = value if isinstance(value, float) else math.nan
        if name == "gpus" and not (least <= own <= MOST_GPUS and own.is_integer()):
            each = ", one or more on each VM" if least > 1 else ""
            yield (
                name,
                value,
                f"a whole number of GPUs of all VMs together, {least} to {MOST_GPUS}{each}",
            )
        elif name in ("batch", "local_batch") and not 1 / MOST_BATCH <= own <= MOST_BATCH:
            yield (
                name,
                value,
                f"samples on each GPU, a number above 0, {1 / MOST_BATCH:g} to {MOST_BATCH:g}",
            )
        elif name == "step_time_s" and not SHORTEST_S <= own <= LONGEST_S:
            yield (
                name,
                value,
                f"seconds of a step, a number above 0, {SHORTEST_S:g} to {LONGEST_S:g}",
            )


def _found(value: float | str) -> str:
    """A value in a sentence: whole numbers without a point."""
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _hint(hint: str) -> str:
    return f"; {hint.replace('did you mean', 'is it')}" if hint else ""
