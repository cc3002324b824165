"""CRC-32 as in zip files: of bytes, of a checkpoint's chunks, and of the fields inside the file.

On one core of a 2024 Xeon: zlib 4 GB/s, isal 27 GB/s; both release the GIL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from deepvm.checkpoint.format.layout import CHUNK_BYTES, Layout

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32


def finish(image: memoryview, layout: Layout) -> None:
    """Fill in the checksums inside the file (zip's CRC-32 of each record). Idempotent."""
    for _ in seal(image, layout):
        pass


def seal(
    image: memoryview,
    layout: Layout,
    crcs: list[int] | None = None,
    ready: Callable[[int], None] = lambda end: None,
    summed: Callable[[int, int], int] | None = None,
) -> Iterator[int]:
    """:func:`finish`, and the CRC-32 of each chunk of the file, into ``crcs``, at once.

    Yields how many bytes from the start are final.

    ``ready`` waits until so many bytes from the start are filled in, except for checksums.
    ``summed``: the CRC-32 of (offset, length), where it is known already.
    """
    summed = summed or (lambda offset, length: crc32(image[offset : offset + length]))
    fields = iter(sorted(layout.fields))
    field = next(fields, None)
    known: dict[tuple[int, int], int] = {}
    chunk_bytes = CHUNK_BYTES  # as it is now: campaigns make it small
    for start in range(0, len(image), chunk_bytes):
        end = min(start + chunk_bytes, len(image))
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
