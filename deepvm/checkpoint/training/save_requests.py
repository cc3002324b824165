"""Wishes to have a version, of any thread and any rank; ranks tell each other about once a second."""

from __future__ import annotations

import time

from deepvm.checkpoint.training.ranks import Ranks

_WORD_S = 1.0
_RAREST = 1000


class Requests:
    """Who wants the state of the next step saved."""

    def __init__(self, ranks: Ranks) -> None:
        """Nobody yet."""
        self._ranks = ranks
        self._asked = False
        self.reset(0)

    def ask(self) -> None:
        """Want it; may be called at any time."""
        self._asked = True

    def reset(self, version: int) -> None:
        """Go on from another version; on all ranks."""
        self._next, self._since, self._since_s = version, version, time.monotonic()

    def due(self, version: int, wish: bool = False) -> bool:
        """Whether somebody wants this version. Collective: every rank asks after every step.

        Args:
            version: the step that has ended.
            wish: this process wants it; of several ranks only the first is heard, whose clock counts.
        """
        if self._ranks.world > 1 and version < self._next:
            return False
        asked = self._asked
        if asked:  # who asks between the two lines means the same step; no wish is wiped away unseen
            self._asked = False
        if self._ranks.world == 1:
            return asked or wish
        now = time.monotonic()
        step_ms = int(1000 * (now - self._since_s) / max(version - self._since, 1))
        wanted, slowest = self._ranks.least([-int(asked or (wish and not self._ranks.rank)), -step_ms])
        steps = int(1000 * _WORD_S) // max(-slowest, 1)
        self._next = version + min(max(steps, 1), _RAREST)
        self._since, self._since_s = version, now
        return bool(wanted)
