"""The PLACE argument of ``deepvm ckpt``: folders, memory nodes and buckets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deepvm.errors import DataError, RequestError

if TYPE_CHECKING:
    from deepvm.checkpoint.files.version_dir import VersionFolder
    from deepvm.checkpoint.tiers.base import Tier

PLACE = "a folder, file:///folder, tcp://host:port[,host:port...] or s3://bucket/prefix"

Job = Annotated[str, typer.Option("--job", metavar="NAME", help="Only versions of this job.")]


def where_is(place: str) -> Path | str:
    """A local path, or the URL of something else. Raises RequestError."""
    if "://" not in place:
        return Path(place)
    if not place.startswith("file://"):
        return place
    from deepvm.checkpoint.tiers.file import folder_of

    return folder_of(place, "PLACE")


def local(place: str) -> Path:
    """A local path. Raises RequestError."""
    found = where_is(place)
    if not isinstance(found, Path):
        raise RequestError("PLACE", place, "a file or a folder on this machine, or file:///folder")
    return found


def there(path: Path) -> Path:
    """The path, if anything is there. Raises DataError."""
    if not os.path.lexists(path):
        raise DataError(f"{path}: there is no such file or folder")
    return path


def open_folder(folder: Path) -> VersionFolder:
    """A folder of versions. Raises DataError, RequestError."""
    from deepvm.checkpoint.files.version_dir import VersionFolder

    if not there(folder).is_dir():
        raise RequestError("PLACE", str(folder), "a folder of versions")
    return VersionFolder(folder)


def wanted_job(job: str) -> str:
    """The job that the option or the environment names, empty for none."""
    return job or os.environ.get("DEEPVM_JOB", "")


def open_place(place: str) -> Tier:
    """A memory node, or several, or a bucket. Raises RequestError, CheckpointError."""
    import secrets

    from deepvm.checkpoint.tiers.registry import find_tier, open_tier

    kind = find_tier(place)
    if kind is None or not kind.listed:
        raise RequestError("PLACE", place, PLACE)
    return open_tier(place, secrets.token_hex(8), option="PLACE")
