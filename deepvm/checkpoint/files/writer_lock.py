"""Who writes into a folder: locks on files in it, which vanish with the process that holds them, however it ends.

A regular file that is open for writing is locked, as NFS wants it; a lock on the folder itself would hold on one
machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WRITERS, NODE = ".deepvm-writers.lock", ".deepvm-node.lock"
"""Names of the files that are locked; they stay where they are, empty."""
_LIMIT_S, _PAUSE_S = 10.0, 0.01

log = logging.getLogger("deepvm.checkpoint")


class FileLock:
    """A lock that many may hold together, or one alone; for one thread at a time.

    Attributes:
        held: whether it was taken and not released.
    """

    def __init__(self, path: Path) -> None:
        """Remember which file; it is made when the lock is first taken, in a folder that is there."""
        self._path, self._descriptor = path, -1
        self.held = False

    def take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        """Take it, or hold it in the other way; returns whether that could be done within the time.

        Raises:
            OSError: the file cannot be opened, or this file system has no locks.
        """
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        deadline = time.monotonic() + limit_s
        self.held = False  # one that is held is let go before it is held in the other way
        while not self.held:
            try:
                fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                self.held = True
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_PAUSE_S)
        return self.held

    def release(self) -> None:
        """Let it go; nothing happens when it is not held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.held = -1, False

    def __del__(self) -> None:
        """Nobody else could release it."""
        self.release()


class Presence:
    """A process that writes into a folder: nobody takes its hidden files for what a killed one left.

    Writing does not depend on it: where there are no locks, or this user may not have them, the log says so once.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is made yet."""
        self._lock, self._guard = FileLock(folder / WRITERS), threading.Lock()
        self._said = False

    def enter(self, clear_up: Callable[[], None] = lambda: None) -> None:
        """Write there from now on; the folder must be there. Where nobody else does, ``clear_up`` is called first."""
        with self._guard:
            if not self._lock.held:
                if self._take(shared=False):
                    clear_up()
                self._take(shared=True, limit_s=_LIMIT_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else writes there, and so until the end of the context; after it as after :meth:`enter`."""
        with self._guard:
            try:
                yield self._take(shared=False)
            finally:
                self._take(shared=True, limit_s=_LIMIT_S)

    def leave(self) -> None:
        """Write there no longer."""
        with self._guard:
            self._lock.release()

    def _take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        try:
            done, why = self._lock.take(shared=shared, limit_s=limit_s), "another process clears it up for long"
        except OSError as error:
            done, why = False, f"{error.filename or 'it'}: {error.strerror or error}"
        if shared and not done and not self._said:
            self._said = True
            log.warning("a memory node that starts with this folder may remove unfinished files: %s", why)
        return done
