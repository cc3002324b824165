"""The files that a run leaves behind: whole lines of JSON, even if a process is killed."""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.documents.declared import definitions
from deepvm.documents.models import model_of
from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes
from deepvm.records import dataclass

CONFIG = "config.json"
SUPERVISOR = "supervisor.json"
FINAL = "final.sha256"
AUDIT = "audit.json"
CHECKPOINTS = "checkpoint_rank0.jsonl"
ENVIRONMENT = "environment.json"
NODE_LOG = "memory-node.log"  # What memory nodes have printed, one after the other
RUNS = "runs"  # The folder of the runs of a matrix
ORCHESTRATED = "deepvm-run"  # The launcher whose runs are jobs of ``deepvm run``
# The events of a run that was a job, of which its supervisor's record was made
EVENTS = "orchestrator.jsonl"

_SAME = ("dataset", "dataset_size", "model", "seed", "global_batch", "accumulate", "steps")


class MissingFileError(DataError):
    """A file of a run is not there."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        super().__init__(f"{path}: No such file")


def steps_of(rank: int) -> str:
    """The log of a rank's steps."""
    return f"rank_{rank}.jsonl"


def events_of(rank: int) -> str:
    """The log of a rank's events."""
    return f"worker_{rank}.jsonl"


class Lines:
    """A file of JSON lines that is being written."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )

    def add(self, row: JsonObject) -> None:
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


class Events:
    """What happens to a rank, with the time of each."""

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        self._lines = Lines(folder / events_of(rank))
        self._facts = {"attempt": attempt, "rank": rank}

    def note(self, event: str, **facts: Any) -> None:
        self._lines.add({"event": event, "time": time.time(), **self._facts, **facts})


def write_document(path: Path, document: JsonObject) -> None:
    """Write a JSON object whole, or not at all. Raises DataError."""
    write_bytes(path, json.dumps(document, indent=1).encode())


def write_lines(path: Path, rows: Iterable[JsonObject]) -> None:
    """Replace all lines of a file. Raises DataError."""
    write_bytes(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def read_lines(path: Path) -> Iterator[JsonDict]:
    """All whole lines of a file, none if it is not there. Raises DataError: one is damaged."""
    try:
        text = _read(path)
    except MissingFileError:
        return
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
        except (ValueError, RecursionError) as error:
            if number == len(lines):  # no line break after it: torn
                return
            raise DataError(f"{path}, line {number}: damaged: {error}") from None
        yield row


def rows_in(folder: Path, names: Iterable[str], attempt: int | None = None) -> list[JsonDict]:
    """The lines of some logs of a run, of one attempt or of all. Raises DataError."""
    rows = [row for name in names for row in read_lines(folder / name)]
    return [row for row in rows if attempt is None or row["attempt"] == attempt]


def read_document(path: Path) -> JsonDict:
    """A JSON object. Raises DataError: it is not there, or damaged."""
    data = _read(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: damaged: {error}") from None
    if not isinstance(document, dict):
        raise DataError(f"{path}: damaged: no object")
    return document


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingFileError(path) from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


def check_config(config: JsonObject, where: object) -> None:
    """Of a run. Raises DataError."""
    check("lab.LabRun", config, where)
    batch = config["global_batch"]
    size = config["dataset_size"]
    worlds = config["worlds"]
    if batch > size:
        raise DataError(f"{where}: damaged: global_batch is {batch}, of {size} samples")
    steps = [step for step, _ in worlds]
    if steps[0] or steps != sorted(set(steps)) or any(not w or batch % w for _, w in worlds):
        raise DataError(
            f"{where}: damaged: worlds is {worlds}; expected steps from 0 that increase, with"
            f" numbers of ranks that divide {batch} samples"
        )


def check_lines(kind: str, rows: Iterable[JsonObject], path: object) -> None:
    """Of a log: each line, what its event needs, and both forms of a loss. Raises DataError."""
    for number, row in enumerate(rows, 1):
        where = f"{path}, line {number}"
        check(kind, row, where)
        if kind == "logs.Event" and "extends" in definitions("logs").get(row["event"], ()):
            check(f"logs.{row['event']}", row, where)
        if kind == "logs.Step" and float(row["loss"]).hex() != row["loss_hex"]:
            raise DataError(f"{where}: damaged: loss is {row['loss']}, not {row['loss_hex']}")


def check(kind: str, document: JsonObject, where: object) -> None:
    """A document against its declaration. Raises DataError, with its first wrong key."""
    try:
        model_of(kind).model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        steps = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"])
        key = "".join(steps).lstrip(".")
        problem = f"{key} is {repr(first['input'])[:60]} ({first['msg']})"
        if first["type"] == "missing":
            problem = f"it has no {key}"
        raise DataError(f"{where}: damaged: {problem}") from None


@dataclass(frozen=True)
class Records:
    """What a run has left in its folder; it is checked, damaged records raise DataError."""

    folder: Path
    config: JsonObject

    @classmethod
    def read(cls, folder: Path) -> "Records":
        config = read_document(folder / CONFIG)
        check_config(config, folder / CONFIG)
        return cls(folder, config)

    @cached_property
    def references(self) -> set[str]:
        finals = set()
        # Large matrices need not read all
        prefix = f"{self.config['dataset']['name']}-{self.config['model']['name']}-"
        if not self.folder.name.startswith(prefix):
            prefix = ""
        for path in self.folder.parent.glob(f"{prefix}*/{CONFIG}"):
            with contextlib.suppress(DataError):  # it is judged by itself
                other = Records.read(path.parent)
                disturbed = other.config["strikes"] or other.config["disk"]
                keys = (*_SAME, "virtual_shards")
                same = [self.config[key] == other.config[key] for key in keys]
                if not self.config["virtual_shards"]:
                    same.append(self.config["worlds"] == other.config["worlds"])
                if all(same) and not disturbed:
                    finals.add(other.final)
        return finals

    @cached_property
    def steps(self) -> dict[int, list[JsonDict]]:
        return self._logs("rank", "logs.Step")

    @cached_property
    def owned(self) -> dict[int, range]:
        """By attempt, the steps that count: from its start to where a later one resumed."""
        owned = {}
        below = sys.maxsize
        for one in reversed(self.attempts):
            if one["resumed_step"] is not None:
                owned[one["attempt"]] = range(one["resumed_step"], below)
                below = min(below, one["resumed_step"])
        return owned

    @cached_property
    def owners(self) -> dict[tuple[int, int], JsonDict]:
        owners: dict[tuple[int, int], JsonDict] = {}
        for rank, rows in self.steps.items():
            for row in rows:
                if row["global_step"] in self.owned.get(row["attempt"], ()):
                    owners[row["global_step"], rank] = row
        return owners

    @property
    def attempts(self) -> list[JsonDict]:
        attempts: list[JsonDict] = self.supervisor["attempts"]
        return attempts

    @property
    def is_job(self) -> bool:
        return bool(self.config["launcher"] == ORCHESTRATED)

    @property
    def faults(self) -> dict[str, str]:
        return {one["key"]: one["fault"] for one in self.config["strikes"]}

    def steps_in(self, attempt: int, rank: int | None = None) -> list[JsonDict]:
        logs = self.steps.values() if rank is None else [self.steps.get(rank, [])]
        return [row for rows in logs for row in rows if row["attempt"] == attempt]

    def noted(self, *events: str) -> list[JsonDict]:
        rows = (row for rows in self.all_events.values() for row in rows)
        return [row for row in rows if row["event"] in events]

    @cached_property
    def supervisor(self) -> JsonDict:
        document = read_document(self.folder / SUPERVISOR)
        check("lab.LabSupervisor", document, self.folder / SUPERVISOR)
        return document

    @cached_property
    def checkpoints(self) -> list[JsonDict]:
        rows = list(read_lines(self.folder / CHECKPOINTS))
        check_lines("logs.Checkpoint", rows, self.folder / CHECKPOINTS)
        return rows

    @cached_property
    def all_events(self) -> dict[int, list[JsonDict]]:
        return self._logs("worker", "logs.Event")

    def events(self, rank: int) -> list[JsonDict]:
        return self.all_events.get(rank, [])

    @property
    def final(self) -> str:
        """Hex digest of the final parameters. Raises DataError."""
        data = _read(self.folder / FINAL)
        try:
            return next(iter(data.decode("ascii").split()), "")
        except ValueError as error:
            raise DataError(f"{self.folder / FINAL}: damaged: {error}") from None

    def _logs(self, name: str, kind: str) -> dict[int, list[JsonDict]]:
        """The lines of logs, by rank; other files that people put next to them are ignored."""
        logs: dict[int, list[JsonDict]] = {}
        for path in self.folder.iterdir():
            if match := re.fullmatch(rf"{name}_(0|[1-9][0-9]{{0,5}})\.jsonl", path.name):
                logs[int(match[1])] = rows = list(read_lines(path))
                check_lines(kind, rows, path)
        return dict(sorted(logs.items()))
