"""Wake every handler that waits for the next change of a job's world."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class ChangeSignal:
    """For the coroutines of one event loop.

    Not an ``asyncio.Condition``: if a waiter in ``wait_for`` is cancelled just as its time is up,
    the condition's lock may stay taken for good (before Python 3.12), and no machine gets an answer
    any more.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, limit_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._next.wait(), limit_s)
