"""Read files that users name, whatever they turn out to be; never blocks on a pipe or a device."""

from __future__ import annotations

import codecs
import os
import stat
from pathlib import Path

from deepvm.errors import CatalogFormatError, Problem

MAX_BYTES = 64 * 2**20
"""Larger files are refused unread: the largest catalog of a real cloud is below 2 MiB."""

_A_CATALOG = "allowed: a catalog or quotas, as `deepvm catalog show paper -o json` prints a catalog"


def read_text(path: Path, wanted: str = _A_CATALOG) -> str:
    """The text of a regular file in UTF-8, with or without a byte-order mark.

    Never blocks: a named pipe or a device is opened without waiting and refused unread.

    Args:
        path: the file.
        wanted: what belongs there, for messages.

    Raises:
        FileNotFoundError: no such file.
        CatalogFormatError: not a regular file, not readable, above 64 MiB, empty, or not UTF-8.
    """
    data = _read_bytes(path, wanted)
    if not data.strip():
        raise _refused(path, "file", "is empty", wanted)
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
        raise _refused(path, f"byte {offset}", found, f"{wanted}; save the file again as UTF-8") from None


def _read_bytes(path: Path, wanted: str) -> bytes:
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer, for ever if there is none.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise _refused(path, "file", f"cannot be opened: {os_reason(error)}", wanted) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
            raise _refused(path, "file", f"is {kind}", wanted)
        if status.st_size > MAX_BYTES:
            raise _too_large(path, status.st_size)
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise _refused(path, "file", f"cannot be read: {os_reason(error)}", wanted) from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:  # files such as those in /proc have no size until they are read
        raise _too_large(path, len(data))
    return data


def _refused(path: Path, place: str, found: str, expected: str) -> CatalogFormatError:
    return CatalogFormatError(path, [Problem(place, found, expected)])


def _too_large(path: Path, size: int) -> CatalogFormatError:
    return _refused(path, "file", f"has {size / 2**20:.0f} MiB", f"allowed: at most {MAX_BYTES // 2**20} MiB")


def os_reason(error: OSError | ValueError) -> str:
    """Why the system refused, without the path."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
