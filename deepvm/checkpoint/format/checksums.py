"""The bytes of one version in memory: filling in its checksums, and hashing it chunk by chunk."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from deepvm.checkpoint.format.crc import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout


def finish(image: memoryview, layout: Layout) -> None:
    """Fill in the checksums that the file itself holds (zip's CRC-32 of each record); doing it twice changes nothing.

    Args:
        image: the whole file, writable.
        layout: which checksums stand where.
    """
    for _ in seal(image, layout):
        pass


def chunk_crcs(image: memoryview, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """CRC-32 of each chunk of a file; the last may be shorter."""
    return tuple(crc32(image[start : start + chunk_bytes]) for start in range(0, len(image), chunk_bytes))


def seal(
    image: memoryview,
    layout: Layout,
    crcs: list[int] | None = None,
    chunk_bytes: int | None = None,
    ready: Callable[[int], None] = lambda end: None,
    summed: Callable[[int, int], int] | None = None,
) -> Iterator[int]:
    """:func:`finish` and :func:`chunk_crcs` at once, chunk by chunk: one can be sent while the next is made.

    Args:
        image: the whole file, writable.
        layout: which checksums stand where.
        crcs: gets the CRC-32 of each chunk.
        chunk_bytes: bytes of a chunk, ``CHUNK_BYTES`` unless given.
        ready: waits until so many bytes from the start were filled in, but for checksums; all were unless given.
        summed: the CRC-32 of so many bytes (the second number) from a place on, where somebody knows it already.

    Yields:
        How many bytes from the start are what they will be.
    """
    chunk_bytes = CHUNK_BYTES if chunk_bytes is None else chunk_bytes
    summed = summed or (lambda offset, length: crc32(image[offset : offset + length]))
    fields = iter(sorted(layout.fields))
    field = next(fields, None)
    known: dict[tuple[int, int], int] = {}
    for start in range(0, len(image), chunk_bytes):
        end = min(start + chunk_bytes, len(image))
        ready(end)
        # Layout sees to it that no range holds a checksum: the order in which they are filled in does not matter.
        while field is not None and field.position < end:
            position, offset, length = field
            ready(min(position + 4, len(image)))  # what comes later must not come over the end of a checksum
            # Each record has its checksum twice in a zip file: behind its data and in the directory at the end.
            if (offset, length) not in known:
                ready(offset + length)  # a checksum may stand before its record
                known[offset, length] = summed(offset, length)
            struct.pack_into("<I", image, position, known[offset, length])
            field = next(fields, None)
        if crcs is not None:
            crcs.append(crc32(image[start:end]))
        yield end
