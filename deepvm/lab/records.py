"""The files that a run leaves behind: whole lines of JSON, even if a process is killed.

A line is one write to a file that is open for appending, so it survives the process; only a machine
that fails can tear the last one, and readers accept that and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.io.atomic_write import write_bytes
from deepvm.lab.record_checks import (
    check,
    check_config,
    check_events,
    check_lines,
    check_steps,
)

CONFIG = "config.json"
SUPERVISOR = "supervisor.json"
FINAL = "final.sha256"
AUDIT = "audit.json"
CHECKPOINTS = "checkpoint_rank0.jsonl"
ENVIRONMENT = "environment.json"
NODE_LOG = "memory-node.log"
"""What memory nodes have printed, one after the other."""
RUNS = "runs"
"""The folder of the runs of a matrix."""
ORCHESTRATED = "deepvm-run"
"""The launcher whose runs are jobs of ``deepvm run``."""
EVENTS = "orchestrator.jsonl"
"""The events of a run that was a job, of which its supervisor's record was made."""

_TAIL_BYTES = 20_000


class MissingFileError(DataError):
    """A file of a run is not there."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        super().__init__(f"{path}: No such file")


def steps_of(rank: int) -> str:
    """The log of a rank's steps."""
    return f"rank_{rank}.jsonl"


def events_of(rank: int) -> str:
    """The log of what else happened to a rank."""
    return f"worker_{rank}.jsonl"


class Lines:
    """A file of JSON lines that is being written."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
        )

    def add(self, row: Mapping[str, Any]) -> None:
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


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON object whole, or not at all. Raises DataError."""
    write_bytes(path, json.dumps(document, indent=1).encode())


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace all lines of a file. Raises DataError."""
    write_bytes(path, "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def last_lines(path: Path, most: int) -> list[str]:
    """The end of a text that processes have printed; nothing where it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        return file.read().decode(errors="replace").splitlines()[-most:]
    return []


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a file, none if it is not there.

    Raises DataError: one is damaged that is not the last.
    """
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


def rows_in(folder: Path, names: Iterable[str], attempt: int | None = None) -> list[dict[str, Any]]:
    """The lines of some logs of a run, of one attempt or of all. Raises DataError."""
    rows = [row for name in names for row in read_lines(folder / name)]
    return [row for row in rows if attempt is None or row["attempt"] == attempt]


def read_document(path: Path) -> dict[str, Any]:
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


@dataclass(frozen=True)
class Records:
    """What a run has left in its folder; it is checked, damaged records raise DataError."""

    folder: Path
    config: Mapping[str, Any]
    references: Sequence[str] = field(default_factory=tuple)
    """Final parameters of failure-free runs of the same training."""

    @classmethod
    def read(cls, folder: Path) -> Records:
        """Raises DataError: it is no folder of a run, or its configuration is damaged."""
        config = read_document(folder / CONFIG)
        check_config(config, folder / CONFIG)
        return cls(folder, config)

    @cached_property
    def steps(self) -> dict[int, list[dict[str, Any]]]:
        """Lines of each rank, in the order in which they were written. Raises DataError."""
        logs = {}
        for rank, path in self._ranks("rank"):
            logs[rank] = list(read_lines(path))
            check_steps(logs[rank], path)
        return logs

    @cached_property
    def owned(self) -> dict[int, range]:
        """By attempt, the steps that count: from its start to where a later one resumed.

        Steps above that were lost with its failure. Raises DataError.
        """
        owned: dict[int, range] = {}
        below = sys.maxsize
        for one in reversed(self.attempts):
            if one["resumed_step"] is not None:
                owned[one["attempt"]] = range(one["resumed_step"], below)
                below = min(below, one["resumed_step"])
        return owned

    @cached_property
    def owners(self) -> dict[tuple[int, int], dict[str, Any]]:
        """By (step, rank): the line of the attempt that owns the step. Raises DataError."""
        owners: dict[tuple[int, int], dict[str, Any]] = {}
        for rank, rows in self.steps.items():
            for row in rows:
                if row["global_step"] in self.owned.get(row["attempt"], ()):
                    owners[row["global_step"], rank] = row
        return owners

    @property
    def attempts(self) -> list[dict[str, Any]]:
        """As the supervisor recorded them. Raises DataError."""
        attempts: list[dict[str, Any]] = self.supervisor["attempts"]
        return attempts

    @property
    def is_job(self) -> bool:
        """Whether it was a job of ``deepvm run``."""
        return bool(self.config["launcher"] == ORCHESTRATED)

    @property
    def faults(self) -> dict[str, str]:
        """Planned failures, with their kinds."""
        return {one["key"]: one["fault"] for one in self.config["strikes"]}

    def steps_in(self, attempt: int, rank: int | None = None) -> list[dict[str, Any]]:
        """What a rank, or all of them, did in an attempt. Raises DataError."""
        logs = self.steps.values() if rank is None else [self.steps.get(rank, [])]
        return [row for rows in logs for row in rows if row["attempt"] == attempt]

    def noted(self, *events: str) -> list[dict[str, Any]]:
        """All events of these kinds, rank by rank. Raises DataError."""
        rows = (row for rows in self.all_events.values() for row in rows)
        return [row for row in rows if row["event"] in events]

    @cached_property
    def supervisor(self) -> dict[str, Any]:
        document = read_document(self.folder / SUPERVISOR)
        check("lab.LabSupervisor", document, self.folder / SUPERVISOR)
        return document

    @cached_property
    def checkpoints(self) -> list[dict[str, Any]]:
        rows = list(read_lines(self.folder / CHECKPOINTS))
        check_lines("logs.Checkpoint", rows, self.folder / CHECKPOINTS)
        return rows

    @cached_property
    def all_events(self) -> dict[int, list[dict[str, Any]]]:
        """What else happened, by rank. Raises DataError."""
        logs = {}
        for rank, path in self._ranks("worker"):
            logs[rank] = list(read_lines(path))
            check_events(logs[rank], path)
        return logs

    def events(self, rank: int) -> list[dict[str, Any]]:
        """What else happened to a rank. Raises DataError."""
        return self.all_events.get(rank, [])

    @property
    def final(self) -> str:
        """Hex digest of the final parameters. Raises DataError."""
        data = _read(self.folder / FINAL)
        try:
            return next(iter(data.decode("ascii").split()), "")
        except ValueError as error:
            raise DataError(f"{self.folder / FINAL}: damaged: {error}") from None

    def _ranks(self, kind: str) -> list[tuple[int, Path]]:
        """The logs of a kind, by rank; what else people put next to them is none."""
        named = (
            (re.fullmatch(rf"{kind}_(0|[1-9][0-9]{{0,5}})\.jsonl", p.name), p)
            for p in self.folder.iterdir()
        )
        return sorted((int(match[1]), path) for match, path in named if match is not None)
