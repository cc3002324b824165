"""Delayed actions of a supervisor, without a sleep: it keeps watching and answers Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable


class Later:
    """Actions that are due at some time."""

    def __init__(self) -> None:
        self._actions: list[tuple[float, Callable[[], None]]] = []

    def add(self, seconds: float, action: Callable[[], None]) -> None:
        self._actions.append((time.monotonic() + seconds, action))

    def do_due(self) -> None:
        now = time.monotonic()
        due = [action for at, action in self._actions if at <= now]
        self._actions = [one for one in self._actions if one[0] > now]
        for action in due:
            action()
