"""Reading the files that users name, whatever they turn out to be, and writing files whole or not at all."""

from __future__ import annotations

import codecs
import contextlib
import os
import stat
from pathlib import Path

from deepvm.errors import CatalogFormatError, DataError, Problem

MAX_BYTES = 64 * 2**20
"""Larger files are refused unread: the largest catalog of a real cloud is below 2 MiB."""

_A_CATALOG = "allowed: a catalog or quotas, as `deepvm catalog show paper -o json` prints a catalog"


def data_folder() -> Path:
    """``deepvm/_data`` in an installed wheel, ``data/`` at the top of the repository in an editable installation."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "_data"
    return inside if inside.is_dir() else package.parent / "data"


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
        raise _refused(path, "file", f"cannot be opened: {_reason(error)}", wanted) from None
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
        raise _refused(path, "file", f"cannot be read: {_reason(error)}", wanted) from None
    finally:
        os.close(descriptor)
    if len(data) > MAX_BYTES:  # files such as those in /proc have no size until they are read
        raise _too_large(path, len(data))
    return data


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file: a new file beside it, fsync, rename; on any failure the old file, or none, remains.

    A symbolic link is followed; the permissions of a file that is replaced are kept.

    Raises:
        DataError: the folder is missing, nothing may be written there, the disk is full, or a folder or device has
            this name.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = _mode_of(path, target)
        temporary = target.with_name(f".{target.name[:100]}.{os.urandom(4).hex()}.tmp")
        try:
            _write_synced(temporary, data, mode)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(target.parent)
    except (OSError, ValueError) as error:
        raise _not_written(path, _reason(error)) from None


def _mode_of(path: Path, target: Path) -> int | None:
    try:
        status = target.stat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _not_written(path, "a folder or device has this name")
    return stat.S_IMODE(status.st_mode)


def _write_synced(path: Path, data: bytes, mode: int | None) -> None:
    # os.open and not tempfile: a new file gets the permissions that the user's umask asks for.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as stream:
        if mode is not None:
            os.fchmod(descriptor, mode)
        stream.write(data)
        stream.flush()
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder outlast a power cut, where the file system can."""
    # The rename itself must reach the disk; some file systems do not support it, and then it is in their hands.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(path: Path, place: str, found: str, expected: str) -> CatalogFormatError:
    return CatalogFormatError(path, [Problem(place, found, expected)])


def _too_large(path: Path, size: int) -> CatalogFormatError:
    return _refused(path, "file", f"has {size / 2**20:.0f} MiB", f"allowed: at most {MAX_BYTES // 2**20} MiB")


def _not_written(path: Path, why: str) -> DataError:
    return DataError(f"{path}: cannot be written: {why}; nothing was changed, name another place or make room")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
