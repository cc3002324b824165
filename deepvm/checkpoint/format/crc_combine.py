"""Checksums of a whole version from those of its pieces: each byte is hashed once, when it arrives.

CRC-32s of neighbours combine without their bytes. Pieces are cut where a record or a chunk of the
manifest begins or ends; what was verified on its way is then what the manifest vouches for. The
result is that of :func:`deepvm.checkpoint.format.checksums.seal`. Bytes are hashed again where a
layout is odd or no library combines checksums.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout

_LEAST_PIECE = 1024
"""Mean bytes between cuts; with less, hashing twice is cheaper than bookkeeping."""

HASHED_BYTES = 2**19
"""Bytes received and hashed at a time: few enough to stay in the core's cache."""

_FIELD = struct.Struct("<I")


class CrcPiece(NamedTuple):
    """A verified range ``[start, end)`` without a cut inside, and its CRC-32."""

    start: int
    end: int
    crc: int


_combine: Callable[[int, int, int], int] | None = None
with contextlib.suppress(ImportError):  # isal is optional, and its older releases cannot
    from isal.isal_zlib import crc32_combine as _combine


@dataclass(frozen=True)
class CrcBoundaries:
    """Where the pieces of a layout are cut: at each end of a record and of a chunk.

    ``usable``: whether checksums are combined at all.
    """

    places: tuple[int, ...]
    usable: bool

    @classmethod
    def of(cls, layout: Layout) -> CrcBoundaries:
        """Find them, once for all versions of a layout."""
        ranges = sorted({(f.offset, f.offset + f.length) for f in layout.fields})
        apart = all(before[1] <= after[0] for before, after in pairwise(ranges))
        few = len(ranges) * _LEAST_PIECE <= layout.size
        if _combine is None or not apart or not few:
            return cls((), False)
        places = {place for ends in ranges for place in ends}
        return cls(tuple(sorted(places.union(range(0, layout.size, CHUNK_BYTES)))), True)

    def pieces(
        self, view: memoryview, start: int, ready: Callable[[int], None] = lambda end: None
    ) -> tuple[CrcPiece, ...]:
        """Hash the piece at ``start``; ``ready(end)`` waits until the bytes up to ``end`` exist."""
        end = start + len(view)
        inner = self.places[bisect_right(self.places, start) : bisect_left(self.places, end)]
        found = []
        for first, last in pairwise((start, *inner, end)):
            crc = 0
            for at in range(first, last, HASHED_BYTES):
                stop = min(at + HASHED_BYTES, last)
                ready(stop - start)
                crc = crc32(view[at - start : stop - start], crc)
            found.append(CrcPiece(first, last, crc))
        return tuple(found)


def total(pieces: Iterable[CrcPiece]) -> int:
    """CRC-32 of neighbours together."""
    left = iter(pieces)
    crc = next(left, CrcPiece(0, 0, 0)).crc
    for start, end, part in left:
        assert _combine is not None
        crc = _combine(crc, part, end - start)
    return crc


class PieceSums:
    """The checksums of a file's verified pieces, by where they start."""

    def __init__(self, image: memoryview, pieces: Iterable[CrcPiece] = ()) -> None:
        """Know these."""
        self._image = image
        self._pieces: dict[int, CrcPiece] = {}
        self.add(pieces)

    def add(self, pieces: Iterable[CrcPiece]) -> None:
        """Know more of them."""
        self._pieces.update((piece.start, piece) for piece in pieces if piece.end > piece.start)

    def of(self, offset: int, length: int) -> int:
        """CRC-32 of a range: joined from its pieces, or hashed if they are not known."""
        crc = 0
        at = offset
        while _combine is not None and (piece := self._pieces.get(at)) and at < offset + length:
            first = at == offset  # joining takes longer than hashing 30 kB
            if first:
                crc = piece.crc
            else:
                crc = _combine(crc, piece.crc, piece.end - at)
            at = piece.end
        if at == offset + length:
            return crc
        return crc32(self._image[offset : offset + length])

    def hash_again(self, positions: Iterable[int]) -> None:
        """The bytes at these positions have changed."""
        starts = sorted(self._pieces)
        for number in {bisect_right(starts, position) - 1 for position in positions}:
            if number >= 0:
                start, end, _ = self._pieces[starts[number]]
                self._pieces[start] = CrcPiece(start, end, crc32(self._image[start:end]))


def seal_by_parts(image: memoryview, layout: Layout, parts: Iterable[CrcPiece]) -> tuple[int, ...]:
    """Fill in a file's checksums from verified pieces, in any order.

    Returns the CRC-32 of each ``CHUNK_BYTES``.
    """
    sums = PieceSums(image, parts)
    known = {record: sums.of(*record) for record in {(f.offset, f.length) for f in layout.fields}}
    for position, offset, length in layout.fields:
        _FIELD.pack_into(image, position, known[offset, length])
    sums.hash_again(at for f in layout.fields for at in (f.position, f.position + 3))
    size = layout.size
    return tuple(sums.of(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES))
