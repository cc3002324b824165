"""The files that a run leaves behind, and how they are written and read: whole lines of JSON, whatever is killed when.

A line is one write to a file that is open for appending, so it survives the process; only a machine that fails can tear
the last one, and readers accept that and nothing else.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepvm.errors import DataError

CONFIG, SUPERVISOR, FINAL, AUDIT = "config.json", "supervisor.json", "final.sha256", "audit.json"
CHECKPOINTS, ENVIRONMENT = "checkpoint_rank0.jsonl", "environment.json"
RUNS = "runs"
"""The folder of the runs of a matrix."""
ORCHESTRATED = "deepvm-run"
"""The launcher whose runs are jobs of ``deepvm run``."""
EVENTS = "orchestrator.jsonl"
"""The events of a run that was a job, of which its supervisor's record was made."""


def steps_of(rank: int) -> str:
    """The log of a rank's steps."""
    return f"rank_{rank}.jsonl"


def events_of(rank: int) -> str:
    """The log of what else happened to a rank."""
    return f"worker_{rank}.jsonl"


class Lines:
    """A file of JSON lines that is being written."""

    def __init__(self, path: Path) -> None:
        """Open it, behind what is there."""
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a line."""
        os.write(self._descriptor, json.dumps(row).encode() + b"\n")

    def close(self) -> None:
        """Close it."""
        os.close(self._descriptor)


class Events:
    """What happens to a rank, with the time of each."""

    def __init__(self, folder: Path, rank: int, attempt: int) -> None:
        """Of an attempt."""
        self._lines, self._facts = Lines(folder / events_of(rank)), {"attempt": attempt, "rank": rank}

    def note(self, event: str, **facts: Any) -> None:
        """Append an event."""
        self._lines.add({"event": event, "time": time.time(), **self._facts, **facts})


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """All whole lines of a file, none if it is not there. Raises DataError: one is damaged that is not the last."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return
    lines = text.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
        except ValueError as error:
            if number == len(lines):  # no line break behind it: torn
                return
            raise DataError(f"{path}, line {number}: damaged: {error}") from None
        yield row


def read_document(path: Path) -> dict[str, Any]:
    """A JSON object. Raises DataError: it is not there, or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"{path}: damaged: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"{path}: damaged: no object")
    return found
