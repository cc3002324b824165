"""Host memory laid out as the file: page-aligned, one slot per checkpoint in flight."""

import contextlib
import ctypes
import mmap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from deepvm.checkpoint.format.checksums import UpTo, crc32, seal
from deepvm.checkpoint.format.layout import Layout, Ranges, Segment, within
from deepvm.checkpoint.format.torch_zip import Image
from deepvm.errors import CheckpointError

# Bytes per piece and usually per group: tiers start early, and overhead stays hidden
GROUP_BYTES = 8 * 2**20
_COPY_S = 600.0
_NO_RESERVE = 0x4000  # MAP_NORESERVE: address space, however little memory there is

Sources = Sequence[Tensor | None]  # Each storage as a tensor of bytes, None where it has none


class Piece(NamedTuple):
    """``length`` bytes of a storage from ``start`` that this rank copies."""

    storage: int
    start: int
    length: int
    place: int  # where they belong in the storage as the file has it, which is whole

    def of(self, sources: Sources) -> Tensor:
        source = sources[self.storage]
        assert source is not None
        return source[self.start : self.start + self.length]


def address_space(size: int, *, sparse: bool) -> mmap.mmap:
    """Memory for a file; ``sparse``: it is filled only in part and may exceed the RAM."""
    # Private, a third faster to copy into than Python's default; huge pages would gain nothing
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sparse:
        flags |= _NO_RESERVE
    return mmap.mmap(-1, size, flags=flags)


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
) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Consecutive pieces of one device, together no larger than a group: their numbers and bytes.

    ``limit``: of groups for one device, and one more; groups grow where more would be needed.
    """
    largest = GROUP_BYTES
    whole = sum(pieces[number].length for number in which)
    # Each group may end just before a piece that fills it
    if limit is not None and 2 * whole > limit * GROUP_BYTES:
        largest += whole // limit
    numbers: list[int] = []
    parts: list[Tensor] = []
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
    """Memory for one checkpoint: the whole file's address space; a rank touches its share."""

    def __init__(
        self,
        image: Image,
        layout: Layout | None = None,
        rank: int = 0,
        *,
        memory: mmap.mmap | None = None,
    ) -> None:
        self.image = image
        self.home: Path | None = None  # the hidden file that it maps, if any
        self.on_release: Callable[[], None] = lambda: None
        layout = layout or image.layout()
        self.pieces = pieces_of(image, layout, rank)
        if memory is None:
            memory = address_space(image.size, sparse=bool(image.regions))
        # If DataLoader workers inherited it, each write would copy a page first
        memory.madvise(mmap.MADV_DONTFORK)
        self._memory = memory
        self.address = torch.frombuffer(memory, dtype=torch.uint8, count=1).data_ptr()
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
        piece = self.pieces[number]
        return self.image.storages[piece.storage] + piece.place

    @property
    def pages(self) -> list[tuple[int, int]]:
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
        self, sources: Sources, which: Sequence[int], reached: UpTo = lambda end: None
    ) -> None:
        """Copy pieces (ascending); ``reached`` gets the file offset below which they are copied."""
        for numbers, parts in groups(self.pieces, sources, which):
            reached(self.offset(numbers[0]))
            torch._foreach_copy_([self.targets[number] for number in numbers], parts)
        reached(len(self.view))


class FillProgress:
    """How far a slot is filled: the copy reports, senders wait for what they read next."""

    def __init__(self, image: memoryview, layout: Layout, *, shared: bool) -> None:
        """``shared``: several tiers read the image, so its checksums are filled in here."""
        self._change = threading.Condition()
        self._copied = self._sealed = 0
        self.error: CheckpointError | None = None
        self._sealing = threading.Lock()
        self._seal: Iterator[int] = seal(image, layout, ready=self._wait)
        self.ready = self._wait_sealed if shared else self._wait

    def reached(self, end: int) -> None:
        with self._change:
            self._copied = max(self._copied, end)
            self._change.notify_all()

    def failed(self, error: CheckpointError) -> None:
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
                    raise CheckpointError(
                        f"the copy of the checkpoint did not end in {_COPY_S:.0f} s"
                    )

    def _wait_sealed(self, end: int) -> None:
        if self._sealed >= end:
            return
        with self._sealing:
            while self._sealed < end:
                sealed = next(self._seal, None)
                if sealed is None:  # an earlier tier got the error, which ended the generator
                    raise CheckpointError(f"the copy of the checkpoint failed: {self.error}")
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
