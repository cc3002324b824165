"""Who writes into a folder: file locks, which vanish with their process, however it ends.

A regular file opened for writing is locked, as NFS requires; a lock on the folder would hold on one machine only.
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

from deepvm.errors import CheckpointError

WRITERS, NODE = ".deepvm-writers.lock", ".deepvm-node.lock"
"""Names of the lock files; they stay, empty."""
_LIMIT_S, _PAUSE_S = 10.0, 0.01

log = logging.getLogger("deepvm.checkpoint")


class FileLock:
    """A shared or exclusive lock on a file; ``held`` by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Create nothing before the lock is first taken; the folder must exist."""
        self._path, self._descriptor = path, -1
        self.held = False

    def take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        """Take it, or change its mode; False on timeout. Raises OSError: this file system has no locks."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        deadline = time.monotonic() + limit_s
        self.held = False  # changing the mode releases it first
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
        """Release it, if held."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.held = -1, False

    __del__ = release


class WriterLock:
    """Marks a process as a writer of a folder, whose hidden files are then not taken for a killed one's."""

    def __init__(self, folder: Path) -> None:
        """Nothing is created yet."""
        self._lock, self._guard = FileLock(folder / WRITERS), threading.Lock()
        self._warned = False

    def enter(self, clear_up: Callable[[], object] = lambda: None) -> None:
        """Start writing in the folder, which must exist. If no other process does, ``clear_up`` is called first."""
        with self._guard:
            if not self._lock.held:
                if self._take(shared=False):
                    with contextlib.suppress(CheckpointError):  # writing may work all the same
                        clear_up()
                self._take(shared=True, limit_s=_LIMIT_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else writes there, until the end of the context; then as after :meth:`enter`."""
        with self._guard:
            try:
                yield self._take(shared=False)
            finally:
                self._take(shared=True, limit_s=_LIMIT_S)

    def leave(self) -> None:
        """Stop writing there."""
        with self._guard:
            self._lock.release()

    def _take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        why = "another process has been cleaning up for a long time"
        try:
            done = self._lock.take(shared=shared, limit_s=limit_s)
        except OSError as error:
            done, why = False, f"{error.filename or 'it'}: {error.strerror or error}"
        if shared and not done and not self._warned:
            self._warned = True
            log.warning("a memory node that starts with this folder may remove unfinished files: %s", why)
        return done
