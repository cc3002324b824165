"""The list of a matrix's runs and what became of them: whole on disk at every moment."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.records import read_document, write_document

NAME = "manifest.csv"
PLANNED = "planned.json"


class RunState(Enum):
    """What became of a run."""

    COMPLETED = "completed"
    SKIPPED = "skipped_exists"
    """It was there, and its artefacts were checked again."""
    FAILED = "failed"
    """It has not got to its last step."""
    INVALID = "invalid"
    """It has, and does not pass a gate."""


@dataclass(frozen=True)
class Row:
    """A run; ``key``: of configuration, code, environment; ``reason``: first failed gate."""

    key: str
    run: str
    dataset: str
    model: str
    failure: str
    variant: str
    seed: int
    state: str
    wall_s: float
    goodput: float
    restarts: int
    reason: str = ""


_COLUMNS = [column.name for column in fields(Row)]


def key_of(config: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """16 hex digits that change with anything that may change a run."""
    facts = [config, dict(environment)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Manifest:
    """Of a folder; any thread may add to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        if self._path.exists():
            self.rows = {row.run: row for row in read_manifest(folder)}
        else:
            self.rows = {}

    def add(self, row: Row) -> None:
        with self._lock:
            self.rows[row.run] = row
            text = io.StringIO()
            writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(one) for one in self.rows.values())
            write_bytes(self._path, text.getvalue().encode())


def read_manifest(folder: Path) -> list[Row]:
    """The rows of a folder's manifest. Raises DataError: there is none, or it is damaged."""
    path = folder / NAME
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != _COLUMNS:
                raise DataError(
                    f"{path}: has other columns than {', '.join(_COLUMNS)}; delete it and run"
                    " 'deepvm lab run' again, which keeps the runs that are there and pass"
                )
            return [_row(columns) for columns in reader]
    except OSError as error:
        raise DataError(
            f"{path}: {error.strerror}; give the folder of 'deepvm lab run --out'"
        ) from None
    except (ValueError, TypeError, csv.Error) as error:
        raise DataError(f"{path}: damaged: {error}") from None


@dataclass(frozen=True)
class RequestedRuns:
    """What was requested in a folder; ``runs``: of its matrices; ``wanted``: by ``--only``."""

    runs: tuple[str, ...] = ()
    wanted: tuple[str, ...] = ()

    def and_also(self, runs: Iterable[str], wanted: Iterable[str]) -> RequestedRuns:
        return RequestedRuns(
            tuple(dict.fromkeys((*self.runs, *runs))), tuple(dict.fromkeys((*self.wanted, *wanted)))
        )


def write_planned(folder: Path, planned: RequestedRuns) -> None:
    """Before the first run: what is never started must not look as if it had not been requested.

    Raises OSError.
    """
    write_document(folder / PLANNED, asdict(planned))


def read_planned(folder: Path) -> RequestedRuns:
    """What was asked for; nothing if there is no such file. Raises DataError: it is damaged."""
    if not (folder / PLANNED).exists():
        return RequestedRuns()
    document = read_document(folder / PLANNED)
    try:
        return RequestedRuns(tuple(map(str, document["runs"])), tuple(map(str, document["wanted"])))
    except (KeyError, TypeError):
        raise DataError(f"{folder / PLANNED}: damaged: it has no lists of runs") from None


def _row(columns: Mapping[str, str]) -> Row:
    numbers = {"seed": int, "wall_s": float, "goodput": float, "restarts": int}
    return Row(**{name: numbers.get(name, str)(text) for name, text in columns.items()})
