"""A disk that fails at the n-th system call; and mutations of what keeps bad bytes out."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files import shared_file_write
from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord, Shard
from deepvm.checkpoint.tiers import base, file

CALLS = {"pwrite": 9, "fsync": 7, "replace": 5, "ftruncate": 1, "open": 12}
"""How often a save of two ranks in a folder makes them, or more."""


def short_write(real: Callable[..., int], nth: int, error: int) -> Callable[..., Any]:
    """Of the n-th write the disk takes half; then it fails."""
    lock, calls = threading.Lock(), [0]

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        with lock:
            calls[0] += 1
            now = calls[0]
        if now > nth:
            raise OSError(error, os.strerror(error))
        return real(descriptor, data[: len(data) // 2] if now == nth else data, offset)

    return write


def failing(real: Callable[..., Any], nth: int, error: int, forever: bool) -> Callable[..., Any]:
    """The n-th call fails, and all after it while the trouble lasts, or that one alone.

    Whichever rank's it is.
    """
    lock, calls = threading.Lock(), [0]

    def call(*words: Any, **more: Any) -> Any:
        with lock:
            calls[0] += 1
            now = calls[0]
        if now == nth or (forever and now > nth):
            raise OSError(error, os.strerror(error))
        return real(*words, **more)

    return call


ERRORS = [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS]
ALL_CALLS = [(name, nth) for name, most in CALLS.items() for nth in range(1, most + 1)]


def in_place_of(call: str, nth: int, error: int, forever: bool) -> tuple[str, Callable[..., Any]]:
    """The name in ``os`` of what fails, and what to put in its place; ``short``: half of a write is
    done before.
    """
    if call == "short":
        return "pwrite", short_write(os.pwrite, nth, error)
    return call, failing(getattr(os, call), nth, error, forever)


def sums_of_what_is_there(image: memoryview, layout: Layout, *_: object) -> list[int]:
    """A version's checksums, made of its bytes whatever they are."""
    crcs: list[int] = []
    for _ in seal(image, layout, crcs):
        pass
    return crcs


def accepts_what_is_missing(setattr: Callable[[Any, str, Any], None]) -> None:
    """Mutation: in a folder a rank that cannot write its part says that it did, and rank 0 verifies
    none.
    """
    write_part = shared_file_write._write_part

    def complete(hidden: Path, shard: Shard, parts: list[Path]) -> CommitRecord:
        image = bytearray(hidden.read_bytes())
        crcs = sums_of_what_is_there(memoryview(image), shard.layout)
        hidden.write_bytes(image)
        return shard.manifest(crcs)

    def write(hidden: Path, shard: Shard) -> None:
        with contextlib.suppress(OSError):
            write_part(hidden, shard)

    setattr(shared_file_write, "_write_part", write)
    setattr(shared_file_write, "_complete", complete)


def checks_no_bytes(setattr: Callable[[Any, str, Any], None]) -> None:
    """Mutation: what is read is not compared with the commit record."""
    setattr(base, "verified", lambda pieces, *_: pieces)
    setattr(file, "verify", lambda path, record: record)
