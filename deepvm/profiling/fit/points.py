"""CSV of measurements: steps (and clusters to predict), or points of a speed-up curve."""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from deepvm.core.json_types import JsonObject
from deepvm.core.training.steptime import Steps
from deepvm.documents.formats.csv import load_table
from deepvm.documents.inputs.tables import few_gpus
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import FileSyntaxError, KeyPath, Tree
from deepvm.errors import CatalogFormatError, Issue, RequestError
from deepvm.io.safe_read import StrPath
from deepvm.profiling.fit.scaling_document import read_scaling
from deepvm.records import dataclass

MAX_NODES = 4096
_COMMENT = re.compile(r"^[ \t]*#.*", re.MULTILINE)


def load_rows(text: str, columns: Sequence[str]) -> Tree:
    """The rows as ``{"rows": [{column: text}, ...]}``. Raises FileSyntaxError for the header."""
    # Comments become empty lines, so that line numbers remain the file's.
    table = load_table(_COMMENT.sub("", text))
    for column in columns:
        if column not in table.columns:
            raise FileSyntaxError(
                f"no column {column} in {','.join(table.columns)[:40]!r}", table.line
            )
    rows: list[dict[str, str]] = []
    lines: dict[KeyPath, int] = {}
    for line, row in table.rows:
        lines["rows", len(rows)] = line
        rows.append(row)
    return Tree({"rows": rows}, lambda: lines, lambda path: str(path[-1]), table.issues)


_CLUSTER = ("nodes", "gpus", "local_batch")
_STEP = (*_CLUSTER, "step_time_s")
_FORM = (
    "nodes=N,gpus=K,batch=B (VMs, GPUs of all of them, samples on each GPU), or a .csv with those"
)
_IS_INLINE = re.compile(r"[^=]*=", re.ASCII)


@dataclass(frozen=True)
class StepQuestion:
    """A cluster and a batch: VMs, GPUs of all of them together, samples on each GPU."""

    nodes: int
    gpus: int
    batch: float

    def __str__(self) -> str:
        return f"nodes={self.nodes},gpus={self.gpus},batch={self.batch:g}"


def _cluster_rules(document: JsonObject) -> Rules:
    return few_gpus(((row["nodes"], row["gpus"]) for row in document["rows"]), ("rows",))


_CLUSTER_FILE = FileFormat(
    model_of("points.Clusters"),
    f"CSV with the columns {','.join(_CLUSTER)}",
    partial(load_rows, columns=_CLUSTER),
    by_values(_cluster_rules),
)
_STEP_FILE = FileFormat(
    model_of("points.Steps"),
    f"CSV with the columns {','.join(_STEP)}",
    partial(load_rows, columns=_STEP),
    by_values(_cluster_rules),
)


def read_steps(path: StrPath) -> Steps:
    """Measured steps, in the order of the file. Raises CatalogFormatError."""
    rows = _STEP_FILE.read(path).model_dump()["rows"]
    return Steps(*(np.array([float(row[column]) for row in rows]) for column in _STEP))


def read_asked(path: StrPath) -> tuple[StepQuestion, ...]:
    """Clusters to predict steps of, in the order of the file."""
    rows = _CLUSTER_FILE.read(path).model_dump()["rows"]
    return tuple(StepQuestion(*(row[column] for column in _CLUSTER)) for row in rows)


def asked_of(texts: Iterable[str]) -> tuple[StepQuestion, ...]:
    """What ``--predict`` requests: clusters, or CSV files. Raises RequestError."""
    found = []
    for text in texts:
        if _IS_INLINE.match(text) and not text.lower().endswith(".csv"):
            found.append(_inline(text))
        elif text.strip():
            found += read_asked(text)
        else:
            raise RequestError("predict", text, _FORM)
    return tuple(found)


def _inline(text: str) -> StepQuestion:
    pairs = [part.partition("=") for part in text.split(",")]
    values = {name.strip().lower(): value for name, _, value in pairs}
    if len(pairs) != 3 or set(values) != {"nodes", "gpus", "batch"}:
        raise RequestError("predict", text, _FORM)
    values["local_batch"] = values.pop("batch")
    try:
        document = _CLUSTER_FILE.validated(
            Tree({"rows": [values]}, dict, lambda path: str(path[-1])), text
        )
    except CatalogFormatError as error:
        raise RequestError("predict", text, "; ".join(map(str, error.problems))) from None
    (row,) = document.model_dump()["rows"]
    return StepQuestion(*(row[column] for column in _CLUSTER))


# (n, S(n)): VMs, and how many times as fast as one they train; sorted by n, repeats allowed
Points = tuple[tuple[float, float], ...]

_COLUMNS = "the columns n and speedup, or n and seconds (of the same work on n VMs)"
_NO_UNIT = "a measurement of n = 1 as well, or the columns n,speedup"


def _speedup_rules(document: JsonObject) -> Iterator[tuple[KeyPath, str]]:
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
    by_values(_speedup_rules),
)


def read_points(path: StrPath) -> Points:
    """One curve's measurements: CSV, or ``.json`` of ``deepvm.scaling/1``. Raises DataError."""
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


def read_medians(path: StrPath) -> Points:
    """As :func:`read_points`, with one point per size: the inverse median of 1/S(n)."""
    rows = groupby(read_points(path), itemgetter(0))
    found = {n: 1.0 / statistics.median(1.0 / s for _, s in own) for n, own in rows}
    # The mean of two middle repeats may be 1 + 1e-16.
    return tuple((n, 1.0 if math.isclose(s, 1.0, rel_tol=1e-12) else s) for n, s in found.items())
