"""Host memory laid out as the file: page-aligned, one slot per checkpoint in flight.

What is copied is sent while the rest is still being copied; :class:`FillProgress` tracks the
progress.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from deepvm.checkpoint.format.checksums import crc32, seal
from deepvm.checkpoint.format.layout import Layout, Ranges, Segment, within
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.errors import CheckpointError

GROUP_BYTES = 8 * 2**20
"""Bytes per piece and usually per group: tiers start early, and overhead stays hidden."""
_COPY_S = 600.0
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""MAP_NORESERVE: address space, however little memory there is."""

Sources = Sequence[torch.Tensor | None]
"""Each storage as a tensor of bytes, None where it has none."""


class Piece(NamedTuple):
    """The bytes of a storage that this rank copies: ``length`` bytes from ``start``.

    ``place`` is where they belong in the storage as the file has it, which is whole; this rank may
    have a part.
    """

    storage: int
    start: int
    length: int
    place: int

    def of(self, sources: Sources) -> torch.Tensor:
        """Its bytes."""
        source = sources[self.storage]
        assert source is not None
        return source[self.start : self.start + self.length]


def address_space(size: int, *, sparse: bool) -> mmap.mmap:
    """Memory for a file; ``sparse``: it is filled only in part and may exceed the RAM."""
    # Private, a third faster to copy into than Python's default. Finding huge pages would take half
    # a second in fragmented memory, and gain nothing.
    return mmap.mmap(
        -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_NO_RESERVE if sparse else 0)
    )


def pieces_of(image: Image, layout: Layout, rank: int) -> tuple[Piece, ...]:
    """The pieces of storages in a rank's share, in file order, at most a group each."""
    order = sorted(range(len(image.storages)), key=image.storages.__getitem__)
    return tuple(
        Piece(number, run.start + at, min(GROUP_BYTES, stop - at), run.place + at)
        for number in order
        for run in image.runs(number)
        for start, stop in within(
            Segment(image.storages[number] + run.place, run.length), layout.shards[rank]
        )
        for at in range(start, stop, GROUP_BYTES)
    )


def groups(
    pieces: Sequence[Piece], sources: Sources, which: Sequence[int], limit: int | None = None
) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
    """Consecutive pieces of one device, together no larger than a group: their numbers and bytes.

    ``limit``: make at most this many groups for one device, and one more; groups grow where more
    would be needed.
    """
    largest = GROUP_BYTES
    whole = sum(pieces[number].length for number in which)
    # Each group may end just before a piece that fills it
    if limit is not None and 2 * whole > limit * GROUP_BYTES:
        largest += whole // limit
    numbers: list[int] = []
    parts: list[torch.Tensor] = []
    size = 0
    for number in which:
        part = pieces[number].of(sources)
        if numbers and (part.device != parts[0].device or size + len(part) > largest):
            yield numbers, parts
            numbers = []
            parts = []
            size = 0
        numbers.append(number)
        parts.append(part)
        size += len(part)
    if numbers:
        yield numbers, parts


