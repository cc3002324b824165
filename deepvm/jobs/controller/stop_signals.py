"""SIGINT, SIGTERM and SIGHUP of a controlling process: it releases machines before it ends."""

from __future__ import annotations

import signal
from typing import Any


class StopSignals:
    """In its context these signals end nothing; ``numbers`` has those received, in their order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        """Count them, but for those that are ignored, as after ``nohup`` or ``&`` in a script."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(
                    number, lambda number, _: self.numbers.append(number)
                )
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def reason(self) -> str:
        first = self.numbers[0]
        return (
            "interrupted"
            if first == signal.SIGINT
            else f"interrupted by {signal.Signals(first).name}"
        )

    @property
    def exit_code(self) -> int:
        return 128 + self.numbers[0]
