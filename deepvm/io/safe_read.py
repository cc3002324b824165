"""Read files that users name, of any kind; never blocks on a pipe or a device."""

import codecs
import os
import stat
from pathlib import Path
from typing import TypeAlias

from deepvm.errors import CatalogFormatError, Issue

StrPath: TypeAlias = str | os.PathLike[str]
# Larger files are refused unread: the largest catalog of a real cloud is below 2 MiB
MAX_BYTES = 64 * 2**20


def read_text(
    path: Path,
    expected: str = "a text file in UTF-8",
    limit: int = MAX_BYTES,
    *,
    may_be_empty: bool = False,
) -> str:
    """The text of a regular file of at most ``limit`` bytes, with or without a byte-order mark.

    Raises FileNotFoundError, or a CatalogFormatError that says what is ``expected``.
    """
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as (
            stream
        ):
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _refused(path, "is a pipe, socket or device", expected)
            # Files such as those in /proc have no size until they are read.
            data = b""
            if status.st_size <= limit:
                data = stream.read(limit + 1)
            size = max(status.st_size, len(data))
    except FileNotFoundError:
        raise
    except IsADirectoryError:
        raise _refused(path, "is a folder", expected) from None
    except (OSError, ValueError) as error:
        raise _refused(path, f"cannot be read: {os_reason(error)}", expected) from None
    if size > limit:
        raise _refused(path, f"has {size / 2**20:.0f} MiB", f"at most {limit // 2**20} MiB")
    if not (may_be_empty or data.strip()):
        raise _refused(path, "is empty", expected)
    return decoded(path, data, expected)


def decoded(path: Path | str, data: bytes, expected: str) -> str:
    """Text of UTF-8, with or without a byte-order mark. Raises CatalogFormatError."""
    data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        problem = f"byte 0x{data[error.start]:02x} at position {error.start} is not UTF-8"
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        problem += ", the file is UTF-16"
    elif data[:2] == b"\x1f\x8b":
        problem += ", the file is compressed by gzip"
    raise _refused(path, problem, f"{expected}, saved as UTF-8")


def _refused(path: Path | str, problem: str, expected: str) -> CatalogFormatError:
    return CatalogFormatError(path, [Issue(f"{problem} (expected {expected})")])


def os_reason(error: OSError | ValueError) -> str:
    """Why the system refused, without the path."""
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
