"""The versions that ``deepvm ckpt`` finds at a place: a folder, a memory node or a bucket."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

from deepvm.checkpoint.files import version_dir
from deepvm.checkpoint.files.commit_record import record_of
from deepvm.checkpoint.files.file_names import whole_job
from deepvm.checkpoint.files.stripe import belong_together, read_part_file
from deepvm.checkpoint.files.version_dir import Found, VersionFolder
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import find_tier, open_tier
from deepvm.cli.parameters import opt
from deepvm.errors import DamagedError, DataError, RequestError

PLACE = "a folder, file:///folder, tcp://host:port[,host:port...] or s3://bucket/prefix"

Job = Annotated[str, opt("Only versions of this job.", "NAME")]

_REMOVAL_S = 1.0
"""Seconds that the disk may take between the removal of a record and that of its file."""


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


class Unit(NamedTuple):
    """The files that are a version together: one, or its parts in order."""

    version: int
    rows: list[Found]

    @property
    def manifest(self) -> Manifest:
        """Of its first file; what the policy asks for is the same in all."""
        return next(row.manifest for row in self.rows if row.manifest is not None)


def units_of(rows: list[Found]) -> list[tuple[list[Unit], list[Found]]]:
    """For each job its versions, and the parts of those that are not here as a whole."""
    jobs: dict[tuple[str, int], dict[int, dict[int, list[Found]]]] = {}
    for row in rows:
        job, number, of = whole_job(row.job) or (row.job, 1, 0)
        numbers = jobs.setdefault((job, of), {}).setdefault(row.version, {})
        numbers.setdefault(number, []).append(row)
    found = []
    for (_, of), versions in sorted(jobs.items()):
        units: list[Unit] = []
        halves: list[Found] = []
        for version, numbers in versions.items():
            files = [row for number in sorted(numbers) for row in numbers[number]]
            if len(numbers) < of:
                halves += files
            else:
                units.append(Unit(version, files))
        found.append((units, halves))
    return found


def torn(rows: Sequence[Found]) -> str:
    """Why these undamaged files, in order of their parts, are no version together; empty when they are."""
    if whole_job(rows[0].job) is None:
        return ""
    try:
        problem = belong_together([read_part_file(row.path) for row in rows])
    except (DamagedError, OSError) as error:
        return str(error)
    return f"{', '.join(str(row.path) for row in rows)}: {problem}" if problem else ""


def removed(row: Found) -> bool:
    """Whether a version is gone by now, its record and its file: that takes a moment, in which it looks damaged."""
    deadline = time.monotonic() + _REMOVAL_S
    while any(present := [os.path.lexists(row.path), os.path.lexists(record_of(row.path))]):
        if all(present) or time.monotonic() > deadline:
            return False
        time.sleep(_REMOVAL_S / 20)
    return True


def damage(row: Found) -> str:
    """What is the matter with a file, empty when nothing is. Every byte is read."""
    if row.problem:
        return f"{row.path}: {row.problem}"
    try:
        version_dir.verify(row.path, row.manifest)
    except DamagedError as error:
        return str(error)
    return ""
