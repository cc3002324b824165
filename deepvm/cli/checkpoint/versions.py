"""The versions at a place: a folder, a memory node or a bucket.

This finds and checks them, and holds ``deepvm ckpt gc``.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepvm.checkpoint.files import commit_record
from deepvm.checkpoint.files.file_names import whole_job
from deepvm.checkpoint.files.retention import kept, kept_of, outdated
from deepvm.checkpoint.files.stripe import belong_together, read_part_file
from deepvm.checkpoint.files.version_dir import YOUNG_S, Found, VersionFolder
from deepvm.checkpoint.format.manifest import UNRECORDED, CommitRecord
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import find_tier, forms, open_tier
from deepvm.cli.output import say
from deepvm.cli.parameters import arg, flag, opt
from deepvm.errors import DamagedError, DataError, RequestError

PLACE = (
    "a folder, file:///folder, tcp://host:port[,host:port...] or s3://, gs:// or az://bucket/prefix"
)

PLACE_OR_FILE = arg("PLACE|FILE", f"A version's file, or where they are: {PLACE}.")
JOB = opt("", "Only versions of this job.", "NAME")


def path_or_url(place: str) -> Path | str:
    """A local path, or the URL of something else. Raises RequestError."""
    if place.startswith("file://"):
        from deepvm.checkpoint.tiers.file import folder_of

        return folder_of(place, "PLACE")
    if "://" in place:
        return place
    return Path(place)


def existing(path: Path) -> Path:
    """The path. Raises DataError: there is nothing."""
    if not os.path.lexists(path):
        raise DataError(f"{path}: there is no such file or folder")
    return path


def open_folder(place: str | Path) -> VersionFolder:
    """A folder of versions on this machine. Raises DataError, RequestError."""
    folder = path_or_url(str(place))
    if not isinstance(folder, Path):
        raise RequestError("PLACE", place, "a file or a folder on this machine, or file:///folder")
    if not existing(folder).is_dir():
        raise RequestError("PLACE", str(folder), "a folder of versions")
    return VersionFolder(folder)


def of_job(job: str) -> str:
    """The job whose versions are missing, for messages."""
    if job:
        return f" of job {job}"
    return ""


def wanted_job(job: str, default: str = "job") -> str:
    """The job that the option, the environment or else the default names."""
    return job or os.environ.get("DEEPVM_JOB") or default


def open_place(place: str) -> Tier:
    """A memory node, or several, or a bucket. Raises RequestError, CheckpointError."""
    kind = find_tier(place)
    if kind is None or not kind.listed:
        raise RequestError("PLACE", place, f"a folder, {forms(lambda kind: kind.listed)}")
    return open_tier(place, secrets.token_hex(8), option="PLACE")


def versions_of(rows: list[Found]) -> Iterator[tuple[dict[int, list[Found]], list[Found]]]:
    """For each job its versions (a file, or parts in order) and its parts that lack others.

    ``rows``: sound ones.
    """
    jobs: dict[tuple[str, int], dict[int, list[tuple[int, Path, Found]]]] = {}
    for row in rows:
        job, number, of = whole_job(row.job) or (row.job, 1, 1)
        parts = jobs.setdefault((job, of), {}).setdefault(row.version, [])
        parts.append((number, row.path, row))
    for (_, of), versions in sorted(jobs.items()):
        whole = dict[int, list[Found]]()
        lone = list[Found]()
        for version, parts in versions.items():
            files = [row for _, _, row in sorted(parts, key=lambda part: part[:2])]
            if len({number for number, _, _ in parts}) < of:
                lone += files
            else:
                whole[version] = files
        yield whole, lone


def mismatch(rows: Sequence[Found]) -> str:
    """Why these undamaged parts, in order, do not make a version; empty when they do."""
    if whole_job(rows[0].job) is None:
        return ""
    try:
        problem = belong_together([read_part_file(row.path) for row in rows])
    except (DamagedError, OSError) as error:
        return str(error)
    if problem:
        return f"{', '.join(str(row.path) for row in rows)}: {problem}"
    return ""


def damage(path: Path, manifest: CommitRecord | None = None) -> str:
    """Why a version's file is damaged, empty if it is not. Every byte is read."""
    try:
        commit_record.verify(path, manifest)
    except DamagedError as error:
        return str(error)
    return ""


