"""What a command does when it is interrupted or terminated."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepvm.cli.output import say


@contextmanager
def cleaning_up() -> Iterator[None]:
    """Turn SIGTERM into an exception, so that temporary files and processes are cleaned up."""

    def on_signal(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def growing(place: Path | None) -> Iterator[None]:
    """On an interrupt, say that the results so far are kept in this file or folder."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if place is not None and place.exists():
            say(f"{place} keeps what was measured; the same command goes on with the rest")
        raise
