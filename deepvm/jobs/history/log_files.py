"""Trainers' output: a file per machine, each line with the time the controller received it."""

import heapq
import re
from collections.abc import Iterator
from pathlib import Path

from deepvm.core.units import utc_text
from deepvm.errors import DataError
from deepvm.records import dataclass

FOLDER = "logs"
_STAMP = len("2026-11-26T12:00:00.000Z")


_RANK = re.compile(r"([0-9]{1,5}) \| ")


@dataclass(frozen=True)
class LogLine:
    """A line; ``stamp``: ISO 8601, UTC; ``rank``: on its machine. Old logs have neither."""

    machine: str
    stamp: str
    text: str
    rank: str = ""

    @property
    def shown(self) -> str:
        """With the trainer that has printed it, such as ``m1/0 | epoch 3``."""
        source = f"{self.machine}/{self.rank}" if self.rank else self.machine
        return f"{source} | {self.text}"


def add_line(folder: Path, machine: str, text: str, now_s: float, rank: int | None = None) -> None:
    """Write a line down. Raises OSError."""
    if rank is not None:
        text = f"{rank} | {text}"
    path = folder / FOLDER / f"{machine}.log"
    path.parent.mkdir(exist_ok=True)
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(f"{utc_text(now_s, 'milliseconds')} {text}\n")


class LogReader:
    """Reads what is new in the logs of a job, all machines in the order of time."""

    def __init__(self, folder: Path, machine: str = "") -> None:
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
        names = [name for name in self.machines() if self._machine in ("", name)]
        found = [self._lines(self._folder / f"{name}.log", last) for name in names]
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
    if stamp[4:5] + stamp[10:11] + stamp[-1:] == "-TZ" and len(stamp) == _STAMP:
        rest = text[_STAMP + 1 :]
        if by := _RANK.match(rest):
            return LogLine(machine, stamp, rest[by.end() :], by[1])
        return LogLine(machine, stamp, rest)
    return LogLine(machine, "", text)
