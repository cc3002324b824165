"""How a command that has made something ends when it is told to."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


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
