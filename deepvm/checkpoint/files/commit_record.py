"""Commit records on disk: which one belongs to a file, and whether the file matches it.

A checkpoint that replaces one of its number has two for a moment, of which the *upcoming* one has a
hidden name; one of them always matches the file's bytes.
"""

import contextlib
import errno
import os
from io import BufferedReader
from pathlib import Path

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import Ranges
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord
from deepvm.errors import DamagedError, RequestError
from deepvm.io.atomic_write import sync

UPCOMING = ".next"  # Suffix of an upcoming record's hidden name
_MOST_RECORD = 64 * 2**20
_MOST_NAMED = 10


def record_of(path: Path) -> Path:
    """Path of the manifest of a checkpoint's file."""
    return path.with_name(path.name + SUFFIX)


def upcoming_of(path: Path) -> Path:
    """Path of the record that is about to replace it."""
    return path.with_name(f".{path.name}{SUFFIX}{UPCOMING}")


def read_manifest(path: Path) -> CommitRecord:
    """The manifest that matches the file. Raises FileNotFoundError, DamagedError."""
    try:
        upcoming = _read(upcoming_of(path))
    except (FileNotFoundError, DamagedError):
        return _read(record_of(path))
    with contextlib.suppress(FileNotFoundError, DamagedError):
        found = _read(record_of(path))
        _compare(path, found)
        return found
    try:
        _compare(path, upcoming)
    except DamagedError:
        return _read(record_of(path))  # the caller finds the damage when it verifies
    return upcoming


def settle(path: Path) -> None:
    """Finish a killed writer's replacement: keep the record that matches the file."""
    upcoming = upcoming_of(path)
    if not os.path.lexists(upcoming):
        return
    try:
        fits = read_manifest(path) == _read(upcoming)
    except (FileNotFoundError, DamagedError):
        fits = False
    if fits:
        os.replace(upcoming, record_of(path))
    else:
        upcoming.unlink()
    sync(path.parent)


def verify(path: Path, manifest: CommitRecord | None = None) -> CommitRecord:
    """Verify a file against its record, or another one. Raises DamagedError, naming bytes."""
    try:
        expected = manifest or read_manifest(path)
    except FileNotFoundError:
        raise DamagedError(f"{path}: {UNRECORDED} ({path.name}{SUFFIX})") from None
    except OSError as error:
        raise DamagedError(
            f"{path}: its manifest cannot be read: {error.strerror or error}"
        ) from None
    if not expected.crcs:
        raise DamagedError(f"{path}: nothing is known that its bytes could be compared with")
    _compare(path, expected)
    return expected


def _open(path: Path) -> int:
    """Open a regular file for reading, without blocking on a pipe. Raises OSError, DamagedError."""
    problem = durable_write.not_a_file(path.lstat())
    if problem:
        raise DamagedError(f"{path}: {problem}")
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)


def _read(record: Path) -> CommitRecord:
    try:
        with open(_open(record), "rb") as stream:
            return CommitRecord.from_json(stream.read(_MOST_RECORD))
    except RequestError as error:
        raise DamagedError(f"{record}: {error}") from None


def _compare(path: Path, expected: CommitRecord) -> None:
    with durable_write.failing(path, "read", DamagedError), open(_open(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size != expected.size:
            raise DamagedError(f"{path}: it has {size} bytes instead of {expected.size}")
        damaged = [f"{start} to {end - 1}" for start, end in _damaged(stream, expected)]
    if damaged:
        named = ", ".join(damaged[:_MOST_NAMED])
        if len(damaged) > _MOST_NAMED:
            named += f" and {len(damaged) - _MOST_NAMED} more ranges"
        raise DamagedError(f"{path}: bytes {named} are damaged")


def _damaged(stream: BufferedReader, expected: CommitRecord) -> Ranges:
    buffer = memoryview(bytearray(min(expected.chunk_bytes, expected.size)))
    damaged = Ranges()
    for start, crc in zip(
        range(0, expected.size, expected.chunk_bytes), expected.crcs, strict=True
    ):
        chunk = buffer[: expected.size - start]
        if stream.readinto(chunk) < len(chunk):
            raise OSError(errno.EIO, "the file became shorter while it was read")
        if crc32(chunk) != crc:
            damaged.add(start, start + len(chunk))
    return damaged
