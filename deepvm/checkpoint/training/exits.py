"""Whoever forgets to close a checkpointer must not lose what is under way when the program ends."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Callable

from deepvm.errors import CheckpointError

EXIT_S = 30.0
"""Seconds that the end of a program waits for tiers that do not answer."""
log = logging.getLogger("deepvm.checkpoint")


def close_at_exit(close: Callable[[float], None]) -> None:
    """Call this method at the end of the program, if its object is still there; its argument is a limit in seconds.

    In this process only: a forked child inherits the handler, but neither the threads nor the right to end them.
    """
    atexit.register(_close, weakref.WeakMethod(close), os.getpid())


def _close(method: weakref.WeakMethod[Callable[[float], None]], process: int) -> None:
    close = method() if os.getpid() == process else None
    if close is not None:
        try:
            close(EXIT_S)
        except CheckpointError as error:
            log.warning("at the end of the program: %s", error)
