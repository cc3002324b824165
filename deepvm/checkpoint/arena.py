"""Memory that is the image of a file: page-aligned, filled in the background, one slot for each version under way."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import torch

from deepvm.checkpoint.crc import crc32
from deepvm.checkpoint.format import Image
from deepvm.checkpoint.layout import Layout, Segment

GROUP_BYTES = 8 * 2**20
"""Bytes that one call copies: few enough that a waiting trainer is let go soon, many enough to hide the call."""


class Piece(NamedTuple):
    """A part of a storage that this rank copies: bytes ``start`` to ``start + length`` of storage ``storage``."""

    storage: int
    start: int
    length: int


def pieces_of(image: Image, layout: Layout, rank: int) -> tuple[Piece, ...]:
    """The parts of storages that lie in a rank's share of the file."""
    return tuple(
        Piece(number, start, stop - start)
        for number, (offset, size) in enumerate(zip(image.storages, image.sizes, strict=True))
        for start, stop in _within(Segment(offset, size), layout.shards[rank])
    )


def _within(part: Segment, shares: Sequence[Segment]) -> list[tuple[int, int]]:
    """The ranges of a part, counted from its start, that lie in the shares."""
    found = []
    for share in shares:
        start = max(part.offset, share.offset)
        stop = min(part.offset + part.length, share.offset + share.length)
        if start < stop:
            found.append((start - part.offset, stop - part.offset))
    return found


class Slot:
    """Memory for one version: the address space of the whole file, of which a rank touches its own share."""

    def __init__(self, image: Image, layout: Layout | None = None, rank: int = 0) -> None:
        """Take memory and write everything but tensors and numbers into it.

        Args:
            image: how the file looks.
            layout: who sends what; one rank sends all unless given.
            rank: whose slot it is.
        """
        self.image = image
        layout = image.layout() if layout is None else layout
        self.pieces = pieces_of(image, layout, rank)
        # Whole pages, so that the file can be written past the page cache. Private, which is a third faster to copy
        # into than Python's default; the workers of a DataLoader must then not inherit it, or each write would copy a
        # page first. No huge pages: finding them takes half a second where memory is fragmented, and gains nothing.
        size = -(-image.size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory.madvise(mmap.MADV_DONTFORK)
        self.view = memoryview(self._memory)[: image.size]
        for offset, data in image.pieces:
            for start, stop in _within(Segment(offset, len(data)), layout.shards[rank]):
                self.view[offset + start : offset + stop] = data[start:stop]
        self._targets = [
            torch.frombuffer(
                self._memory, dtype=torch.uint8, count=p.length, offset=image.storages[p.storage] + p.start
            )
            for p in self.pieces
        ]

    def copy(self, sources: Sequence[torch.Tensor | None], which: Sequence[int]) -> None:
        """Copy pieces into their places; releases the interpreter's lock while it copies.

        Args:
            sources: each storage as bytes, None where it has none.
            which: the numbers of the pieces to copy.
        """
        into: list[torch.Tensor] = []
        out: list[torch.Tensor] = []
        size = 0
        for number in which:
            piece = self.pieces[number]
            source = sources[piece.storage]
            assert source is not None
            into.append(self._targets[number])
            out.append(source[piece.start : piece.start + piece.length])
            size += piece.length
            if size >= GROUP_BYTES:
                torch._foreach_copy_(into, out)
                into, out, size = [], [], 0
        if into:
            torch._foreach_copy_(into, out)


def checksum(sources: Sequence[torch.Tensor | None], pieces: Sequence[Piece]) -> int:
    """CRC-32 of parts of storages, one after the other, wherever they are."""
    crc = 0
    for piece in pieces:
        source = sources[piece.storage]
        assert source is not None
        part = source[piece.start : piece.start + piece.length].cpu()
        # Without numpy there is no other way to the bytes of a tensor that does not copy them.
        crc = crc32(memoryview((ctypes.c_ubyte * piece.length).from_address(part.data_ptr())).cast("B"), crc)
    return crc


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor | None:
    """A storage as a tensor of bytes that shares its memory; None when it is empty."""
    if not storage.nbytes():
        return None
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
