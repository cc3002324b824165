"""What a supervisor watches: logs of steps that grow, and actions that are due later."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from deepvm.io.line_tail import LineTail
from deepvm.lab.running.plan import StoppedError


class StepLog:
    """The last step in a growing log: (``done``, ``attempt``); 0 and -1 before a new line."""

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
    """Delayed actions, without a sleep: the supervisor keeps watching and answers Ctrl-C."""

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append((time.monotonic() + seconds, action))

    def wait(self, seconds: float) -> None:
        """Wait, then do what is due. Raises StoppedError: the run is given up."""
        if self._stopping.wait(seconds):
            raise StoppedError
        now = time.monotonic()
        due = [action for at, action in self._actions if at <= now]
        self._actions = [one for one in self._actions if one[0] > now]
        for action in due:
            action()
