"""Ends what a test run has started and left, also where the run was interrupted or killed.

    python -m support.reaper PID GROUP NAME=VALUE

It waits for the end of the process ``PID``, then kills all that has inherited the variable, until
nothing is left. What a test starts without its own environment is not found.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "TEST_RUN"
_LIMIT_S, _PAUSE_S = 60.0, 0.01


def watch_this_process() -> subprocess.Popen[bytes] | None:
    """Have another process end what this one starts after its own end.

    None: one that started this one does.
    """
    if MARK in os.environ:
        return None
    os.environ[MARK] = uuid.uuid4().hex
    words = [
        sys.executable,
        "-m",
        "support.reaper",
        str(os.getpid()),
        str(os.getpgrp()),
        f"{MARK}={os.environ[MARK]}",
    ]
    nothing = subprocess.DEVNULL  # whoever reads this run's output does not wait for it
    return subprocess.Popen(
        words, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing
    )


def end_all(mark: str, group: int) -> None:
    """Kill whole process groups: a process that is gone before it is killed has a child there.

    ``group``: stays.
    """
    until_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < until_s and _end_some(mark, group):
        time.sleep(_PAUSE_S)


def _end_some(mark: str, group: int) -> bool:
    """Look at all processes, the newest first; whether any was found."""
    found = False
    for pid in sorted((int(path.name) for path in Path("/proc").glob("[0-9]*")), reverse=True):
        with contextlib.suppress(OSError):  # it has ended
            if pid == os.getpid() or mark.encode() not in Path(
                f"/proc/{pid}/environ"
            ).read_bytes().split(b"\0"):
                continue
            found = True
            of = os.getpgid(pid)
            if of == group:
                os.kill(pid, signal.SIGKILL)
            else:
                os.killpg(of, signal.SIGKILL)
    return found


def main() -> None:
    """Wait, then end all."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        select.select([os.pidfd_open(int(sys.argv[1]))], [], [])
    end_all(sys.argv[3], int(sys.argv[2]))


if __name__ == "__main__":
    main()
