"""End a process's descendants, including orphans, where no PID namespace does it.

A subreaper is the parent of all its descendants that have lost theirs, so none can leave its tree.
Stopped processes start no others: a tree is stopped from the top until nothing new is found, then
killed, until nothing is left.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_DEATH_SIGNAL, _SUBREAPER = 1, 36  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
_PAUSE_S = 0.005


def become_subreaper() -> None:
    """Be the parent of descendants that lose theirs.

    Raises OSError: this kernel has no such thing.
    """
    _prctl(_SUBREAPER, 1)


def follow_parent(parent: int, number: signal.Signals) -> None:
    """Have this process sent a signal when the process ``parent``, which has started it, ends."""
    _prctl(_DEATH_SIGNAL, number)
    if os.getppid() != parent:  # it has ended before
        os.kill(os.getpid(), number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_descendants(limit_s: float = 10.0) -> bool:
    """End all descendants of this subreaper; False if some are alive after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        _reap()
        if not (left := _stopped()):
            return True
        send_signal(signal.SIGKILL, left)
        time.sleep(_PAUSE_S)
    return False


def _stopped() -> set[int]:
    """The descendants of this process, all stopped: walks until nothing new is found."""
    found = set[int]()
    while new := descendants(os.getpid()) - found:
        send_signal(signal.SIGSTOP, new)
        found |= new
    return found


def send_signal(number: signal.Signals, pids: Iterable[int]) -> None:
    """Send a signal to those of these processes that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its exit code, which is not collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """The processes below a process, zombies included."""
    found = set[int]()
    rest = [pid]
    while rest:
        new = [child for child in children_of(rest.pop()) if child not in found]
        found.update(new)
        rest += new
    return found


def children_of(pid: int) -> list[int]:
    """The processes that one has started; none once it has ended."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
