"""Wake every handler that waits for the next change of a job's world."""

from __future__ import annotations

import asyncio
import contextlib


class ChangeSignal:
    """Of one event loop.

    There is no lock: one whose waiter is cancelled in the moment in which its time is up stays taken for good
    (``wait_for`` around ``Condition.wait``, Python 3.10 and 3.11), and then no machine gets an answer any more.
    """

    def __init__(self) -> None:
        """Nobody waits yet."""
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, limit_s: float) -> None:
        """Return at the next change, or when the time is up."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._next.wait(), limit_s)
