"""``deepvm ckpt gc``: remove old versions, never the only good one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from deepvm.cli.checkpoint.place import Job, local, open_folder
from deepvm.cli.output import say
from deepvm.errors import DamagedError, RequestError

if TYPE_CHECKING:
    from deepvm.checkpoint.files.version_dir import Found
    from deepvm.checkpoint.format.manifest import Manifest

_MOST_SHOWN = 10
_REMOVAL_S = 1.0
"""Seconds that the disk may take between the removal of a record and that of its file."""


class Unit(NamedTuple):
    """The files that are a version together: one, or its parts in order."""

    version: int
    rows: list[Found]

    @property
    def manifest(self) -> Manifest:
        """Of its first file; what the policy asks for is the same in all."""
        (manifest, *_) = (row.manifest for row in self.rows if row.manifest is not None)
        return manifest


def collect_garbage(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of versions.")],
    keep: Annotated[int, typer.Option(help="How many of the newest good versions of each job stay.")] = 2,
    every: Annotated[int, typer.Option(metavar="STEPS", help="Also keep one for each so many steps.")] = 0,
    best: Annotated[
        list[int], typer.Option("--best", metavar="VERSION", help="Also keep this one; may be repeated.")
    ] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    job: Job = "",
    parts: Annotated[
        list[str],
        typer.Option("--parts", metavar="DIR", help="Another node's folder: thin its parts out too; may be repeated."),
    ] = [],  # noqa: B006  see above
    trust: Annotated[
        bool, typer.Option("--trust", help="Do not verify the versions that stay before others are removed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove old versions. Also what killed writers left more than an hour ago.

    The newest version that the training called its best stays. Damaged versions do not count as kept, and stay for you
    to look at; one without a commit record goes when it would not stay with one. The parts of a version stay or go
    together; where each node has a folder of its own, name the others with --parts.

    Example: deepvm ckpt gc /mnt/ckpt --keep 2 --every 1000
    """
    from deepvm.checkpoint.files.file_names import whole_job
    from deepvm.checkpoint.files.retention import kept, outdated
    from deepvm.checkpoint.files.version_dir import YOUNG_S
    from deepvm.checkpoint.format.manifest import UNRECORDED

    kept((), keep, every)  # refuse what cannot be used before anything is read

    def wanted(row: Found) -> bool:
        return job in ("", row.job, (whole_job(row.job) or ("",))[0])

    versions = open_folder(local(folder))
    named = {f.path.resolve(): f for f in map(open_folder, map(local, parts))}
    others = [f for path, f in named.items() if path != versions.path.resolve()]
    rows = [f for f in versions.found() if wanted(f)]
    away = [f for other in others for f in other.found() if whole_job(f.job) and wanted(f)]
    _check_best(best, [f for f in (*rows, *away) if f.problem != UNRECORDED])
    good: dict[str, set[int]] = {}
    done = "would remove" if dry_run else "removed"

    def remove(row: Found) -> None:
        if not dry_run:
            next(f for f in (versions, *others) if f.path == row.path.parent).delete(row.job, row.version)
        sys.stdout.write(f"{done} {row.path}\n")

    for units, halves in units_of([f for f in (*rows, *away) if not f.problem]):
        if not units:
            here = ", ".join(sorted({row.job for row in halves}))
            say(f"{here}: all stay: the other parts are elsewhere; name the other nodes' folders with --parts")
        stay, old = _choose(units, keep, every, best, trust=trust)
        for row in (row for unit in units if unit.version in stay for row in unit.rows):
            good.setdefault(row.job, set()).add(row.version)
        # Parts whose counterpart is not here: it may still come, but not behind versions that are here as a whole.
        old += [row for row in halves if stay and row.version < min(stay) and row.version not in best]
        for row in old:
            remove(row)
    for row in (f for f in rows if f.problem):
        if row.problem == UNRECORDED and outdated(good.get(row.job, ()), [row.version], keep, every):
            remove(row)
        else:
            say(f"{row.path}: stays: {row.problem}")
    for path in versions.leftovers(YOUNG_S):
        if not dry_run:
            versions.clear(path)
        sys.stdout.write(f"{done} {path}\n")


def _check_best(best: list[int], rows: list[Found]) -> None:
    there = sorted({row.version for row in rows}, reverse=True)
    for number in best:
        if number not in there:
            shown = ", ".join(map(str, there[:_MOST_SHOWN])) + (", ..." if len(there) > _MOST_SHOWN else "")
            raise RequestError("best", number, f"a version that is there: {shown or 'there is none'}")


def units_of(rows: list[Found]) -> list[tuple[list[Unit], list[Found]]]:
    """For each job its versions, and the parts of those that are not here as a whole."""
    from deepvm.checkpoint.files.file_names import whole_job

    jobs: dict[tuple[str, int], dict[int, dict[int, list[Found]]]] = {}
    for row in rows:
        job, number, of = whole_job(row.job) or (row.job, 1, 1)
        whole = row.job == job
        numbers = jobs.setdefault((job, 0 if whole else of), {}).setdefault(row.version, {})
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


def _choose(units: list[Unit], keep: int, every: int, best: list[int], *, trust: bool) -> tuple[set[int], list[Found]]:
    """The good versions that stay, and the files that go; damaged ones that would have stayed are neither."""
    from deepvm.checkpoint.files.retention import kept_of

    left, good = {unit.version: unit for unit in units}, set[int]()
    while True:
        stay = kept_of([unit.manifest for unit in left.values()], keep, every) | (left.keys() & set(best))
        if stay <= good:
            return stay, [row for version, unit in sorted(left.items()) if version not in stay for row in unit.rows]
        version = max(stay - good)
        rows = left[version].rows
        problem = torn(rows) or ("" if trust else next(filter(None, map(damage, rows)), ""))
        if problem:
            say(f"{problem}; it stays, and does not count")
            del left[version]
        else:
            good.add(version)


def torn(rows: Sequence[Found]) -> str:
    """Why these files, undamaged, are no version together; empty when they are. In order of their parts."""
    from deepvm.checkpoint.files.file_names import whole_job
    from deepvm.checkpoint.files.stripe import belong_together, read_part_file

    if whole_job(rows[0].job) is None:
        return ""
    try:
        problem = belong_together([read_part_file(row.path) for row in rows])
    except (DamagedError, OSError) as error:
        return str(error)
    return f"{', '.join(str(row.path) for row in rows)}: {problem}" if problem else ""


def removed(row: Found) -> bool:
    """Whether a version is gone by now, its record and its file: that takes a moment, in which it looks damaged."""
    import os
    import time

    from deepvm.checkpoint.files.commit_record import record_of

    deadline = time.monotonic() + _REMOVAL_S
    while os.path.lexists(row.path) or os.path.lexists(record_of(row.path)):
        whole = os.path.lexists(row.path) and os.path.lexists(record_of(row.path))
        if whole or time.monotonic() > deadline:
            return False
        time.sleep(_REMOVAL_S / 20)
    return True


def damage(row: Found) -> str:
    """What is the matter with a file, empty when nothing is. Every byte is read."""
    from deepvm.checkpoint.files.commit_record import verify

    if row.problem:
        return f"{row.path}: {row.problem}"
    try:
        verify(row.path, row.manifest)
    except DamagedError as error:
        return str(error)
    return ""
