"""The bytes of one version in memory: filling in its checksums, and hashing it chunk by chunk."""

from __future__ import annotations

import struct

from deepvm.checkpoint.crc import crc32
from deepvm.checkpoint.layout import CHUNK_BYTES, Layout


def finish(image: memoryview, layout: Layout) -> None:
    """Fill in the checksums that the file itself holds (zip's CRC-32 of each record); doing it twice changes nothing.

    Args:
        image: the whole file, writable.
        layout: which checksums stand where.
    """
    known: dict[tuple[int, int], int] = {}
    for position, offset, length in layout.fields:
        # Each record has its checksum twice in a zip file: behind its data and in the directory at the end.
        if (offset, length) not in known:
            known[offset, length] = crc32(image[offset : offset + length])
        struct.pack_into("<I", image, position, known[offset, length])


def chunk_crcs(image: memoryview, chunk_bytes: int = CHUNK_BYTES) -> tuple[int, ...]:
    """CRC-32 of each chunk of a file; the last may be shorter."""
    return tuple(crc32(image[start : start + chunk_bytes]) for start in range(0, len(image), chunk_bytes))
