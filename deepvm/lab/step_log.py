"""What a rank's log of steps says while it grows, and how long steps took that were done again."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from deepvm.io.line_tail import LineTail


class StepLog:
    """The last step in a log that grows: ``done`` steps, in an ``attempt``; 0 and -1 before there is a new line."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        """``at_end``: lines that are there already do not count."""
        self._tail = LineTail(path, at_end=at_end)
        self.attempt, self.done = -1, 0

    def look(self) -> bool:
        """Whether there is something new."""
        lines = self._tail.new()
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                self.attempt, self.done = row["attempt"], row["global_step"] + 1
        return bool(lines)


def replay_s(rows: Iterable[Mapping[str, Any]], restored: Sequence[Mapping[str, Any]], reached: int) -> float | None:
    """How long the steps took that an earlier attempt had done already; None if nothing was restored.

    ``rows``: steps of an attempt on one rank. ``restored``: when its ranks had restored. ``reached``: steps that were
    done before.
    """
    since = max((row["time"] for row in restored), default=None)
    if since is None:
        return None
    return max((row["time"] - since for row in rows if row["global_step"] < reached), default=0.0)
