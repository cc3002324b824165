"""CRC-32 as in zip files: of bytes, of a checkpoint's chunks, and of the fields inside the file.

CRC-32s of neighbors combine without their bytes, so a memory node hashes each byte once, if it can.
"""

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout
from deepvm.records import dataclass

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

_combine: Callable[[int, int, int], int] | None = None
with contextlib.suppress(ImportError):  # isal is optional, and its older releases cannot
    from isal.isal_zlib import crc32_combine as _combine

UpTo: TypeAlias = Callable[[int], None]  # Gets an end: all bytes before it are ready, or awaited
STEP_BYTES = CHUNK_BYTES  # What seal() finishes at a time; campaigns make it small
_LEAST_PIECE = 1024  # Mean bytes between cuts; with less, hashing twice is cheaper than bookkeeping

HASHED_BYTES = 2**19  # Bytes received and hashed at a time: few enough to stay in the core's cache


def finish(image: memoryview, layout: Layout) -> None:
    """Fill in the checksums inside the file (zip's CRC-32 of each record)."""
    for _ in seal(image, layout):
        pass


def seal(
    image: memoryview,
    layout: Layout,
    crcs: list[int] | None = None,
    ready: UpTo = lambda end: None,
    summed: Callable[[int, int], int] | None = None,
) -> Iterator[int]:
    """Fill in the checksums inside the file, those of chunks into ``crcs``; yields what is final.

    ``ready`` waits until so many bytes are filled in; ``summed``: known CRC-32s of ranges.
    """
    summed = summed or (lambda offset, length: crc32(image[offset : offset + length]))
    fields = iter(sorted(layout.fields))
    field = next(fields, None)
    known: dict[tuple[int, int], int] = {}
    step = STEP_BYTES  # as it is now
    for start in range(0, len(image), step):
        end = min(start + step, len(image))
        ready(end)
        # No range contains a checksum (see Layout), so the order does not matter.
        while field is not None and field.position < end:
            position, offset, length = field
            # What arrives later must not overwrite the end of a checksum
            ready(min(position + 4, len(image)))
            # A zip file has each checksum twice: after the record and in the directory at the end.
            if (offset, length) not in known:
                ready(offset + length)  # a checksum may precede its record
                known[offset, length] = summed(offset, length)
            struct.pack_into("<I", image, position, known[offset, length])
            field = next(fields, None)
        if crcs is not None:
            crcs.append(crc32(image[start:end]))
        yield end


class CrcPiece(NamedTuple):
    """A verified range ``[start, end)`` without a cut inside, and its CRC-32."""

    start: int
    end: int
    crc: int


@dataclass(frozen=True)
class CrcBoundaries:
    """Where the pieces of a layout are cut: at each end of a record and of a chunk."""

    places: tuple[int, ...]
    usable: bool  # whether checksums are combined at all

    @classmethod
    def of(cls, layout: Layout) -> "CrcBoundaries":
        ranges = sorted({(f.offset, f.offset + f.length) for f in layout.fields})
        apart = all(before[1] <= after[0] for before, after in pairwise(ranges))
        few = len(ranges) * _LEAST_PIECE <= layout.size
        if _combine is None or not apart or not few:
            return cls((), False)
        places = {place for ends in ranges for place in ends}
        return cls(tuple(sorted(places.union(range(0, layout.size, CHUNK_BYTES)))), True)

    def pieces(
        self, view: memoryview, start: int, ready: UpTo = lambda end: None
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
    """CRC-32 of neighbors together."""
    left = iter(pieces)
    crc = next(left, CrcPiece(0, 0, 0)).crc
    for start, end, part in left:
        assert _combine is not None
        crc = _combine(crc, part, end - start)
    return crc


class PieceSums:
    """The checksums of a file's verified pieces, by where they start."""

    def __init__(self, image: memoryview, pieces: Iterable[CrcPiece] = ()) -> None:
        self._image = image
        self._pieces: dict[int, CrcPiece] = {}
        self.add(pieces)

    def add(self, pieces: Iterable[CrcPiece]) -> None:
        self._pieces.update((piece.start, piece) for piece in pieces if piece.end > piece.start)

    def of(self, offset: int, length: int) -> int:
        """CRC-32 of a range: joined from its pieces, or hashed if they are not known."""
        crc = 0
        at = offset
        while _combine is not None and (piece := self._pieces.get(at)) and at < offset + length:
            if at == offset:  # joining takes longer than hashing 30 kB
                crc = piece.crc
            else:
                crc = _combine(crc, piece.crc, piece.end - at)
            at = piece.end
        if at == offset + length:
            return crc
        return crc32(self._image[offset : offset + length])

    def hash_again(self, positions: Iterable[int]) -> None:
        starts = sorted(self._pieces)
        for number in {bisect_right(starts, position) - 1 for position in positions}:
            if number >= 0:
                start, end, _ = self._pieces[starts[number]]
                self._pieces[start] = CrcPiece(start, end, crc32(self._image[start:end]))


def seal_by_parts(image: memoryview, layout: Layout, parts: Iterable[CrcPiece]) -> tuple[int, ...]:
    """As :func:`seal`, from verified pieces in any order; returns the chunks' CRC-32s."""
    sums = PieceSums(image, parts)
    known = {record: sums.of(*record) for record in {(f.offset, f.length) for f in layout.fields}}
    for position, offset, length in layout.fields:
        struct.pack_into("<I", image, position, known[offset, length])
    sums.hash_again(f.position + n for f in layout.fields for n in range(4))
    size = layout.size
    return tuple(sums.of(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES))
