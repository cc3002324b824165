"""Zero-copy send: a tier reads tensors in place; they are copied only if that takes too long.

On the CPU a copy takes a fifth of the processor time of a version that goes to a memory node of the
same machine, and takes it from the training. So the gate stays shut while the version is sent.
Shortly before the training is expected to want it open, or when it does, all is copied: also what
was sent already, which may have to be sent again until the node has verified the whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import torch

from deepvm.checkpoint.snapshot.host_buffer import Slot, Sources

_LEAST_BYTES = 2**16
"""Smaller pieces are copied: a message might have thousands of them."""


@cache
def _array(length: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    """The type of so many bytes: to make one takes longer than to hash them."""
    return ctypes.c_ubyte * length


class ZeroCopySend:
    """The large ones of some pieces, read in place by a tier, while a thread waits to copy them.

    Attributes:
        lent: their numbers. rest: the numbers of the others, to be copied before :meth:`begin`.
        confirm: see :class:`deepvm.checkpoint.format.shard.ZeroCopySend`.
        moved: whether memory moved while it was read.
    """

    def __init__(
        self, slot: Slot, sources: Sources, which: Sequence[int], confirm: Callable[[], None]
    ) -> None:
        """Lend nothing yet; ``which``: the pieces (ascending), all in host memory."""
        self.confirm = confirm
        self.moved = False
        self.lent = [number for number in which if slot.pieces[number].length >= _LEAST_BYTES]
        self.rest = [number for number in which if slot.pieces[number].length < _LEAST_BYTES]
        self._slot = slot
        self._sources = sources
        self._starts: list[int] = []
        self._parts: list[torch.Tensor] = []
        self._change = threading.Condition()
        self._readers = 0
        self._open = self._wanted = self._over = False

    @classmethod
    def of(
        cls, slot: Slot, sources: Sources, which: Sequence[int], confirm: Callable[[], None]
    ) -> ZeroCopySend | None:
        """A loan, if there is anything to lend."""
        loan = cls(slot, sources, which, confirm)
        return loan if loan.lent else None

    def begin(self) -> None:
        """From now on the tier may read in place."""
        self._starts = [self._slot.offset(number) for number in self.lent]
        self._parts = [self._slot.pieces[number].of(self._sources) for number in self.lent]
        with self._change:
            self._open = True

    @contextlib.contextmanager
    def bytes(self, start: int, end: int) -> Iterator[list[memoryview]]:
        """See :class:`deepvm.checkpoint.format.shard.ZeroCopySend`."""
        with self._change:
            here = self._open
            self._readers += here
        read: list[tuple[torch.Tensor, int]] = []
        try:
            yield [*self._places(start, end, read)] if here else [self._slot.view[start:end]]
        finally:
            # A tensor that is given to another process gets new memory, and the old one is freed.
            self.moved = self.moved or any(part.data_ptr() != address for part, address in read)
            if here:
                with self._change:
                    self._readers -= 1
                    # Else no thread waits for this, and the copying thread would wake in vain
                    if not self._open:
                        self._change.notify_all()

    def _places(
        self, start: int, end: int, read: list[tuple[torch.Tensor, int]]
    ) -> Iterator[memoryview]:
        """The bytes of a range: of pieces sent in place, noted in ``read``, else of the slot."""
        for number in range(max(bisect_right(self._starts, start) - 1, 0), len(self._starts)):
            first = self._starts[number]
            part = self._parts[number]
            if first >= end:
                break
            if start < first:
                yield self._slot.view[start:first]
                start = first
            if start < first + len(part):
                address = part.data_ptr()
                read.append((part, address))
                # Without numpy there is no other way to the bytes of a tensor that does not copy
                # them.
                view = memoryview(_array(len(part)).from_address(address)).cast("B")
                yield view[start - first : end - first]
                start = first + len(part)
        if start < end:
            yield self._slot.view[start:end]

    @property
    def lending(self) -> bool:
        """Whether the tier may read in place."""
        return self._open

    def want(self) -> None:
        """Ask for the copy: the training has to continue."""
        with self._change:
            self._wanted = True
            self._change.notify_all()

    def over(self) -> None:
        """See :class:`deepvm.checkpoint.format.shard.ZeroCopySend`."""
        with self._change:
            self._over = True
            self._change.notify_all()

    def wanted(self, limit_s: float) -> bool:
        """Wait until the copy is wanted, or the time is over (True); or the tier has returned."""
        with self._change:
            self._change.wait_for(lambda: self._over or self._wanted, limit_s)
            return not self._over

    def end(self) -> None:
        """Return when no tier reads in place any more: what is still to be read is in the slot."""
        with self._change:
            self._open = False
            self._change.wait_for(lambda: not self._readers)
            self._sources = ()
            self._parts = []
            self._starts = []
