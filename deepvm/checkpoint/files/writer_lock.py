"""Who writes into a folder: locks vanish with their process, however it ends."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from deepvm.errors import CheckpointError
from deepvm.io.file_lock import FileLock

WRITERS, NODE = ".deepvm-writers.lock", ".deepvm-node.lock"
"""Names of the lock files; they stay, empty."""
_LIMIT_S = 10.0

log = logging.getLogger("deepvm.checkpoint")


class WriterLock:
    """Marks a process as a writer of a folder, so that others leave its hidden files alone."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / WRITERS, 0o666)
        self._guard = threading.Lock()
        self._warned = False

    def enter(self, clear_up: Callable[[], object] = lambda: None) -> None:
        """Join the writers of an existing folder; the only writer first calls ``clear_up``."""
        with self._guard:
            if not self._lock.held:
                if self._take(shared=False):
                    with contextlib.suppress(CheckpointError):  # writing may work all the same
                        clear_up()
                self._take(shared=True, limit_s=_LIMIT_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this is the only writer until the context ends; then as after :meth:`enter`."""
        with self._guard:
            try:
                yield self._take(shared=False)
            finally:
                self._take(shared=True, limit_s=_LIMIT_S)

    def leave(self) -> None:
        with self._guard:
            self._lock.release()

    def _take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        why = "another process has been cleaning up for a long time"
        try:
            done = self._lock.take(shared=shared, limit_s=limit_s)
        except OSError as error:
            done = False
            why = f"{error.filename or 'it'}: {error.strerror or error}"
        if shared and not done and not self._warned:
            self._warned = True
            log.warning(
                "a memory node that starts with this folder may remove unfinished files: %s", why
            )
        return done
