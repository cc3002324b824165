"""CSV of measured steps, and of clusters to predict: nodes, gpus, local_batch, step_time_s.

Columns may be in any order and among others; lines that begin with # are comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from deepvm.core.training.steptime import Steps
from deepvm.documents import fields as schema
from deepvm.documents.fields import Lenient, Number, Whole
from deepvm.documents.inputs.tables import MAX_BATCH, MAX_GPUS, MAX_STEP_S, few_gpus
from deepvm.documents.reader import FileFormat, Rules
from deepvm.documents.tree import Tree
from deepvm.errors import CatalogFormatError, RequestError
from deepvm.profiling.fit.csv_table import MAX_NODES, load_rows

MAX_ROWS = 20_000
MIN_STEP_S = 1e-9

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


class _Cluster(Lenient):
    nodes: Whole = schema.number("VMs", MAX_NODES, least=1, whole=True)
    gpus: Whole = schema.number("GPUs of all VMs together", MAX_GPUS, least=1, whole=True)
    local_batch: Number = schema.number("samples on each GPU", MAX_BATCH, least=1 / MAX_BATCH)


class _Step(_Cluster):
    step_time_s: Number = schema.number("seconds of a step", MAX_STEP_S, least=MIN_STEP_S)


class _Clusters(Lenient):
    rows: list[_Cluster] = schema.rows("clusters", MAX_ROWS, least=1, required=True)


class _Steps(Lenient):
    rows: list[_Step] = schema.rows("measured steps", MAX_ROWS, least=1, required=True)


def _rules(document: _Clusters | _Steps) -> Rules:
    return few_gpus(((row.nodes, row.gpus) for row in document.rows), ("rows",))


_CLUSTER_FILE = FileFormat(
    _Clusters,
    f"CSV with the columns {','.join(_CLUSTER)}",
    partial(load_rows, columns=_CLUSTER),
    _rules,
)
_STEP_FILE = FileFormat(
    _Steps, f"CSV with the columns {','.join(_STEP)}", partial(load_rows, columns=_STEP), _rules
)


def read_steps(path: str | os.PathLike[str]) -> Steps:
    """Read measured steps, in the order of the file.

    Raises:
        CatalogFormatError: every problem with its line and column, what was found and what is
            expected.
    """
    rows = _STEP_FILE.read(path).rows
    return Steps(*(np.array([float(getattr(row, column)) for row in rows]) for column in _STEP))


def read_asked(path: str | os.PathLike[str]) -> tuple[StepQuestion, ...]:
    """Read clusters to predict steps of, in the order of the file; raises as :func:`read_steps`."""
    return tuple(map(_asked, _CLUSTER_FILE.read(path).rows))


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
    return _asked(document.rows[0])


def _asked(row: _Cluster) -> StepQuestion:
    return StepQuestion(row.nodes, row.gpus, row.local_batch)
