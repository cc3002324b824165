"""Processes of an older start that still write into a run, which must end before it is made again.

Its attempts count from 0 again, so their numbers refuse no writer of the older start. Whatever takes part in a run has
a log of it open from its first moment on: standard output of ranks and agents, or a log of its own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from deepvm.errors import DataError
from deepvm.lab.plan import StoppedError

LIMIT_S = 30.0
"""All end with whoever started them, which takes moments; a job's machines may take some seconds."""
_LOOK_S = 0.05
_HOW = os.O_WRONLY | os.O_RDWR


def writers_of(folder: Path) -> list[int]:
    """The processes that have a file below a folder open for writing, other users' perhaps not."""
    inside = f"{folder.resolve()}/"
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _writes(entry, inside):
            found.append(int(entry.name))
    return found


def _writes(process: Path, inside: str) -> bool:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        return any(_is_written(process, link, inside) for link in (process / "fd").iterdir())
    return False


def _is_written(process: Path, link: Path, inside: str) -> bool:
    with contextlib.suppress(OSError):  # it has been closed
        if os.readlink(link).startswith(inside):
            about = (process / "fdinfo" / link.name).read_text().split()
            return bool(int(about[about.index("flags:") + 1], 8) & _HOW)
    return False


def wait_for_writers(folder: Path, stopping: threading.Event) -> None:
    """Wait until nobody writes there. Raises DataError: somebody does not end. StoppedError: no longer wanted."""
    until = time.monotonic() + LIMIT_S
    while found := writers_of(folder):
        if time.monotonic() > until:
            raise DataError(f"{folder}: process {found[0]} still writes into it; end it, and run this again")
        if stopping.wait(_LOOK_S):
            raise StoppedError
