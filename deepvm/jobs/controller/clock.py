"""The controller's clock: what it waits for must not end, nor last an hour longer, because somebody sets the time."""

from __future__ import annotations

import time


class SteadyClock:
    """Seconds since the epoch when it began, and what has passed since, also while the computer slept."""

    def __init__(self, least_s: float) -> None:
        """Begin now, or at ``least_s``: what the controller before has written down lies in the past."""
        self._zero_s = max(time.time(), least_s) - time.clock_gettime(time.CLOCK_BOOTTIME)

    def now_s(self) -> float:
        """Now."""
        return self._zero_s + time.clock_gettime(time.CLOCK_BOOTTIME)

    def of_wall_s(self, wall_s: float) -> float:
        """When it will be ``wall_s`` by the clock on the wall, as machines know it."""
        return wall_s + self.now_s() - time.time()
