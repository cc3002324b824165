"""Checksums of a whole version from those of its pieces: each byte is hashed once, when it arrives.

CRC-32s of neighbours combine without their bytes. Pieces are cut where a record or a chunk of the
manifest begins or ends; what was verified on its way is then what the manifest vouches for. The
result is that of :func:`deepvm.checkpoint.format.checksums.seal`, which is used where a layout is
odd or no library combines checksums.
"""

from __future__ import annotations

import contextlib
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from deepvm.checkpoint.format.checksums import chunk_crcs, crc32, finish
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
    """Where the pieces of a layout are cut, and what follows.

    ``usable``: whether checksums are combined at all.

    Attributes:
        places: the cuts, sorted. The bytes from each to the next, or to the end, are *sections*.
        records: the first section of each range with a checksum, and the one behind its last.
        fields: where checksums go, and of which record. changed: sections that they lie in.
        chunks: the first section of each chunk of the manifest, and the one behind the last.
    """

    places: tuple[int, ...]
    usable: bool
    records: tuple[tuple[int, int], ...] = ()
    fields: tuple[tuple[int, int], ...] = ()
    changed: tuple[int, ...] = ()
    chunks: tuple[int, ...] = ()

    @classmethod
    def of(cls, layout: Layout) -> CrcBoundaries:
        """Find them, once for all versions of a layout."""
        ranges = sorted({(f.offset, f.offset + f.length) for f in layout.fields})
        apart = all(before[1] <= after[0] for before, after in pairwise(ranges))
        few = len(ranges) * _LEAST_PIECE <= layout.size
        if _combine is None or not apart or not few:
            return cls((), False)
        chunks = range(0, layout.size, CHUNK_BYTES)
        places = tuple(sorted(({p for r in ranges for p in r} | {*chunks}) - {layout.size}))
        section = {place: number for number, place in enumerate((*places, layout.size))}
        number = {r: n for n, r in enumerate(ranges)}
        changed = {
            n
            for f in layout.fields
            for n in range(_within(places, f.position), _within(places, f.position + 3) + 1)
        }
        return cls(
            places,
            True,
            tuple((section[start], section[end]) for start, end in ranges),
            tuple((f.position, number[f.offset, f.offset + f.length]) for f in layout.fields),
            tuple(sorted(changed)),
            (*(section[at] for at in chunks), len(places)),
        )

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


def seal_by_parts(
    image: memoryview, layout: Layout, cuts: CrcBoundaries, parts: Iterable[CrcPiece]
) -> tuple[int, ...]:
    """Fill in a file's checksums from verified pieces, in any order.

    Returns the CRC-32 of each ``CHUNK_BYTES``.
    """
    pieces = sorted(parts) if cuts.usable else []
    # One is missing, or came twice
    if [0, *(p.end for p in pieces)] != [*(p.start for p in pieces), len(image)]:
        finish(image, layout)
        return chunk_crcs(image)
    ends = (*cuts.places[1:], len(image))
    # The trainers wait for this: all that the layout alone decides was found out before.
    sums: list[int] = []
    done = 0
    for start, end, crc in pieces:
        if start == done:
            sums.append(crc)
            done = ends[len(sums) - 1]
        else:
            assert _combine is not None
            sums[-1] = _combine(sums[-1], crc, end - start)
    known = [_joined(sums, ends, first, last) for first, last in cuts.records]
    for position, record in cuts.fields:
        _FIELD.pack_into(image, position, known[record])
    for number in cuts.changed:
        sums[number] = crc32(image[cuts.places[number] : ends[number]])
    return tuple(_joined(sums, ends, first, last) for first, last in pairwise(cuts.chunks))


def _joined(sums: Sequence[int], ends: Sequence[int], first: int, last: int) -> int:
    """CRC-32 of the sections ``first`` to ``last - 1``, 0 of none."""
    crc = sums[first] if first < last else 0
    for number in range(first + 1, last):
        assert _combine is not None
        crc = _combine(crc, sums[number], ends[number] - ends[number - 1])
    return crc


def _within(places: Sequence[int], position: int) -> int:
    """The section that a byte lies in."""
    return bisect_right(places, position) - 1
