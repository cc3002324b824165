"""Checksums of a whole version from those of its pieces: each byte is hashed once, when it arrives.

CRC-32s of neighbours combine without their bytes. Pieces are cut where a record or a chunk of the manifest begins or
ends; what was verified on its way is then what the manifest vouches for. The result is that of
:func:`deepvm.checkpoint.format.checksums.seal`, which is used where a layout is odd or no library combines checksums.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from deepvm.checkpoint.format.checksums import chunk_crcs, crc32, finish
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout

_LEAST_PIECE = 1024
"""Mean bytes between cuts; with less, hashing twice is cheaper than bookkeeping."""


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
    """Where the pieces of a layout are cut, sorted. ``usable``: whether checksums are to be combined at all."""

    places: tuple[int, ...]
    usable: bool

    @classmethod
    def of(cls, layout: Layout) -> CrcBoundaries:
        """Find them."""
        ranges = sorted({(f.offset, f.offset + f.length) for f in layout.fields})
        apart = all(before[1] <= after[0] for before, after in pairwise(ranges))
        few = len(ranges) * _LEAST_PIECE <= layout.size
        if _combine is None or not apart or not few:
            return cls((), False)
        places = {p for r in ranges for p in r} | set(range(0, layout.size, CHUNK_BYTES))
        return cls(tuple(sorted(places)), True)

    def pieces(self, view: memoryview, start: int) -> tuple[CrcPiece, ...]:
        """Hash a piece of the file that stands at ``start``."""
        end = start + len(view)
        inner = self.places[bisect_right(self.places, start) : bisect_left(self.places, end)]
        borders = (start, *inner, end)
        return tuple(CrcPiece(a, b, crc32(view[a - start : b - start])) for a, b in pairwise(borders))


def total(pieces: Iterable[CrcPiece]) -> int:
    """CRC-32 of neighbours together."""
    left = iter(pieces)
    crc = next(left, CrcPiece(0, 0, 0)).crc
    for start, end, part in left:
        assert _combine is not None
        crc = _combine(crc, part, end - start)
    return crc


def seal_by_parts(image: memoryview, layout: Layout, cuts: CrcBoundaries, parts: Iterable[CrcPiece]) -> tuple[int, ...]:
    """Fill in a file's checksums from verified pieces, in any order; returns the CRC-32 of each ``CHUNK_BYTES``."""
    pieces = sorted(parts) if cuts.usable else []
    starts = [p.start for p in pieces]
    if [0, *(p.end for p in pieces)] != [*starts, len(image)]:  # something is missing, or came twice
        finish(image, layout)
        return chunk_crcs(image)
    known: dict[tuple[int, int], int] = {}
    changed: set[int] = set()
    for position, offset, length in layout.fields:
        if (offset, length) not in known:
            known[offset, length] = total(
                pieces[bisect_left(starts, offset) : bisect_left(starts, offset + length)] if length else ()
            )
        struct.pack_into("<I", image, position, known[offset, length])
        changed.update(range(bisect_right(starts, position) - 1, bisect_right(starts, position + 3)))
    for number in changed:
        start, end, _ = pieces[number]
        pieces[number] = CrcPiece(start, end, crc32(image[start:end]))
    chunks = range(0, len(image), CHUNK_BYTES)
    return tuple(total(pieces[bisect_left(starts, at) : bisect_left(starts, at + CHUNK_BYTES)]) for at in chunks)
