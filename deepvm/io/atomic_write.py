"""Write files whole or not at all."""

import contextlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from deepvm.errors import DataError
from deepvm.io.safe_read import os_reason


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file: a new file next to it, fsync, rename; on any failure the old one remains.

    A symbolic link is followed; permissions of a replaced file are kept. Raises DataError.
    """
    try:
        target = Path(os.path.realpath(path))
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = target.stat().st_mode
        if mode is not None and not stat.S_ISREG(mode):
            raise ValueError("a folder or device has this name")
        with hidden_path(target) as temporary:
            # Not tempfile: a new file gets the permissions that the umask asks for
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o666), "wb") as stream:
                if mode is not None:
                    os.fchmod(stream.fileno(), stat.S_IMODE(mode))
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        sync_folder(target.parent)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be written: {os_reason(error)}; it is as it was, make space or name"
            " another place"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON. Raises DataError."""
    write_bytes(path, json.dumps(value).encode())


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Write JSON that people read, too. Raises DataError."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_bytes(path, f"{text}\n".encode())


def write_private(path: Path, text: str) -> None:
    """Write ASCII text to a file that only its owner can read. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)


@contextlib.contextmanager
def hidden_path(target: Path) -> Iterator[Path]:
    """A hidden name for a file to rename to ``target`` once complete; removed at the end."""
    start = os.fsdecode(os.fsencode(target.name)[:100])  # file systems limit a name's bytes
    hidden = target.with_name(f".{start}.{os.urandom(4).hex()}.tmp")
    try:
        yield hidden
    finally:
        discard(hidden)


def discard(*paths: Path) -> None:
    """Remove files, where they are and can be removed."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder outlast a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        sync(folder)


def sync(path: Path) -> None:
    """Sync a file (including mapped writes) or a folder's names: renames survive a crash."""
    # Not mmap.flush, which does not always release the GIL.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
