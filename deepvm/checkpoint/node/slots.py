"""A pool of page-aligned memory for versions: allocated on demand, reused, limited."""

from __future__ import annotations

import mmap

from deepvm.checkpoint.network.protocol import Refused

LEAST_SLOTS = 2
"""The newest complete version stays while the next one arrives."""


class Slot:
    """Memory for one version. ``size``: bytes, whole pages."""

    def __init__(self, size: int) -> None:
        """Map the memory; the system gives the pages when they are first written."""
        self.size = size
        # No huge pages: where memory is fragmented, finding them takes ten times as long as small ones do.
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)


class Pool:
    """All slots of a node. Not locked: the registry does that.

    Attributes:
        limit: bytes that all slots together may have. allocated: bytes that they have. free: slots that nobody uses.
    """

    def __init__(self, limit: int) -> None:
        """Start without slots."""
        self.limit, self.allocated = limit, 0
        self.free: list[Slot] = []

    def check(self, size: int) -> None:
        """Refuse an image of which fewer than two fit.

        Raises:
            Refused: naming the numbers.
        """
        if self.limit // _pages(size) < LEAST_SLOTS:
            raise Refused(
                "layout",
                f"a version has {size} bytes and the node's memory of {self.limit} bytes holds "
                f"{self.limit // _pages(size)} of that size; it needs room for {LEAST_SLOTS}: "
                f"start it with --memory {-(-LEAST_SLOTS * _pages(size) // 2**20)}MiB or more",
            )

    def used(self, size: int) -> Slot | None:
        """A free slot for ``size`` bytes that was used before, None when there is none."""
        size = _pages(size)
        return next((self.free.pop(n) for n, slot in enumerate(self.free) if slot.size == size), None)

    def take(self, size: int) -> Slot | None:
        """A slot for ``size`` bytes, None while there is no room."""
        slot = self.used(size)
        if slot is not None:
            return slot
        size = _pages(size)
        while self.allocated + size > self.limit and self.free:  # slots of an earlier layout
            self.allocated -= self.free.pop().size
        if self.allocated + size > self.limit:
            return None
        slot = Slot(size)
        self.allocated += size
        return slot

    def give(self, slot: Slot) -> None:
        """Take a slot back."""
        self.free.append(slot)


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