class Slot:
    """Memory for one checkpoint: the whole file's address space; a rank touches its share.

    Attributes:
        image: how the file looks. pieces: what this rank copies. targets: where each piece goes, as
            a tensor of bytes.
        view: the memory. end: where the rank's share of it ends. home: the hidden file that it
            maps, if any.
        on_release: called before the memory is given back.
    """

    def __init__(
        self,
        image: Image,
        layout: Layout | None = None,
        rank: int = 0,
        *,
        memory: mmap.mmap | None = None,
    ) -> None:
        """Take memory, unless given, and write everything but tensors and numbers into it."""
        self.image = image
        self.home: Path | None = None
        self.on_release: Callable[[], None] = lambda: None
        layout = image.layout() if layout is None else layout
        self.pieces = pieces_of(image, layout, rank)
        if memory is None:
            memory = address_space(image.size, sparse=bool(image.regions))
        # If DataLoader workers inherited it, each write would copy a page first
        memory.madvise(mmap.MADV_DONTFORK)
        self._memory = memory
        self.view = memoryview(memory)
        page = mmap.PAGESIZE
        size = image.size
        self.end = max((o + n for o, n in layout.shards[rank]), default=size)
        self._pages = Ranges(
            (o // page * page, min(-(-(o + n) // page) * page, size))
            for o, n in layout.shards[rank]
        )
        for offset, data in image.pieces:
            for start, stop in within(Segment(offset, len(data)), layout.shards[rank]):
                self.view[offset + start : offset + stop] = data[start:stop]
        self.targets = [
            torch.frombuffer(
                self._memory, dtype=torch.uint8, count=piece.length, offset=self.offset(number)
            )
            for number, piece in enumerate(self.pieces)
        ]

    def offset(self, number: int) -> int:
        """Where a piece goes in the file."""
        piece = self.pieces[number]
        return self.image.storages[piece.storage] + piece.place

    @property
    def address(self) -> int:
        """Address of the memory."""
        return torch.frombuffer(self._memory, dtype=torch.uint8, count=1).data_ptr()

    @property
    def pages(self) -> list[tuple[int, int]]:
        """Addresses and lengths of what this rank fills, in whole pages."""
        return [(self.address + start, end - start) for start, end in self._pages]

    def touch(self) -> None:
        """Fault every page in, which takes as long as a copy, but not the training's time."""
        torch.frombuffer(self._memory, dtype=torch.uint8)[:: mmap.PAGESIZE].bitwise_or_(0)

    def release(self) -> None:
        """Release the memory, now or when its last reader does."""
        self.on_release()
        self.on_release = lambda: None
        self.targets = []
        with contextlib.suppress(BufferError):  # it is still being read
            self.view.release()
            self._memory.close()

    def copy(
        self,
        sources: Sources,
        which: Sequence[int],
        reached: Callable[[int], None] = lambda end: None,
    ) -> None:
        """Copy pieces (ascending) into place; releases the GIL meanwhile.

        ``reached`` is called before each group, and at the end, with the file offset below which
        these are copied.
        """
        for numbers, parts in groups(self.pieces, sources, which):
            reached(self.offset(numbers[0]))
            torch._foreach_copy_([self.targets[number] for number in numbers], parts)
        reached(len(self.view))


class FillProgress:
    """How far a slot is filled: the copy reports, and senders wait for what they read next."""

    def __init__(self, image: memoryview, layout: Layout, *, shared: bool) -> None:
        """Nothing is filled yet.

        If several tiers read the image (``shared``), the file's checksums are filled in here: no
        tier sees bytes change that it has read.
        """
        self._change = threading.Condition()
        self._copied = self._sealed = 0
        self.error: CheckpointError | None = None
        self._sealing = threading.Lock()
        self._seal: Iterator[int] = seal(image, layout, ready=self._wait)
        self.ready = self._wait_sealed if shared else self._wait

    def reached(self, end: int) -> None:
        """This rank's bytes below this offset are copied."""
        with self._change:
            self._copied = max(self._copied, end)
            self._change.notify_all()

    def failed(self, error: CheckpointError) -> None:
        """The rest will never be copied."""
        with self._change:
            self.error = error
            self._change.notify_all()

    def _wait(self, end: int) -> None:
        if self._copied >= end:  # the usual case; it only grows
            return
        deadline = time.monotonic() + _COPY_S
        with self._change:
            while self._copied < end:
                if self.error is not None:
                    raise self.error
                if not self._change.wait(deadline - time.monotonic()):
                    raise CheckpointError(f"the copy of the version did not end in {_COPY_S:.0f} s")

    def _wait_sealed(self, end: int) -> None:
        if self._sealed >= end:
            return
        with self._sealing:
            while self._sealed < end:
                sealed = next(self._seal, None)
                if sealed is None:  # an earlier tier got the error, which ended the generator
                    raise CheckpointError(f"the copy of the version failed: {self.error}")
                self._sealed = sealed


def checksum(sources: Sources, pieces: Sequence[Piece]) -> int:
    """CRC-32 of parts of storages, in order, on any device."""
    crc = 0
    for piece in pieces:
        part = piece.of(sources).cpu()
        # Without numpy there is no other way to the bytes of a tensor that does not copy them.
        crc = crc32(
            memoryview((ctypes.c_ubyte * piece.length).from_address(part.data_ptr())).cast("B"), crc
        )
    return crc
