"""File locks, which the kernel releases with their process, however it ends.

A regular file opened for writing is locked, as NFS requires; a lock on the folder would hold on one machine only.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

_PAUSE_S = 0.01


class FileLock:
    """A shared or exclusive lock on a file; ``held`` by one thread at a time."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        """Create nothing before the lock is first taken, the file with ``mode`` then; the folder must exist."""
        self._path, self._mode, self._descriptor = path, mode, -1
        self.held = False

    def take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        """Take it, or change its mode; False on timeout. Raises OSError: this file system has no locks."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, self._mode)
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
