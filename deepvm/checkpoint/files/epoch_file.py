"""The newest generation of each job that writes into a folder.

What an older one writes never becomes visible.

A machine that was thought lost may come back, and finish a save that it had started. Each
generation of ``deepvm run`` has a number, and its trainers raise that of the folder before they
look for versions. A commit happens under a shared lock of the file, after a look at the number;
raising it takes an exclusive lock: so a commit is either before, and is seen, or it fails.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import check_job
from deepvm.errors import CheckpointError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.file_lock import FileLock

_LIMIT_S = 30.0


class EpochFile:
    """The number of one job's newest generation in a folder."""

    def __init__(self, folder: Path, job: str) -> None:
        self._path = folder / f".{check_job(job)}.epoch"
        self._lock = self._path.with_name(f"{self._path.name}.lock")

    def read(self) -> int:
        """The number, 0 without one. Raises CheckpointError: the file is damaged."""
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._path}: no number of a generation: {error}") from None

    def begin(self, epoch: int) -> None:
        """Refuse lower numbers from now on. Raises CheckpointError: a higher one has started."""
        with self._held(shared=False):
            self._check(epoch)
            if epoch > self.read():
                with failing(self._path):
                    write_bytes(self._path, str(epoch).encode())

    @contextlib.contextmanager
    def current(self, epoch: int) -> Iterator[None]:
        """Make sure that no higher number begins in the context.

        Raises CheckpointError: one has started.
        """
        with self._held(shared=True):
            self._check(epoch)
            yield

    def _check(self, epoch: int) -> None:
        newest = self.read()
        if epoch < newest:
            raise CheckpointError(
                f"{self._path.parent}: generation {epoch} is over: {newest} has started"
            )

    @contextlib.contextmanager
    def _held(self, *, shared: bool) -> Iterator[None]:
        lock = FileLock(self._lock, 0o666)
        try:
            with failing(self._lock, "locked"):
                if not lock.take(shared=shared, limit_s=_LIMIT_S):
                    raise CheckpointError(
                        f"{self._lock}: another process has held it for {_LIMIT_S:.0f} s"
                    )
            yield
        finally:
            lock.release()
