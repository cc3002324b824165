"""Liveness of trainers and controller, counted on the machine, as heartbeats are too rare."""

import time
from collections.abc import Callable, Sequence

_FAILING_S = 1.0  # Connections may break, and controllers be replaced; nothing is done about that
_LATE_S = 3.0
_SETTLED_S = 6.0  # Longer than any agent waits to repeat its reports (:mod:`~.controller_client`)


class Progress:
    """Liveness of each generation in turn, as ``deepvm.jobs.decisions.hangs`` judges it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        self._started_s = self._since_s = self._clock()
        self._steps: Sequence[int] = ()
        self._waits_for: float | None = None
        self._printed_s: float | None = None
        self._first_s: float | None = None
        self.longest_s: float | None = None  # The longest time between two steps

    def look(self, steps: Sequence[int], waits_for: float | None = None) -> None:
        """Note the local ranks' steps; ``waits_for``: a checkpoint, after a step only the first."""
        now_s = self._clock()
        if steps != self._steps and any(steps):
            if self.longest_s is None:
                self._first_s = now_s - self._started_s
                self.longest_s = 0.0
            else:
                self.longest_s = max(self.longest_s, now_s - self._since_s)
            self._steps = steps
            self._since_s = now_s
            self._waits_for = None
        elif waits_for is not None and self._waits_for in (None, waits_for):
            self._since_s = now_s
            self._waits_for = waits_for

    def first_s(self) -> float | None:
        """Seconds from the beginning to the first step; each value is returned once."""
        first_s, self._first_s = self._first_s, None
        return first_s

    def printed(self) -> None:
        self._printed_s = self._clock()

    @property
    def idle_s(self) -> float:
        """Seconds since the newest sign of life that is no line."""
        return self._clock() - self._since_s

    @property
    def printed_s(self) -> float | None:
        if self._printed_s is None:
            return None
        return self._clock() - self._printed_s


class ControllerLiveness:
    """The silence of a controller, as seen by one agent; thread-safe."""

    def __init__(self, beat_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._beat_s = beat_s  # An answer takes so long at most, if there is nothing new
        self._clock = clock
        self._answered_s = self._back_s = clock()
        self._failed_s: float | None = None

    def answered(self) -> None:
        was = self.now
        self._answered_s = self._clock()
        self._failed_s = None
        if was:
            self._back_s = self._answered_s

    def failed(self) -> None:
        if self._failed_s is None:
            self._failed_s = self._clock()

    @property
    def lasts_s(self) -> float:
        return self._clock() - self._answered_s

    @property
    def now(self) -> bool:
        failed_s = self._failed_s
        failing = failed_s is not None and self._clock() - failed_s >= _FAILING_S
        return failing or self.lasts_s >= self._beat_s + _LATE_S

    @property
    def is_over(self) -> bool:
        return not self.now and self._clock() - self._back_s >= _SETTLED_S
