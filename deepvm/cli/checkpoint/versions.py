"""Find and check checkpoints in a folder, a memory node or a bucket; and ``deepvm ckpt gc``."""

import os
import secrets
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from deepvm.checkpoint.files import commit_record
from deepvm.checkpoint.files.file_names import part_of, whole_job
from deepvm.checkpoint.files.stripe import belong_together, read_part_file
from deepvm.checkpoint.files.version_dir import YOUNG_S, Found, VersionFolder
from deepvm.checkpoint.format.manifest import UNRECORDED
from deepvm.checkpoint.tiers.base import Tier, kept, kept_of, outdated
from deepvm.checkpoint.tiers.registry import find_tier, forms, open_tier
from deepvm.cli.output import say
from deepvm.cli.parameters import arg, flag, opt
from deepvm.errors import DamagedError, DataError, RequestError

PLACE = (
    "a folder, file:///folder, tcp://host:port[,host:port...] or s3://, gs:// or az://bucket/prefix"
)

PLACE_OR_FILE = arg("PLACE|FILE", f"A checkpoint's file, or where they are: {PLACE}.")
JOB = opt("", "Only checkpoints of this job.", "NAME")


def path_or_url(place: str) -> Path | str:
    """A local path, or the URL of something else. Raises RequestError."""
    if place.startswith("file://"):
        from deepvm.checkpoint.tiers.file import folder_of

        return folder_of(place, "PLACE")
    if "://" in place:
        return place
    return Path(place)


def existing(path: Path) -> Path:
    """The path. Raises DataError: nothing exists there."""
    if not os.path.lexists(path):
        raise DataError(f"{path}: there is no such file or folder")
    return path


def open_folder(place: str | Path) -> VersionFolder:
    """A folder of checkpoints on this machine. Raises DataError, RequestError."""
    folder = path_or_url(str(place))
    if not isinstance(folder, Path):
        raise RequestError("PLACE", place, "a file or a folder on this machine, or file:///folder")
    if not existing(folder).is_dir():
        raise RequestError("PLACE", str(folder), "a folder of checkpoints")
    return VersionFolder(folder)


def of_job(job: str) -> str:
    """`` of job JOB``, for messages; empty without a job."""
    return job and f" of job {job}"


def wanted_job(job: str, default: str = "job") -> str:
    """The job that the option, the environment or else the default names."""
    return job or os.environ.get("DEEPVM_JOB") or default


def open_place(place: str) -> Tier:
    """A memory node, or several, or a bucket. Raises RequestError, CheckpointError."""
    kind = find_tier(place)
    if kind is None or not kind.listed:
        raise RequestError("PLACE", place, f"a folder, {forms(lambda kind: kind.listed)}")
    return open_tier(place, secrets.token_hex(8), option="PLACE")


def versions_of(rows: Iterable[Found]) -> Iterator[tuple[dict[int, list[Found]], list[Found]]]:
    """For each job its checkpoints (files, or parts in order) and the parts of incomplete ones."""
    jobs = defaultdict[tuple[str, int], defaultdict[int, list[Found]]](lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: (part_of(row.job), row.path)):
        job, _, of = part_of(row.job)
        jobs[job, of][row.version].append(row)
    for (_, of), versions in jobs.items():
        whole = {v: files for v, files in versions.items() if len({f.job for f in files}) == of}
        lone = [row for v, files in versions.items() if v not in whole for row in files]
        yield whole, lone


def problem_of(rows: Sequence[Found], *, trust: bool = False) -> str:
    """Why a checkpoint's files, in order, are damaged; empty if they are not."""
    try:
        if not trust:
            for row in rows:
                commit_record.verify(row.path, row.manifest)
        if whole_job(rows[0].job) is None:
            return ""
        problem = belong_together([read_part_file(row.path) for row in rows])
    except (DamagedError, OSError) as error:
        return str(error)
    if problem:
        return f"{', '.join(str(row.path) for row in rows)}: {problem}"
    return ""


