"""Processes that may have only so much memory, as on a small VM."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def limited(memory_bytes: int) -> Iterator[list[str]]:
    """What to write before a command so that it, and what it starts, is killed where it needs more.

    A control group of either version; skips where this user may make none, as in most containers.
    """
    first = (ROOT / "memory").is_dir()
    group = ROOT / ("memory" if first else "") / f"deepvm-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error.strerror}")
    try:
        limits = ("memory.limit_in_bytes",) if first else ("memory.max", "memory.swap.max")
        for name, value in zip(limits, (memory_bytes, 0), strict=False):
            try:
                (group / name).write_text(str(value))
            except OSError as error:
                if name != "memory.swap.max":  # which is not there without swap
                    pytest.skip(f"control groups here do not limit memory: {error.strerror}")
        yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        group.rmdir()
