"""What a rank's log of steps says while it grows."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from deepvm.io.line_tail import LineTail


class StepLog:
    """The last step in a growing log: (``done``, ``attempt``); 0 and -1 before a new line."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        self._tail = LineTail(path, at_end=at_end)
        self.attempt, self.done = -1, 0

    def look(self) -> bool:
        lines = self._tail.new()
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.attempt, self.done = row["attempt"], row["global_step"] + 1
        return bool(lines)
