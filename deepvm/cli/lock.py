"""Lock an output folder or file, so that two commands do not overwrite each other's results."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from deepvm.cli.output import note
from deepvm.errors import RequestError


@contextlib.contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Lock the folder of a ``profile all``; None is no folder.

    Raises:
        RequestError: another process holds it.
    """
    if folder is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(descriptor, folder, "a folder in which no other 'profile all' is at work now")
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone_at(file: Path | None) -> Iterator[None]:
    """Lock the file of a ``profile scaling``; None is no file.

    The file is replaced after each run, so the lock is on a hidden one beside it, which is removed at the end.

    Raises:
        RequestError: another process holds it.
    """
    lock = file.with_name(f".{file.name}.lock") if file is not None and file.name else None
    descriptor = _opened(lock, file) if lock is not None and file is not None else None
    try:
        yield
    finally:
        if lock is not None and descriptor is not None:
            with contextlib.suppress(OSError):
                lock.unlink()
            os.close(descriptor)


def _opened(lock: Path, file: Path) -> int | None:
    """The descriptor of the locked lock file; None where none can be made: writing the result will say why."""
    while True:
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        try:
            _lock(descriptor, file, "a file that no other 'profile scaling' is writing now")
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), lock.stat()):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the previous holder has removed it in between


def _lock(descriptor: int, place: Path, wanted: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RequestError("out", str(place), wanted) from None
    except OSError as error:  # some network file systems have no locks
        note(f"{place} cannot be locked ({error.strerror}): start no second command that writes there")
