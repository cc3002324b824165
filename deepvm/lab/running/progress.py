"""What a supervisor watches: logs of steps that grow, and actions that are due later."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from deepvm.io.line_tail import LineTail


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

    def __init__(self) -> None:
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append((time.monotonic() + seconds, action))

    def do_due(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._actions if at <= now]
        self._actions = [one for one in self._actions if one[0] > now]
        for action in due:
            action()
