"""What launchers of runs share: plans, attempts, logs that grow, delays, and what they record."""

import contextlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.lab.faults.fault import FaultInjection, RankProcesses
from deepvm.lab.records import CONFIG, SUPERVISOR, read_document, write_document
from deepvm.lab.registry import find_fault, find_strategy
from deepvm.records import asdict, dataclass


class LineTail:
    """Each whole line once, however the writes that made it were cut."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._path = path
        self._rest = b""
        if at_end and path.exists():
            self._offset = path.stat().st_size
        else:
            self._offset = 0

    def new(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines


class StoppedError(Exception):
    """A run was given up because all of them are."""


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    folder: Path
    config: JsonObject  # as in its ``config.json``
    hang_s: float = 15.0  # without a step for so long, an attempt hangs

    @property
    def in_memory(self) -> bool:
        strategy = self.config["strategy"]
        return strategy is not None and find_strategy(strategy).in_memory

    @property
    def strikes(self) -> list[FaultInjection]:
        return [FaultInjection.of(one) for one in self.config["strikes"]]


@dataclass(frozen=True)
class Order:
    """One attempt of one run, for all of its ranks."""

    folder: Path  # of the run
    attempt: int  # from 0
    struck: Collection[str] = ()  # failures that have happened
    until: int = 0  # step at which it ends by plan, as where the world changes; 0: the last
    tiers: Sequence[str] = ()  # memory nodes

    @cached_property
    def config(self) -> JsonDict:
        return read_document(self.folder / CONFIG)

    @property
    def strikes(self) -> list[FaultInjection]:
        planned = [FaultInjection.of(one) for one in self.config["strikes"]]
        return [one for one in planned if one.key not in self.struck]

    def write(self) -> Path:
        file = self.folder / f"order-{self.attempt}.json"
        write_document(file, {**asdict(self), "folder": str(self.folder)})
        return file

    @classmethod
    def read(cls, path: Path) -> "Order":
        return cls(**{**read_document(path), "folder": path.parent})


def from_outside(strike: FaultInjection) -> bool:
    """Whether the supervisor strikes, not the rank that is hit."""
    return find_fault(strike.fault).moment_of(strike) is None


class Attempt(RankProcesses, ABC):
    """Processes whose end can be seen."""

    @abstractmethod
    def exits(self) -> Sequence[int | None]:
        """Exit codes of the ranks; < 0: minus a signal; None: running or unknown."""


class Launcher(ABC):
    """Launches runs on this machine."""

    @abstractmethod
    def run(self, plan: Plan, stopping: threading.Event | None = None) -> bool:
        """Run a plan to its end; whether it got there. Leaves no process. Raises StoppedError."""

    def close(self) -> None:
        return


class StepLog:
    """The last step in a growing log."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._tail = LineTail(path, at_end=at_end)
        self.attempt = -1
        self.done = 0

    def look(self) -> bool:
        lines = self._tail.new()
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.attempt = row["attempt"]
                self.done = row["global_step"] + 1
        return bool(lines)


class Later:
    """Delayed actions: the supervisor keeps watching and answers Ctrl-C."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append((time.monotonic() + seconds, action))

    def wait(self, seconds: float) -> None:
        # Raises StoppedError: the run is given up
        if self._stopping.wait(seconds):
            raise StoppedError
        now = time.monotonic()
        due = [action for at, action in self._actions if at <= now]
        self._actions = [one for one in self._actions if one[0] > now]
        for action in due:
            action()


class Recoveries:
    """Those of one run, whose attempts come in order."""

    def __init__(self) -> None:
        # When the first failure was seen since training was last restored
        self._since: float | None = None
        self._reached = 0

    def parts(
        self, attempt: JsonObject, events: Sequence[JsonObject], steps: Sequence[JsonObject]
    ) -> dict[str, float | None]:
        """Seconds of recovery before an attempt, and until its end was seen; None: unknown."""
        # An attempt that ends before all of its ranks have restored is part of the next restart
        parts: dict[str, float | None] = {}
        restored = [row for row in events if row["event"] == "restored"]
        if restored and {row["rank"] for row in restored} == set(range(attempt["world"])):
            if self._since is not None:
                # until restoring starts: ranks are there, have met, and have data and model
                begin = max(row["time"] - row["seconds"] for row in restored)
                back = max(row["time"] for row in restored)
                again = [row["time"] for row in steps if row["global_step"] < self._reached]
                parts["restart_s"] = begin - self._since
                parts["restore_s"] = max(row["seconds"] for row in restored)
                parts["replay_s"] = max(again, default=back) - back
            self._since = None
        if attempt["state"] != "completed" and self._since is None:
            self._since = attempt["detected"]
            struck = attempt["struck"]
            seen = [self._since - struck[key] for key in attempt["causes"] if key in struck]
            parts["detect_s"] = min(seen, default=None)
        self._reached = max(self._reached, attempt["reached_step"])
        return parts


def event_facts(rows: Sequence[JsonObject]) -> JsonDict:
    """What the ranks of an attempt have noted, for its record."""
    restored = [row["step"] for row in rows if row["event"] == "restored"]
    return {
        "resumed_step": restored[0] if restored else None,
        "damaged": sum(row.get("checkpoints", 0) for row in rows if row["event"] == "damaged"),
        "disk_errors": sum(row["event"] == "disk" for row in rows),
    }


def write_supervisor(
    folder: Path, state: str, wall_s: float, attempts: Sequence[JsonObject], **more: Any
) -> None:
    """Write ``supervisor.json``."""
    failed = [one for one in attempts if one["state"] != "completed"]
    document = {
        "state": state,
        "restarts": len(failed) - (state == "failed" and bool(failed)),
        "wall_s": wall_s,
        "hangs": sum(one["state"] == "hung" for one in failed),
        "attempts": attempts,
        **more,
    }
    write_document(folder / SUPERVISOR, document)
