"""Rename damaged versions out of the way of a new start, but keep them for inspection."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Collection

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import record_of, upcoming_of
from deepvm.checkpoint.files.version_dir import VersionFolder


def ending() -> str:
    """A unique suffix for names."""
    return f".{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}.aside"


def set_aside(folder: VersionFolder, job: str, versions: Collection[int]) -> None:
    """Rename versions of a job, and all damaged ones, so that they no longer count as versions.

    Args:
        folder: where.
        job: whose they are.
        versions: their numbers; missing ones are ignored.

    Raises:
        CheckpointError: they could not all be renamed.
    """
    added = ending()
    numbers = {*versions, *(d.version for d in folder.damaged(job))}
    for version in sorted(numbers):
        target = folder.file(job, version)
        # The file last: without its records it still counts as what is left of a version.
        for path in (upcoming_of(target), record_of(target), target):
            with durable_write.failing(path, "set aside"), contextlib.suppress(FileNotFoundError):
                os.rename(path, path.with_name(path.name + added))
    with durable_write.failing(folder.path):
        if numbers and folder.path.is_dir():
            durable_write.sync_folder(folder.path)
