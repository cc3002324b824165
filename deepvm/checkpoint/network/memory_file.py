"""A trainer's checkpoint in an anonymous file that a memory node on the same machine reads.

It does so through the trainer's entry in ``/proc``: same user, same process namespace.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import secrets
import weakref
from pathlib import Path

from deepvm.checkpoint.format.checksums import UpTo
from deepvm.checkpoint.network.protocol import BrokenError
from deepvm.core.json_types import JsonObject

_NAME = re.compile("deepvm-[0-9a-f]{32}")


class MemoryFile(mmap.mmap):
    """Memory that another process can read; ``location``: what it must know for that."""

    location: JsonObject
    _free: weakref.finalize[..., MemoryFile]

    def __new__(cls, size: int) -> MemoryFile:
        name = f"deepvm-{secrets.token_hex(16)}"
        file = os.memfd_create(name)
        try:
            os.ftruncate(file, size)
            memory = super().__new__(cls, file, size)
        except BaseException:
            os.close(file)
            raise
        # A forked DataLoader worker would share it, not have a copy
        memory.madvise(mmap.MADV_DONTFORK)
        memory.location = {"process": os.getpid(), "file": file, "name": name}
        memory._free = weakref.finalize(memory, _free, file, os.getpid())
        memory._free.atexit = False
        return memory

    def close(self) -> None:
        super().close()
        self._free()


def _free(file: int, process: int) -> None:
    # A forked process has not made it, and may have another file of this number by now
    if os.getpid() == process:
        os.ftruncate(file, 0)  # the node may still have it open
        os.close(file)


def _leave_to_parent() -> None:
    """Hold no memory of the trainer in a process that it forked, which may outlive it."""
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{file}").startswith("/memfd:deepvm-"):
                # Not closed: mmap closes its own one by number, which may be another file's by then
                null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(null, int(file), inheritable=False)
                os.close(null)


os.register_at_fork(after_in_child=_leave_to_parent)


def readable_memory(size: int) -> MemoryFile | None:
    """Memory that a node on this machine can read; None: there is none to be had."""
    try:
        # Where memory is accounted for in advance, a page that is too many would end the process
        strict = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
        return None if strict else MemoryFile(size)
    except (OSError, AttributeError):  # no file descriptor is left, or not Linux
        return None


def location_of(image: memoryview) -> JsonObject | None:
    """Where another process finds an image, which must be a whole file; None: nowhere."""
    memory = getattr(image, "obj", None)  # the part of a striped version is no memoryview
    if isinstance(memory, MemoryFile) and len(memory) == len(image):
        return memory.location
    return None


@functools.cache
def _device() -> int:
    file = os.memfd_create("deepvm")
    try:
        return os.fstat(file).st_dev
    finally:
        os.close(file)


class TrainerMemory:
    """The memory file of a trainer, open for reading."""

    def __init__(self, file: int) -> None:
        self._file = file

    @classmethod
    def open(cls, location: object) -> TrainerMemory | None:
        """The file at a location that a peer sent; None: there is no such file here."""
        match location:
            case {"process": int(process), "file": int(file), "name": str(name)}:
                if not _NAME.fullmatch(name):
                    return None
            case _:
                return None
        # Only who made a memory file knows its name, so a peer cannot have other files read
        link = f"/memfd:{name} (deleted)"
        try:
            # A handle first: to open a device for reading may already do something
            handle = os.open(f"/proc/{process}/fd/{file}", os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return None
        path = f"/proc/self/fd/{handle}"
        try:
            # The peer may have mounted a file that only the node may read under such a name
            if os.readlink(path) == link and os.fstat(handle).st_dev == _device():
                return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        finally:
            os.close(handle)
        return None

    def reader(self, view: memoryview, start: int, step: int) -> UpTo:
        """A function that fills ``view`` from ``start`` of the file until so much is there."""
        done = 0

        def read(end: int) -> None:
            nonlocal done
            while done < end:
                stop = min(done + step, len(view))
                count = os.preadv(self._file, [view[done:stop]], start + done)
                if not count:
                    raise BrokenError("the trainer has given up the memory of this checkpoint")
                done += count

        return read

    def close(self) -> None:
        os.close(self._file)
