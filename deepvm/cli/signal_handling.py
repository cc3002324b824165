"""How a command that has made something ends when it is told to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deepvm.cli.output import say


@contextmanager
def cleaning_up() -> Iterator[None]:
    """SIGTERM ends what is inside as an exception does, so that files and processes do not stay behind."""

    def on_signal(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def growing(place: Path | None) -> Iterator[None]:
    """Whoever interrupts what is inside is told that nothing in the file or folder is lost."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if place is not None and place.exists():
            say(f"{place} keeps what was measured; the same command goes on with the rest")
        raise
