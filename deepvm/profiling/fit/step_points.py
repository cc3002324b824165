"""CSV of measured steps, and of clusters to predict: nodes, gpus, local_batch, step_time_s.

Columns may be in any order and among others; lines that begin with # are comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from deepvm.core.training.steptime import Steps
from deepvm.documents.inputs.tables import few_gpus
from deepvm.documents.models import by_values, model_of
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import Tree
from deepvm.errors import CatalogFormatError, RequestError
from deepvm.profiling.fit.csv_table import load_rows

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
        """As ``--predict`` takes it."""
        return f"nodes={self.nodes},gpus={self.gpus},batch={self.batch:g}"


def _rules(document: Mapping[str, Any]) -> Rules:
    return few_gpus(((row["nodes"], row["gpus"]) for row in document["rows"]), ("rows",))


_CLUSTER_FILE = FileFormat(
    model_of("points.Clusters"),
    f"CSV with the columns {','.join(_CLUSTER)}",
    partial(load_rows, columns=_CLUSTER),
    by_values(_rules),
)
_STEP_FILE = FileFormat(
    model_of("points.Steps"),
    f"CSV with the columns {','.join(_STEP)}",
    partial(load_rows, columns=_STEP),
    by_values(_rules),
)


def read_steps(path: str | os.PathLike[str]) -> Steps:
    """Read measured steps, in the order of the file.

    Raises:
        CatalogFormatError: every problem with its line and column, what was found and what is
            expected.
    """
    rows = _STEP_FILE.read(path).model_dump()["rows"]
    return Steps(*(np.array([float(row[column]) for row in rows]) for column in _STEP))


def read_asked(path: str | os.PathLike[str]) -> tuple[StepQuestion, ...]:
    """Read clusters to predict steps of, in the order of the file; raises as :func:`read_steps`."""
    rows = _CLUSTER_FILE.read(path).model_dump()["rows"]
    return tuple(StepQuestion(*(row[column] for column in _CLUSTER)) for row in rows)


def asked_of(texts: Iterable[str]) -> tuple[StepQuestion, ...]:
    """What ``--predict`` requests, in order: ``nodes=8,gpus=32,batch=200``, or CSV files.

    Raises:
        RequestError: a text that is neither. CatalogFormatError: as :func:`read_steps`.
    """
    found: list[StepQuestion] = []
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
