"""How far something long is, on stderr: a bar on a terminal, else a line now and then; nothing for what is quick."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from deepvm.cli.options import say

_QUICK_S, _LINE_S = 0.7, 15.0


class Progress:
    """Counts up to a total; a context."""

    def __init__(self, total: int, unit: str) -> None:
        """Of how many, and of what: ``runs``."""
        self._total, self._unit, self._done = total, unit, 0
        self._began = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        """Begin."""
        return self

    def advance(self, count: int) -> None:
        """So many more are done."""
        self._done += count
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(0, completed=self._done)
        elif now - self._began < _QUICK_S:
            return
        elif sys.stderr.isatty():
            self._start()
        elif now - self._said >= _LINE_S:
            self._said = now
            left = (now - self._began) * (self._total / self._done - 1)
            say(f"{self._done} of {self._total} {self._unit}, about {left:.0f} s left")

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._bar.add_task(self._unit, total=self._total, completed=self._done)
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
