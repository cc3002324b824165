"""SIGINT, SIGTERM and SIGHUP of a controlling process: it releases machines before it ends."""

from __future__ import annotations

import signal

from deepvm.jobs.agent.process_group import caught


class StopSignals:
    """In its context these signals end nothing; ``numbers`` has those received, in their order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._caught = caught(numbers, self.numbers.append)

    def __enter__(self) -> StopSignals:
        self._caught.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._caught.__exit__(None, None, None)

    @property
    def reason(self) -> str:
        first = self.numbers[0]
        if first == signal.SIGINT:
            return "interrupted"
        return f"interrupted by {signal.Signals(first).name}"

    @property
    def exit_code(self) -> int:
        return 128 + self.numbers[0]
