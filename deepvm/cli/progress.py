"""Progress of long work on stderr: a bar on a terminal, else a line now and then; nothing for short work."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from deepvm.cli.output import say

_QUICK_S, _LINE_S = 0.7, 15.0


class Progress:
    """A context that counts up to a total and also reports when nothing advances."""

    def __init__(self, total: int, unit: str) -> None:
        """Args: how many of what, such as ``runs``."""
        self._total, self._unit, self._done = total, unit, 0
        self._began = time.monotonic()
        self._over = threading.Event()
        self._speaker = threading.Thread(target=self._speak, name="progress", daemon=True)
        self._bar: Any = None

    def __enter__(self) -> Progress:
        """Start reporting."""
        self._speaker.start()
        return self

    def advance(self, count: int) -> None:
        """Count so many more as done."""
        self._done += count

    def _speak(self) -> None:
        terminal = sys.stderr.isatty()
        while not self._over.wait((0.1 if self._bar else _QUICK_S) if terminal else _LINE_S):
            done = self._done
            if self._bar is not None:
                self._bar.update(0, completed=done)
            elif terminal:
                self._start()
            elif done:
                left = (time.monotonic() - self._began) * (self._total / done - 1)
                say(f"{done} of {self._total} {self._unit}, about {left:.0f} s left")
            else:
                say(f"none of {self._total} {self._unit} after {time.monotonic() - self._began:.0f} s")

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(stderr=True), transient=True)
        self._bar.add_task(self._unit, total=self._total, completed=self._done)
        self._bar.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        self._over.set()
        self._speaker.join()
        if self._bar is not None:
            self._bar.stop()