def collect_garbage(
    folder: str = arg("DIR", "A folder of checkpoints."),
    keep: int = opt(2, "Newest good checkpoints of each job to keep.", "N"),
    every: int = opt(0, "Also keep one checkpoint per so many steps.", "STEPS"),
    best: list[int] = opt([], "Also keep this checkpoint; repeatable.", "VERSION"),
    job: str = JOB,
    parts: list[str] = opt(
        [], "Folder of another node, to prune its parts too; repeatable.", "DIR"
    ),
    trust: bool = flag("--trust", "Do not verify the kept checkpoints before removing others."),
    dry_run: bool = flag("--dry-run", "Show what would be removed."),
) -> None:
    """Remove old checkpoints, and leftovers of killed writers.

    Leftovers are removed after an hour. The newest checkpoint marked best is kept. Damaged
    checkpoints do not count as kept, and stay for inspection; one without a manifest is removed
    when it would be outdated anyway. The parts of a checkpoint are kept or removed together; where
    each node has its own folder, name the others with --parts.

    Example: deepvm ckpt gc /mnt/ckpt --keep 2 --every 1000
    """
    kept((), keep, every)  # refuse bad values before anything is read
    named = {f.path.resolve(): f for f in map(open_folder, [folder, *parts])}
    own, *others = named.values()
    rows = [row for row in own.found() if job in ("", row.job, part_of(row.job)[0])]
    # Whole files in other folders are another node's backups: only parts belong to checkpoints
    # here.
    away = [row for other in others for row in other.found() if whole_job(row.job)]
    found = [*rows, *(row for row in away if job in ("", row.job, part_of(row.job)[0]))]
    there = sorted({row.version for row in found if row.problem != UNRECORDED}, reverse=True)
    for number in best:
        if number not in there:
            raise RequestError("best", number, f"a checkpoint that is there: {there[:10]}")
    good = defaultdict[str, set[int]](set)
    old: list[Found] = []
    for whole, lone in versions_of(row for row in found if not row.problem):
        if not whole:
            incomplete = ", ".join(sorted({row.job for row in lone}))
            advice = "name the other nodes' folders with --parts"
            say(f"{incomplete}: all stay: other parts are missing here; {advice}")
        stay = _choose(whole, keep, every, best, trust=trust)
        for version, files in sorted(whole.items()):
            if version not in stay:
                old += files
            for row in files:
                good[row.job] |= stay
        # Missing parts may still arrive, but not of checkpoints older than the whole ones that
        # stay.
        old += [r for r in lone if stay and r.version < min(stay) and r.version not in best]
    for row in (row for row in rows if row.problem):
        if row.problem == UNRECORDED and outdated(good[row.job], [row.version], keep, every):
            old.append(row)
        else:
            say(f"{row.path}: stays: {row.problem}")
    done = "removed"
    if dry_run:
        done = "would remove"
    for row in old:
        if not dry_run:
            VersionFolder(row.path.parent).delete(row.job, row.version)
        sys.stdout.write(f"{done} {row.path}\n")
    for path in own.leftovers(YOUNG_S):
        if not dry_run:
            own.clear(path)
        sys.stdout.write(f"{done} {path}\n")


def _choose(
    whole: dict[int, list[Found]], keep: int, every: int, best: list[int], *, trust: bool
) -> set[int]:
    good = set[int]()
    while True:
        # All parts of a checkpoint have the same retention: the first stands for them.
        manifests = [rows[0].manifest for rows in whole.values()]
        stay = kept_of([m for m in manifests if m is not None], keep, every)
        stay |= whole.keys() & set(best)
        if stay <= good:
            return stay
        version = max(stay - good)
        problem = problem_of(whole[version], trust=trust)
        if problem:
            say(f"{problem}; it stays, and does not count")
            del whole[version]
        else:
            good.add(version)
