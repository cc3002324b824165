"""The folder of the user's measured tables, changed by one process at a time.

::

    <folder>/measured.json             the tables
    <folder>/measured.previous.json    what they were before the last change
    <folder>/.measured.lock            held while a process changes them

A change is a new file beside the old one, fsync, a second name for the old one, and a rename: whatever happens on the
way, a whole ``measured.json`` remains. Two processes that save at once wait for each other, and nothing is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from deepvm.catalog.measured.location import CURRENT
from deepvm.errors import DataError
from deepvm.io.atomic_write import sync_folder, write_bytes

PREVIOUS, LOCK = "measured.previous.json", ".measured.lock"
_NEXT = ".measured.next.json"

LOCK_WAIT_S = 30.0
"""How long a save waits for another one; a save takes milliseconds."""

_POLL_S = 0.02


def replace_file(folder: Path, data: bytes) -> None:
    """Replace the tables; the old ones become the previous ones. At every moment a whole file has the name."""
    current, upcoming = folder / CURRENT, folder / _NEXT
    try:
        for left_over in folder.glob("*measured.*.tmp"):  # of a process that was killed; nobody else holds the lock
            left_over.unlink(missing_ok=True)
        # All that needs room on the disk comes first.
        write_bytes(upcoming, data)
        if os.path.lexists(current):
            _second_name(current, folder / PREVIOUS)
        os.replace(upcoming, current)
        sync_folder(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            upcoming.unlink()
        raise DataError(f"{current}: cannot be written: {error.strerror}; nothing was changed") from None


def _second_name(current: Path, previous: Path) -> None:
    spare = previous.with_name(f".{previous.name}.{os.urandom(4).hex()}.tmp")
    try:
        os.link(current, spare)
    except OSError:  # file systems without hard links
        write_bytes(previous, current.read_bytes())
        return
    try:
        os.replace(spare, previous)
    finally:
        # Two names of one file are renamed to each other by doing nothing at all (POSIX), and then the first remains.
        spare.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes; the kernel unlocks it however this one ends.

    Raises:
        DataError: it cannot be made or written, or somebody holds it for too long.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise DataError(
            f"{error.filename or folder}: measured tables cannot be written: {why}; DEEPVM_DATA_DIR names another place"
        ) from None
    end = time.monotonic() + LOCK_WAIT_S
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    what = f"another deepvm has held {folder / LOCK} for {LOCK_WAIT_S:g} s"
                    raise DataError(f"{what}; nothing was saved, try again") from None
                time.sleep(_POLL_S)
            except OSError as error:  # without a lock, two saves could lose each other's entries
                raise DataError(
                    f"{folder / LOCK}: cannot be locked: {error.strerror}; DEEPVM_DATA_DIR names another place"
                ) from None
        yield
    finally:
        os.close(descriptor)
