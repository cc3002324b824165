"""Trainers' output: a file per machine, each line with the time the controller received it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deepvm.core.units import utc_text
from deepvm.errors import DataError

FOLDER = "logs"
_STAMP = len("2026-11-26T12:00:00.000Z")


@dataclass(frozen=True)
class LogLine:
    """A line; ``stamp``: ISO 8601, UTC, empty where an older deepvm wrote none."""

    machine: str
    stamp: str
    text: str


def add_line(folder: Path, machine: str, text: str, now_s: float) -> None:
    """Write a line down. Raises OSError."""
    place = folder / FOLDER
    place.mkdir(exist_ok=True)
    with (place / f"{machine}.log").open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{utc_text(now_s, 'milliseconds')} {text}\n")


class LogReader:
    """Reads what is new in the logs of a job, all machines in the order of time."""

    def __init__(self, folder: Path, machine: str = "") -> None:
        """``folder``: of the job. ``machine``: that one alone.

        Raises DataError: the folder is gone.
        """
        if not folder.is_dir():
            raise DataError(
                f"{folder}: the job's folder is not here, and its logs with it; look where it was"
                " started"
            )
        self._folder = folder / FOLDER
        self._machine = machine
        self._places: dict[Path, int] = {}

    def machines(self) -> list[str]:
        return sorted(
            (file.stem for file in self._folder.glob("*.log")), key=lambda name: (len(name), name)
        )

    def more(self, *, last: bool = False) -> Iterator[LogLine]:
        """The lines since the last call; ``last``: include one without an end of line."""
        files = [
            self._folder / f"{name}.log" for name in self.machines() if self._machine in ("", name)
        ]
        found = [self._lines(file, last) for file in files]
        return iter(heapq.merge(*found, key=lambda line: line.stamp))

    def _lines(self, file: Path, last: bool) -> list[LogLine]:
        place = self._places.get(file, 0)
        try:
            with file.open("rb") as stream:
                stream.seek(place)
                data = stream.read()
        except FileNotFoundError:
            return []
        if not last:  # a line whose end is not written yet is for the next time
            data = data[: data.rfind(b"\n") + 1]
        self._places[file] = place + len(data)
        return [
            _line(file.stem, text)
            for text in data.decode("utf-8", "replace").removesuffix("\n").split("\n")
            if data
        ]


def _line(machine: str, text: str) -> LogLine:
    stamp = text[:_STAMP]
    rest = text[_STAMP + 1 :]
    if stamp[4:5] + stamp[10:11] + stamp[-1:] == "-TZ" and len(stamp) == _STAMP:
        return LogLine(machine, stamp, rest)
    return LogLine(machine, "", text)
