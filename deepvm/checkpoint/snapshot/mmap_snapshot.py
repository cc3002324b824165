"""Strategy D (LightCheck III-A, III-D): copy the version straight into the file that it becomes.

The slot's memory maps a hidden file in the folder of a file tier. After the one copy the tier syncs it, renames it and
writes the commit record, as with any other version: what was complete is never overwritten. A deleted version's file is
reused for the next one, like LightCheck's two slots.

Not for disks, where it goes through the page cache: 140 MB were safe after 454 ms, with the direct writes of strategy C
after 208 ms. On tmpfs it saves one copy: 130 ms instead of 180 (9 interleaved runs, 2 cores).
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
from pathlib import Path

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.checkpoint.snapshot.host_buffer import Slot
from deepvm.checkpoint.snapshot.strategies import Strategy
from deepvm.errors import CheckpointError, RequestError

log = logging.getLogger("deepvm.checkpoint")


class IntoFile(Strategy):
    """Strategy D: the persistent slot itself, for one rank."""

    def __init__(self, folder: VersionFolder, job: str) -> None:
        """Create nothing before the first version; log what the folder lies on.

        Args:
            folder: of the tier that turns the files into versions.
            job: name of the training.

        Raises:
            RequestError: a mapped file there may run out of space, which would kill the process.
        """
        super().__init__()
        self._folder, self._job = folder, job
        self._files: set[Path] = set()
        self._process = os.getpid()
        medium = durable_write.medium(folder.path)
        if not medium.mappable:
            raise RequestError(
                "strategy",
                "D",
                f"on ext4, tmpfs, or xfs with DAX; {folder.path} is on {medium.kind or 'another'}: use C",
            )
        log.info("versions are copied straight into files of %s, on %s", folder.path, medium)

    def slot(self, image: Image, layout: Layout, rank: int) -> Slot:
        """Map a hidden file, a new one or a deleted version's.

        Raises:
            CheckpointError: there is no space for it now.
        """
        hidden: Path | None = None
        try:
            hidden = self._folder.reserve(self._job)
            self._files.add(hidden)
            memory = _map(hidden, image.size)
        except OSError as error:
            if hidden is not None:
                self._remove(hidden)
            raise CheckpointError(
                f"{self._folder.path}: no file of {image.size} bytes for strategy D: {error.strerror or error}"
            ) from error
        slot = self.pinned(Slot(image, layout, rank, memory=memory))
        slot.home = hidden
        for file in [*self._files]:  # a copy: slots are made by several threads
            if not file.exists():  # it has become a version
                self._files.discard(file)
        return slot

    def close(self) -> None:
        """Remove the files that became no version, unless in a forked child, whose files they are not."""
        if os.getpid() == self._process:
            for path in [*self._files]:
                self._remove(path)

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def _map(path: Path, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, size)
        # Writing into a hole takes space; when none is left, the process would be killed.
        os.posix_fallocate(descriptor, 0, size)
        # Fault all pages in now, in the background, not one by one while the training waits for the copy.
        memory = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
    finally:
        os.close(descriptor)
    memory.madvise(mmap.MADV_DONTFORK)
    return memory
