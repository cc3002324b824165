"""The folder of the user's measured tables, changed by one process at a time.

::

    <folder>/measured.json             the tables
    <folder>/measured.previous.json    what they were before the last change
    <folder>/.measured.lock            held while a process changes them

A change writes the new file, copies the old one, and renames the new one: a full disk or a kill at
any point leaves a whole ``measured.json``. ``recommend`` imports this module to see whether there
are any tables, so it imports little.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from deepvm.errors import DataError
from deepvm.io.atomic_write import hidden_path, sync_folder, write_bytes
from deepvm.io.safe_read import os_reason
from deepvm.io.user_dirs import is_missing

CURRENT = "measured.json"
PREVIOUS = "measured.previous.json"
LOCK = ".measured.lock"

LOCK_WAIT_S = 30.0
"""How long a save waits for another one; a save takes milliseconds."""


def replace_file(folder: Path, data: bytes) -> None:
    """Replace the tables; the old ones become the previous ones.

    At every moment a whole file has the name. Raises a DataError: both are as they were.
    """
    current = folder / CURRENT
    try:
        with hidden_path(current) as new_file:
            write_bytes(new_file, data)  # first, so that a full disk changes nothing
            if not is_missing(current):
                write_bytes(folder / PREVIOUS, current.read_bytes())
            os.replace(new_file, current)
        sync_folder(folder)
    except OSError as error:
        raise DataError(f"{current}: cannot be written: {os_reason(error)}") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, or raise a DataError.

    The kernel unlocks it however this one ends.
    """
    from deepvm.io.file_lock import FileLock

    lock = FileLock(folder / LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = lock.take(shared=False, limit_s=LOCK_WAIT_S)
    except OSError as error:  # without a lock, two saves could lose each other's entries
        raise DataError(
            f"{error.filename or folder}: measured tables cannot be written: {os_reason(error)};"
            " DEEPVM_DATA_DIR names another folder"
        ) from None
    if not free:
        raise DataError(
            f"another process has locked {folder / LOCK} for {LOCK_WAIT_S:g} s; nothing was saved,"
            " try again"
        )
    try:
        yield
    finally:
        lock.release()
