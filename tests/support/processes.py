"""The processes of this machine, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], limit_s: float) -> bool:
    """Wait for a condition; whether it came."""
    deadline = time.monotonic() + limit_s
    while not (came := bool(condition())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return came


def gone(pid: int) -> bool:
    """Whether a process has ended, though nobody may have waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def children(of: int) -> set[int]:
    """Processes that one has started and that have not been waited for."""
    return {pid for pid, parent in _parents().items() if parent == of}


def descendants(of: int) -> list[int]:
    """Its children, theirs, and so on."""
    parents = _parents()
    found = [of]
    for one in found:
        found += [pid for pid, parent in parents.items() if parent == one]
    return found[1:]


def marked(mark: str) -> dict[int, str]:
    """Command lines of living processes that have inherited ``NAME=value``, by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                found[int(path.name)] = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                )
        except OSError:
            continue
    return found


def _parents() -> dict[int, int]:
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            found[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found
