"""The PLACE argument of ``deepvm ckpt``: folders, memory nodes and buckets."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Annotated

from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import find_tier, open_tier
from deepvm.cli.parameters import opt
from deepvm.errors import DataError, RequestError

PLACE = "a folder, file:///folder, tcp://host:port[,host:port...] or s3://bucket/prefix"

Job = Annotated[str, opt("Only versions of this job.", "NAME")]


def where_is(place: str) -> Path | str:
    """A local path, or the URL of something else. Raises RequestError."""
    if "://" not in place:
        return Path(place)
    if not place.startswith("file://"):
        return place
    from deepvm.checkpoint.tiers.file import folder_of

    return folder_of(place, "PLACE")


def there(path: Path) -> Path:
    """The path, if anything is there. Raises DataError."""
    if not os.path.lexists(path):
        raise DataError(f"{path}: there is no such file or folder")
    return path


def open_folder(place: str | Path) -> VersionFolder:
    """A folder of versions on this machine. Raises DataError, RequestError."""
    folder = where_is(place) if isinstance(place, str) else place
    if not isinstance(folder, Path):
        raise RequestError("PLACE", place, "a file or a folder on this machine, or file:///folder")
    if not there(folder).is_dir():
        raise RequestError("PLACE", str(folder), "a folder of versions")
    return VersionFolder(folder)


def wanted_job(job: str) -> str:
    """The job that the option or the environment names, empty for none."""
    return job or os.environ.get("DEEPVM_JOB", "")


def open_place(place: str) -> Tier:
    """A memory node, or several, or a bucket. Raises RequestError, CheckpointError."""
    kind = find_tier(place)
    if kind is None or not kind.listed:
        raise RequestError("PLACE", place, PLACE)
    return open_tier(place, secrets.token_hex(8), option="PLACE")
