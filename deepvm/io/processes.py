"""What Linux says of other processes; nothing of those that have ended, or are another user's."""

from __future__ import annotations

import os
from pathlib import Path

_PROCESSES = Path("/proc")


def processes() -> list[int]:
    """All of this machine, or of this process's namespace."""
    return [int(entry.name) for entry in _PROCESSES.iterdir() if entry.name.isdigit()]


def environment_of(pid: int) -> list[bytes]:
    """A process's initial environment, such as ``b"HOME=/root"``; empty while it starts."""
    try:
        return (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def open_files(pid: int, *, for_writing: bool = False) -> list[str]:
    """The files that a process has open, or those of them that it can write to."""
    found = []
    try:
        for link in (_PROCESSES / str(pid) / "fd").iterdir():
            try:
                if not for_writing or _can_write(pid, link.name):
                    found.append(os.readlink(link))
            except OSError:  # it has been closed
                continue
    except OSError:
        return []
    return found


def _can_write(pid: int, descriptor: str) -> bool:
    words = (_PROCESSES / str(pid) / "fdinfo" / descriptor).read_text().split()
    return bool(int(words[words.index("flags:") + 1], 8) & (os.O_WRONLY | os.O_RDWR))
