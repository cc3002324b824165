"""Write a version to disk while it is still being received.

The disk then has most of a version when its last byte comes. That is a favour: it is given up for whatever needs the
disk or the memory more, and the version is written when it is complete, as any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from deepvm.checkpoint.format.checksums import crc32, seal
from deepvm.checkpoint.format.crc_combine import Atom, total
from deepvm.checkpoint.node.eviction import VersionMemory
from deepvm.checkpoint.node.versions import State, Version
from deepvm.errors import CheckpointError

LEAST_BYTES = 32 * 2**20
"""Of a smaller version the disk has too little to do."""
_SILENCE_S = 1.0
_POLL_S = 0.004  # settling a piece wakes nobody: that would cost more than the piece


class GivenUpError(CheckpointError):
    """The version will not be written now."""


class PartialVersion:
    """The bytes of a version, from the first on, as they become final."""

    def __init__(self, memory: VersionMemory, version: Version) -> None:
        """Observe a version that the caller has pinned."""
        self._memory, self._version = memory, version
        self._renewed, self._here, self._taken = version.renewed, 0, 0
        self._atoms: dict[int, Atom] = {}
        self.complete_s = 0.0

    def final(self) -> Iterator[int]:
        """Yield how many bytes from the start are final; all of them once the version is complete.

        ``complete_s`` then tells when that was seen, monotonic.

        Raises:
            GivenUpError: nothing comes, it will not become complete, or a complete one waits for the disk.
        """
        size = self._version.plan.layout.size
        for end in seal(self._version.image, self._version.plan.layout, ready=self._wait, summed=self._sum):
            if end < size:
                yield end
        with self._memory.changed:
            self._heed()
            while self._version.state is not State.COMPLETE:
                self._memory.changed.wait(_SILENCE_S)
                self._heed()
        self.complete_s = time.monotonic()
        yield size

    def _wait(self, end: int) -> None:
        """Until the bytes below ``end`` are verified."""
        version, last = self._version, time.monotonic()
        with self._memory.changed:
            self._heed()
            while self._here < end:
                here = version.plan.layout.size if version.state is State.COMPLETE else version.reach(self._here)
                if here > self._here:
                    self._here, last = here, time.monotonic()
                elif time.monotonic() > last + _SILENCE_S:
                    raise GivenUpError(f"nothing comes of version {version.number}")
                else:
                    self._memory.changed.wait(_POLL_S)
                    self._heed()
            self._atoms.update((atom.start, atom) for atom in version.atoms[self._taken :])
            self._taken = max(self._taken, len(version.atoms))

    def _heed(self) -> None:
        """Raise GivenUpError if it is time to; the caller has the lock."""
        version = self._version
        if version.renewed != self._renewed:
            raise GivenUpError(f"some of version {version.number} came anew")
        if version.state is State.COMPLETE:
            return
        if version.state is State.DROPPED or self._memory.closed or self._memory.given_up(version):
            raise GivenUpError(f"version {version.number} will not be complete")
        if self._memory.queue:
            raise GivenUpError("complete versions go first")

    def _sum(self, offset: int, length: int) -> int:
        """CRC-32 of verified bytes; of most it was computed when they came."""
        found, at = [], offset
        if self._version.plan.cuts.usable:  # else nobody could join them
            while at < offset + length and (atom := self._atoms.get(at)) is not None:
                found.append(atom)
                at = atom.end
        return total(found) if found and at == offset + length else crc32(self._version.image[offset : offset + length])
