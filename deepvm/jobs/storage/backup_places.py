"""Places for backups, by the scheme of their URL."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deepvm.jobs.storage.bucket_backups import BucketBackups
from deepvm.jobs.storage.folder_backups import FolderBackups

BackupStore: TypeAlias = FolderBackups | BucketBackups
FORMS = "file:///folder or s3://bucket/prefix"


def open_backups(tiers: Sequence[str], job: str) -> BackupStore | None:
    """The first of a job's tiers that takes backups; None if none does."""
    for tier in tiers:
        place = urlsplit(tier)
        if place.scheme.lower() == "file":
            return FolderBackups(Path(unquote(place.path)), job)
        if place.scheme.lower() == "s3":
            return BucketBackups(place.netloc, place.path, job)
    return None