def collect_garbage(
    folder: str = arg("DIR", "A folder of versions."),
    keep: int = opt(2, "Newest good versions of each job to keep.", "N"),
    every: int = opt(0, "Also keep one version per so many steps.", "STEPS"),
    best: list[int] = opt([], "Also keep this version; repeatable.", "VERSION"),
    job: str = JOB,
    parts: list[str] = opt(
        [], "Folder of another node, to prune its parts too; repeatable.", "DIR"
    ),
    trust: bool = flag("--trust", "Do not verify the kept versions before removing others."),
    dry_run: bool = flag("--dry-run", "Show what would be removed."),
) -> None:
    """Remove old versions, and what killed writers left.

    What a killed writer left is removed after an hour. The newest version marked best is kept.
    Damaged versions do not count as kept, and stay for inspection; one without a commit record is
    removed when it would be outdated anyway. The parts of a version are kept or removed together;
    where each node has its own folder, name the others with --parts.

    Example: deepvm ckpt gc /mnt/ckpt --keep 2 --every 1000
    """
    kept((), keep, every)  # refuse what cannot be used before anything is read

    def wanted(row: Found) -> bool:
        return job in ("", row.job, (whole_job(row.job) or ("",))[0])

    named = {f.path.resolve(): f for f in map(open_folder, [folder, *parts])}
    versions, *others = named.values()
    rows = [f for f in versions.found() if wanted(f)]
    away = [f for other in others for f in other.found() if whole_job(f.job) and wanted(f)]
    there = sorted({f.version for f in (*rows, *away) if f.problem != UNRECORDED}, reverse=True)
    for number in best:
        if number not in there:
            raise RequestError("best", number, f"a version that is there: {there[:10]}")
    good: dict[str, set[int]] = {}
    done = "would remove" if dry_run else "removed"

    def remove(row: Found) -> None:
        if not dry_run:
            VersionFolder(row.path.parent).delete(row.job, row.version)
        sys.stdout.write(f"{done} {row.path}\n")

    for whole, lone in versions_of([f for f in (*rows, *away) if not f.problem]):
        if not whole:
            here = ", ".join(sorted({row.job for row in lone}))
            say(
                f"{here}: all stay: the other parts are elsewhere; name the other nodes' folders"
                " with --parts"
            )
        stay, old = _choose(whole, keep, every, best, trust=trust)
        for row in (row for version in stay for row in whole[version]):
            good.setdefault(row.job, set()).add(row.version)
        # Missing parts may still arrive, but not of versions older than the whole ones that stay.
        for row in (
            *old,
            *(r for r in lone if stay and r.version < min(stay) and r.version not in best),
        ):
            remove(row)
    for row in (f for f in rows if f.problem):
        if row.problem == UNRECORDED and outdated(
            good.get(row.job, ()), [row.version], keep, every
        ):
            remove(row)
        else:
            say(f"{row.path}: stays: {row.problem}")
    for path in versions.leftovers(YOUNG_S):
        if not dry_run:
            versions.clear(path)
        sys.stdout.write(f"{done} {path}\n")


def _choose(
    whole: dict[int, list[Found]], keep: int, every: int, best: list[int], *, trust: bool
) -> tuple[set[int], list[Found]]:
    """The good versions that stay, and the files that go.

    Damaged ones that would have stayed are neither.
    """
    left = dict(whole)
    good = set[int]()
    while True:
        # Retention reads the same in all parts
        manifests = [rows[0].manifest for rows in left.values()]
        stay = kept_of([m for m in manifests if m is not None], keep, every) | (
            left.keys() & set(best)
        )
        if stay <= good:
            return stay, [row for version in sorted(left.keys() - stay) for row in left[version]]
        version = max(stay - good)
        rows = left[version]
        problem = mismatch(rows)
        if not problem and not trust:
            damages = (damage(row.path, row.manifest) for row in rows)
            problem = next(filter(None, damages), "")
        if problem:
            say(f"{problem}; it stays, and does not count")
            del left[version]
        else:
            good.add(version)
