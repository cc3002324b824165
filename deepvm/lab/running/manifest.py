"""The list of a matrix's runs, what became of them, and on what they were made (ECRL, Table 2)."""

import csv
import functools
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import threading
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path

import deepvm
from deepvm.checkpoint.files.durable_write import medium
from deepvm.core.json_types import JsonObject
from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.host_info import cores, machine_memory, processor
from deepvm.lab.records import read_document, write_document
from deepvm.records import asdict, dataclass, fields

NAME = "manifest.csv"
PLANNED = "planned.json"


class RunState(Enum):
    """What became of a run."""

    COMPLETED = "completed"
    SKIPPED = "skipped_exists"  # It was there, and its artefacts were checked again
    FAILED = "failed"  # It has not got to its last step
    INVALID = "invalid"  # It has, and does not pass a gate


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


def key_of(config: JsonObject, environment: Mapping[str, str]) -> str:
    """16 hex digits that change with anything that may change a run."""
    facts = [config, dict(environment)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


class Manifest:
    """The list of a folder; any thread may add to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._lock = threading.Lock()
        self.rows: dict[str, Row] = {}
        if self._path.exists():
            self.rows = {row.run: row for row in read_manifest(folder)}

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
    """What was requested in a folder."""

    runs: tuple[str, ...] = ()  # of its matrices
    wanted: tuple[str, ...] = ()  # by ``--only``

    def and_also(self, runs: Iterable[str], wanted: Iterable[str]) -> "RequestedRuns":
        return RequestedRuns(
            tuple(dict.fromkeys((*self.runs, *runs))), tuple(dict.fromkeys((*self.wanted, *wanted)))
        )


def write_planned(folder: Path, planned: RequestedRuns) -> None:
    """Before the first run: what is never started must not look as if it had not been requested."""
    write_document(folder / PLANNED, asdict(planned))


def read_planned(folder: Path) -> RequestedRuns:
    """What was requested; nothing if there is no such file. Raises DataError: it is damaged."""
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


_PACKAGES = ("lab", "checkpoint", "profiling/workload")  # the last has the blocks of models


def environment(folder: Path) -> dict[str, str]:
    """Items and values, for people; ``folder``: where the runs are written."""
    memory = machine_memory()
    return {
        "OS": f"{_system()}, kernel {platform.release()}, {platform.machine()}",
        "CPU": processor(),
        "cores": f"{cores()} usable, {os.cpu_count()} logical CPUs",
        "memory": f"{memory / 2**30:.1f} GiB" if memory else "not known",
        "disk": f"{medium(folder).kind or 'unknown'} file system",
        "Python": platform.python_version(),
        "PyTorch": _version("torch"),
        "NumPy": _version("numpy"),
        "backend": "gloo, CPU, one thread a rank",
        "deepvm": f"{deepvm.__version__}, code {code_version()}",
    }


@functools.cache
def code_version() -> str:
    """12 hex digits of the code that trains and saves."""
    digest = hashlib.sha256()
    home = Path(deepvm.__file__).parent
    for package in _PACKAGES:
        for path in sorted((home / package).rglob("*.py")):
            digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _version(library: str) -> str:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
