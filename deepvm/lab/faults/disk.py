"""A disk that misbehaves, put between a worker and its checkpoints.

The functions of ``os`` by which Python programs write are replaced in the worker's process, for files below one folder;
Python's own file objects do not call them, so the lab's strategies and torch's writers write through :class:`Writer`.
What a program written in C writes by itself is not met with.
"""

from __future__ import annotations

import errno
import functools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SMALL = 512
"""Writes below are notes, not checkpoints."""


@dataclass(frozen=True)
class Faults:
    """How a disk misbehaves.

    Attributes:
        eio: the share of fsyncs that fail. enospc: the share of writes that find no room. mbps: how many MB it takes
            in a second, None for as many as it can. seed: of what is random.
    """

    eio: float = 0.0
    enospc: float = 0.0
    mbps: float | None = None
    seed: int = 0


def combined(faults: Sequence[Faults]) -> Faults:
    """One disk that misbehaves in all of these ways."""
    speeds = [one.mbps for one in faults if one.mbps is not None]
    return Faults(
        eio=max((one.eio for one in faults), default=0.0),
        enospc=max((one.enospc for one in faults), default=0.0),
        mbps=min(speeds, default=None),
        seed=next((one.seed for one in faults), 0),
    )


class FaultyDisk:
    """The disk of one worker."""

    def __init__(self, folder: Path, faults: Faults, note: Callable[..., None]) -> None:
        """Change nothing yet; ``note`` is told of each error that was made."""
        self._folder, self._faults, self._note = os.path.realpath(folder), faults, note
        self._rng = random.Random(faults.seed)
        self._lock = threading.Lock()
        self._kill = False

    def kill_at_next_write(self) -> None:
        """End the process in the middle of the next write of a checkpoint."""
        self._kill = True

    def install(self) -> None:
        """Replace the functions, for as long as the process lives."""
        for name in ("write", "pwrite"):
            setattr(os, name, self._writing(getattr(os, name)))
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._syncing(getattr(os, name)))

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(real)
        def write(descriptor: int, data: Any, *rest: Any) -> int:
            size = memoryview(data).nbytes
            if size < _SMALL or not self._is_here(descriptor):
                return real(descriptor, data, *rest)
            if self._kill:
                real(descriptor, memoryview(data).cast("B")[: size // 2], *rest)
                self._note("killed-in-write")
                os.kill(os.getpid(), signal.SIGKILL)
            if self._faults.mbps is not None:
                time.sleep(size / (self._faults.mbps * 1e6))
            if self._is_full():
                self._note("disk", error="ENOSPC")
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(descriptor, data, *rest)

        return write

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        @functools.wraps(real)
        def sync(descriptor: int) -> None:
            with self._lock:
                fails = self._rng.random() < self._faults.eio
            if fails and self._is_here(descriptor):
                self._note("disk", error="EIO")
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real(descriptor)

        return sync

    def _is_full(self) -> bool:
        if not self._faults.enospc:
            return False
        with self._lock:
            return self._rng.random() < self._faults.enospc

    def _is_here(self, descriptor: int) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder)
        except OSError:
            return False
