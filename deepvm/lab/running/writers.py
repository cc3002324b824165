"""Processes of an older start that still write into a run, which must end before it is made again.

Its attempts count from 0 again, so their numbers refuse no writer of the older start. Whatever
takes part in a run has a log of it open from its first moment on: standard output of ranks and
agents, or a log of its own.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from deepvm.errors import DataError
from deepvm.io.processes import open_files, processes
from deepvm.lab.running.plan import StoppedError

LIMIT_S = 30.0
"""Seconds for all to end with their parent; a job's machines may take longer."""
_LOOK_S = 0.05


def writers_of(folder: Path) -> list[int]:
    """The processes that have a file below a folder open for writing, other users' perhaps not."""
    inside = f"{folder.resolve()}/"
    others = (pid for pid in processes() if pid != os.getpid())
    return [
        pid
        for pid in others
        if any(path.startswith(inside) for path in open_files(pid, for_writing=True))
    ]


def wait_for_writers(folder: Path, stopping: threading.Event) -> None:
    """Wait until no process writes there. Raises DataError (timeout), StoppedError."""
    until = time.monotonic() + LIMIT_S
    while pids := writers_of(folder):
        if time.monotonic() > until:
            raise DataError(
                f"{folder}: process {pids[0]} still writes into it; end it, and run this again"
            )
        if stopping.wait(_LOOK_S):
            raise StoppedError
