"""Read files that users name, whatever they turn out to be; never blocks on a pipe or a device."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from deepvm.errors import CatalogFormatError, Problem

MAX_BYTES = 64 * 2**20
"""Larger files are refused unread: the largest catalog of a real cloud is below 2 MiB."""


def read_text(
    path: Path, wanted: str = "allowed: a text file in UTF-8", most: int = MAX_BYTES
) -> str:
    """The text of a regular file in UTF-8, with or without a byte-order mark.

    Args:
        path: the file.
        wanted: what belongs there, for messages.
        most: bytes.

    Raises:
        FileNotFoundError: no such file.
        CatalogFormatError: not a regular file, not readable, too large, empty, or not UTF-8.
    """
    step = "opened"

    def refused(place: str, found: str, expected: str = wanted) -> CatalogFormatError:
        return CatalogFormatError(path, [Problem(place, found, expected)])

    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer, for ever if there is
        # none.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as stream:
            step, status = "read", os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise refused("file", "is a pipe, socket or device")
            # Files such as those in /proc have no size until they are read.
            data = stream.read(most + 1) if status.st_size <= most else b""
            size = max(status.st_size, len(data))
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise refused("file", "is a folder") from None
    except (OSError, ValueError) as error:
        raise refused("file", f"cannot be {step}: {os_reason(error)}") from None
    if size > most:
        raise refused(
            "file", f"has {size / 2**20:.0f} MiB", f"allowed: at most {most // 2**20} MiB"
        )
    if not data.strip():
        raise refused("file", "is empty")
    mark = len(codecs.BOM_UTF8) if data.startswith(codecs.BOM_UTF8) else 0
    try:
        return data[mark:].decode()
    except UnicodeDecodeError as error:
        offset = error.start + mark
        found = f"byte 0x{data[offset]:02x} is not UTF-8"
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            found += " (the file is UTF-16)"
        elif data[:2] == b"\x1f\x8b":
            found += " (the file is compressed by gzip: unpack it first)"
        raise refused(f"byte {offset}", found, f"{wanted}; save the file again as UTF-8") from None


def os_reason(error: OSError | ValueError) -> str:
    """Why the system refused, without the path."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
