"""When to save: every so many steps, or every so many seconds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from deepvm.errors import RequestError

_SECONDS = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|min|h)", re.ASCII)
_UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Schedule(Protocol):
    """Decides; never acts."""

    def due(self, version: int, now_s: float) -> bool:
        """Whether the state after this step is to be saved.

        Args:
            version: optimizer steps done.
            now_s: monotonic seconds.
        """


@dataclass(frozen=True)
class Never:
    """Only when ``save()`` is called."""

    def due(self, version: int, now_s: float) -> bool:
        """See :class:`Schedule`."""
        return False


@dataclass(frozen=True)
class EverySteps:
    """Whenever the number of steps is a multiple."""

    steps: int

    def due(self, version: int, now_s: float) -> bool:
        """See :class:`Schedule`."""
        return version % self.steps == 0


@dataclass
class EverySeconds:
    """As soon as so much time has passed since the last one."""

    seconds: float
    last_s: float | None = None

    def due(self, version: int, now_s: float) -> bool:
        """See :class:`Schedule`."""
        if self.last_s is None:
            self.last_s = now_s
        if now_s - self.last_s < self.seconds:
            return False
        self.last_s = now_s
        return True


def parse_every(every: int | str | None) -> Schedule:
    """Read ``every``: None, steps (100), or time ("30s", "10min", "1h").

    Raises:
        RequestError: anything else.
    """
    allowed = 'a whole number of steps from 1, or a time such as "30s", "10min" or "1h"'
    if every is None:
        return Never()
    if isinstance(every, bool) or not isinstance(every, (int, str)):
        raise RequestError("every", every, allowed)
    if isinstance(every, int) or every.isascii() and every.isdigit():
        if int(every) < 1:
            raise RequestError("every", every, allowed)
        return EverySteps(int(every))
    match = _SECONDS.fullmatch(every.strip())
    if match is None or float(match[1]) <= 0:
        raise RequestError("every", every, allowed)
    return EverySeconds(float(match[1]) * _UNITS[match[2]])
