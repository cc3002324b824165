"""Log refused peers at a limited rate: the first one, then a count with the next, or at the end."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOG = logging.getLogger(__name__)


@dataclass
class _Window:
    """How many were not logged since a monotonic time, and the last of them."""

    since: float = -math.inf
    count: int = 0
    last: str = ""


class Refusals:
    """A rate-limited log, for all threads of a node."""

    def __init__(self, window_s: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with none; ``window_s``: seconds between two lines of a kind."""
        self._window_s = window_s
        self._clock = clock
        self._kinds: dict[str, _Window] = {}
        self._lock = threading.Lock()

    def tell(self, kind: str, peer: str, reason: str) -> bool:
        """Log that a peer was refused, or count it; returns whether it was logged."""
        with self._lock:
            known = self._kinds.setdefault(kind, _Window())
            if self._clock() < known.since + self._window_s:
                known.count = known.count + 1
                known.last = f"{peer}: {reason}"
                return False
            self._sum_up(known)
            known.since = self._clock()
        _LOG.warning("%s: refused: %s", peer, reason)
        return True

    def sum_up(self) -> None:
        """Log what was counted."""
        with self._lock:
            for known in self._kinds.values():
                self._sum_up(known)

    def _sum_up(self, known: _Window) -> None:
        if known.count:
            passed_s = self._clock() - known.since
            _LOG.warning(
                "%d more were refused in %.0f s, the last of them %s",
                known.count,
                passed_s,
                known.last,
            )
            known.since = self._clock()
            known.count = 0
