"""Whether a controller answers. While it does not, agents have versions saved by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable

_FAILING_S = 1.0
"""Connections may break, and controllers be replaced; nothing is done about that."""
_LATE_S = 3.0
_SETTLED_S = 6.0
"""Longer than any agent waits before it repeats its reports (:mod:`deepvm.jobs.agent.controller_client`)."""


class Silence:
    """The silence of a controller, as one agent hears it; for any thread."""

    def __init__(self, beat_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``beat_s``: an answer to a heartbeat takes so long at most, if there is nothing new."""
        self._beat_s, self._clock = beat_s, clock
        self._answered_s = self._back_s = clock()
        self._failed_s: float | None = None

    def answered(self) -> None:
        """The controller has answered."""
        was = self.now
        self._answered_s, self._failed_s = self._clock(), None
        if was:
            self._back_s = self._answered_s

    def failed(self) -> None:
        """It did not."""
        if self._failed_s is None:
            self._failed_s = self._clock()

    @property
    def lasts_s(self) -> float:
        """Seconds since the last answer."""
        return self._clock() - self._answered_s

    @property
    def now(self) -> bool:
        """Whether the controller is silent."""
        failed_s = self._failed_s
        failing = failed_s is not None and self._clock() - failed_s >= _FAILING_S
        return failing or self.lasts_s >= self._beat_s + _LATE_S

    @property
    def is_over(self) -> bool:
        """Whether it has answered for so long that it has heard what agents had to say meanwhile."""
        return not self.now and self._clock() - self._back_s >= _SETTLED_S
