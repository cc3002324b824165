"""A disk that misbehaves: functions that write are replaced, for files below one folder."""

import builtins
import errno
import functools
import io
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepvm.lab.faults.fault import DiskFault
from deepvm.records import dataclass

_SMALL = 512  # Writes below, and files, are notes, not checkpoints
_WRITING = ("wb", "bw", "xb", "bx", "ab", "ba")


@dataclass(frozen=True)
class Faults:
    """How a disk misbehaves."""

    eio: float = 0.0  # share of writes and fsyncs that fail
    enospc: float = 0.0  # share of writes that find no space
    mbps: float | None = None  # MB/s that it takes
    seed: int = 0
    first: bool = False  # the first one fails for sure, so that no run is without


class _Raw(io.FileIO):
    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)


class FaultyDisk:
    """The disk of one worker."""

    def __init__(self, folder: Path, faults: Faults, note: Callable[..., None]) -> None:
        self._folder = os.path.realpath(folder)
        self._faults = faults
        self._note = note
        self._rng = random.Random(faults.seed)
        self._lock = threading.Lock()
        self._kill = ""
        self._pending = {
            name for name in ("EIO", "ENOSPC") if faults.first and getattr(faults, name.lower())
        }

    def kill_at_next_write(self, key: str) -> None:
        self._kill = self._kill or key

    def install(self) -> None:
        for name in ("write", "pwrite"):
            setattr(os, name, self._writing(getattr(os, name)))
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._syncing(getattr(os, name)))
        io.open = builtins.open = self._opening(io.open)

    def _writing(self, real: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(real)
        def write(descriptor: int, data: Any, *rest: Any) -> int:
            size = memoryview(data).nbytes
            if size < _SMALL or not self._is_here(descriptor):
                return real(descriptor, data, *rest)
            if self._kill:
                real(descriptor, memoryview(data).cast("B")[: size // 2], *rest)
                self._note("killed-in-write", key=self._kill)
                os.kill(os.getpid(), signal.SIGKILL)
            if self._faults.mbps is not None:
                delay_s = size / (self._faults.mbps * 1e6)
                time.sleep(delay_s)
                self._note("slowed", seconds=delay_s)
            self._fail("ENOSPC", self._faults.enospc)
            self._fail("EIO", self._faults.eio)
            return real(descriptor, data, *rest)

        return write

    def _syncing(self, real: Callable[[int], None]) -> Callable[[int], None]:
        @functools.wraps(real)
        def sync(descriptor: int) -> None:
            if self._is_here(descriptor) and os.fstat(descriptor).st_size >= _SMALL:
                self._fail("EIO", self._faults.eio)
            real(descriptor)

        return sync

    def _opening(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def opened(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **more: Any) -> Any:
            if not (isinstance(file, (str, os.PathLike)) and mode in _WRITING and buffering):
                return real(file, mode, buffering, *rest, **more)
            if not os.path.realpath(file).startswith(self._folder):
                return real(file, mode, buffering, *rest, **more)
            return io.BufferedWriter(_Raw(file, mode.replace("b", "")))

        return opened

    def _fail(self, name: str, share: float) -> None:
        if not share:
            return
        with self._lock:
            fails = self._rng.random() < share or name in self._pending
            self._pending.discard(name)
        if fails:
            self._note("disk", error=name)
            number = getattr(errno, name)
            raise OSError(number, os.strerror(number))

    def _is_here(self, descriptor: int) -> bool:
        try:
            return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder)
        except OSError:
            return False


class FailingDisk(DiskFault):
    """A share of writes and fsyncs fails with EIO, the first for sure: data may be missing."""

    setting = "eio"


class FullDisk(DiskFault):
    """A share of all writes, the first one for sure, finds no space left (ENOSPC)."""

    setting = "enospc"


class SlowDisk(DiskFault):
    """The disk takes so many MB in a second."""

    options = frozenset({"mbps"})
    setting = "mbps"
