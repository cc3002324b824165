"""Locks on regular files (NFS), which the kernel releases with their process, however it ends."""

import contextlib
import fcntl
import os
import time
from pathlib import Path

_PAUSE_S = 0.01


class FileLock:
    """A shared or exclusive lock on a file; ``held`` by one thread at a time."""

    def __init__(self, path: Path, mode: int = 0o600) -> None:
        self._path = path
        self._mode = mode
        self._descriptor = -1
        self.held = False

    def take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        """Take it, or change its mode; False on timeout. Raises OSError: there are no locks."""
        deadline = time.monotonic() + limit_s
        mode = fcntl.LOCK_EX
        if shared:
            mode = fcntl.LOCK_SH
        self.held = False  # changing the mode releases it first
        while not self.held:
            if self._descriptor < 0:
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptor = os.open(self._path, flags, self._mode)
            try:
                fcntl.flock(self._descriptor, mode | fcntl.LOCK_NB)
                # FUSE may renumber files
                self.held = self._in_place() or time.monotonic() > deadline + 1
                # Its previous holder removed the file, and another may lock a new one
                if not self.held:
                    self.release()
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    break
                time.sleep(_PAUSE_S)
        return self.held

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(
                os.fstat(self._descriptor), os.stat(self._path, follow_symlinks=False)
            )
        except FileNotFoundError:
            return False

    def release(self, *, remove: bool = False) -> None:
        if remove and self.held:
            with contextlib.suppress(OSError):
                self._path.unlink()
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        self.held = False

    __del__ = release
