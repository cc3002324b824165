"""``deepvm ckpt gc``: remove old versions, never the only good one."""

from __future__ import annotations

import sys
from typing import Annotated

from deepvm.checkpoint.files.file_names import whole_job
from deepvm.checkpoint.files.retention import kept, kept_of, outdated
from deepvm.checkpoint.files.version_dir import YOUNG_S, Found
from deepvm.checkpoint.format.manifest import UNRECORDED
from deepvm.cli.checkpoint.versions import Job, Unit, damage, open_folder, torn, units_of
from deepvm.cli.output import say
from deepvm.cli.parameters import arg, flag, opt
from deepvm.errors import RequestError

_MOST_SHOWN = 10


def collect_garbage(
    folder: Annotated[str, arg("DIR", "A folder of versions.")],
    keep: Annotated[int, opt("Newest good versions of each job to keep.", "N")] = 2,
    every: Annotated[int, opt("Also keep one version per so many steps.", "STEPS")] = 0,
    best: Annotated[list[int], opt("Also keep this version; repeatable.", "VERSION")] = [],  # noqa: B006  typer copies
    job: Job = "",
    parts: Annotated[list[str], opt("Folder of another node, to prune its parts too; repeatable.", "DIR")] = [],  # noqa: B006
    trust: Annotated[bool, flag("--trust", "Do not verify the kept versions before removing others.")] = False,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be removed.")] = False,
) -> None:
    """Remove old versions. Also what killed writers left more than an hour ago.

    The newest version that the training called its best stays. Damaged versions do not count as kept, and stay for
    inspection; one without a commit record goes when it would be outdated anyway. The parts of a version stay or go
    together; where each node has a folder of its own, name the others with --parts.

    Example: deepvm ckpt gc /mnt/ckpt --keep 2 --every 1000
    """
    kept((), keep, every)  # refuse what cannot be used before anything is read

    def wanted(row: Found) -> bool:
        return job in ("", row.job, (whole_job(row.job) or ("",))[0])

    versions = open_folder(folder)
    named = {f.path.resolve(): f for f in map(open_folder, parts)}
    others = [f for path, f in named.items() if path != versions.path.resolve()]
    rows = [f for f in versions.found() if wanted(f)]
    away = [f for other in others for f in other.found() if whole_job(f.job) and wanted(f)]
    there = sorted({f.version for f in (*rows, *away) if f.problem != UNRECORDED}, reverse=True)
    for number in best:
        if number not in there:
            shown = ", ".join(map(str, there[:_MOST_SHOWN])) + (", ..." if len(there) > _MOST_SHOWN else "")
            raise RequestError("best", number, f"a version that is there: {shown or 'there is none'}")
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


def _choose(units: list[Unit], keep: int, every: int, best: list[int], *, trust: bool) -> tuple[set[int], list[Found]]:
    """The good versions that stay, and the files that go; damaged ones that would have stayed are neither."""
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
