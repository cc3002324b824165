"""A trainer's checkpoint in memory that a memory node on the same machine reads by itself.

Over TCP each byte is copied twice, by processors that the training needs as well. Here the trainer
names an anonymous file (``memfd_create``) which its memory maps, and the node reads it by way of
the trainer's entry in ``/proc``: for that both need the same user and the same process namespace.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from deepvm.checkpoint.network.protocol import BrokenError

_NAME = re.compile("deepvm-[0-9a-f]{32}")


class MemoryFile(mmap.mmap):
    """Memory that another process can read; ``location``: what it must know for that."""

    location: Mapping[str, Any]

    def __new__(cls, size: int) -> MemoryFile:
        """Reserve address space; memory is taken where it is written to."""
        name = f"deepvm-{secrets.token_hex(16)}"
        file = os.memfd_create(name)
        try:
            os.ftruncate(file, size)
            memory = super().__new__(cls, file, size)
        except BaseException:
            os.close(file)
            raise
        memory.location = {"process": os.getpid(), "file": file, "name": name}
        weakref.finalize(memory, os.close, file).atexit = False
        return memory

    def close(self) -> None:
        """Free the memory. Raises BufferError: something in this process still uses it."""
        super().close()
        # DataLoader workers that were forked keep the file open, and would keep its memory
        if os.getpid() == self.location["process"]:
            os.ftruncate(self.location["file"], 0)


def location_of(image: memoryview) -> Mapping[str, Any] | None:
    """Where another process finds an image, which must be a whole file; None: nowhere."""
    memory = getattr(image, "obj", None)  # the part of a striped version is no memoryview
    if isinstance(memory, MemoryFile) and len(memory) == len(image):
        return memory.location
    return None


class TrainerMemory:
    """The memory file of a trainer, open for reading."""

    def __init__(self, file: int) -> None:
        """Own the file descriptor."""
        self._file = file

    @classmethod
    def open(cls, location: object) -> TrainerMemory | None:
        """The file at a location that a peer sent; None: there is no such file here.

        Only who made a memory file knows its name, so a peer cannot have other files read.
        """
        match location:
            case {"process": int(process), "file": int(file), "name": str(name)}:
                if not _NAME.fullmatch(name):
                    return None
            case _:
                return None
        link = f"/memfd:{name} (deleted)"
        path = f"/proc/{process}/fd/{file}"
        try:
            if os.readlink(path) != link:
                return None
            memory = cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            # The peer may have put another file there meanwhile, one that only the node may read
            if os.readlink(f"/proc/self/fd/{memory._file}") == link:
                return memory
        except OSError:
            return None
        memory.close()
        return None

    def reader(self, view: memoryview, start: int, step: int) -> Callable[[int], None]:
        """A function that fills ``view`` in steps until so many bytes of it are there.

        ``start``: where its bytes are in the file. The function raises BrokenError: they are gone.
        """
        done = 0

        def read(end: int) -> None:
            nonlocal done
            while done < end:
                stop = min(done + step, len(view))
                count = os.preadv(self._file, [view[done:stop]], start + done)
                if not count:
                    raise BrokenError("the trainer has given up the memory of this version")
                done += count

        return read

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
