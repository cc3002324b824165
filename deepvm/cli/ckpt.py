"""``deepvm ckpt``: look at checkpoints, check them, thin them out, get one back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepvm.cli.ckpt_bench import bench
from deepvm.cli.options import say
from deepvm.errors import CheckpointError, DamagedError, DataError, RequestError

if TYPE_CHECKING:
    from deepvm.checkpoint.folder import Found, VersionFolder
    from deepvm.checkpoint.manifest import Manifest
    from deepvm.checkpoint.tiers.base import Tier

YOUNG_S = 3600
"""Seconds for which `gc` leaves alone what may belong to a writer at work."""

_PLACE = "a folder, file:///folder, tcp://host:port[,host:port...] or s3://bucket/prefix"

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, verify, thin out, restore and measure checkpoints."
)
app.command("bench")(bench)

Job = Annotated[str, typer.Option("--job", metavar="NAME", help="Only versions of this job.")]


@app.command("ls")
def list_versions(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=f"Where the versions are: {_PLACE}.")],
    job: Job = "",
    output: Annotated[Literal["table", "json"], typer.Option("--output", "-o", help="Form of the output.")] = "table",
) -> None:
    """List versions, complete or not. The newest come first; a memory node or a bucket is asked for one job.

    Example: deepvm ckpt ls /mnt/ckpt -o json
    """
    where = _where(place)
    if isinstance(where, Path):
        rows = [_row(f) for f in _open(where).found() if job in ("", f.job)]
    else:
        tier = _tier(where)
        try:
            rows = [_remote_row(tier.url, m) for m in tier.versions(_one_job(job))]
        finally:
            tier.close()
    if output == "json":
        from deepvm.reports.documents import to_json

        sys.stdout.write(to_json(rows))
        return
    from deepvm.core.units import format_bytes
    from deepvm.reports.tables import Column, print_table

    columns = [Column("job"), Column("version", "right"), Column("size", "right"), Column("created"), Column("state")]
    cells = [
        [
            str(r["job"]),
            str(r["version"]),
            format_bytes(r["bytes"]),
            str(r["created"] or ""),
            "complete" if r["complete"] else str(r["problem"]),
        ]
        for r in rows
    ]
    print_table(columns, cells)


@app.command("verify")
def verify_versions(
    path: Annotated[str, typer.Argument(metavar="FILE|DIR", help="A version's file, or a folder of versions.")],
    job: Job = "",
) -> None:
    """Compare versions with their commit records. Every byte is read; exit code 1 names what is damaged.

    Example: deepvm ckpt verify /mnt/ckpt
    """
    from deepvm.checkpoint.folder import UNCOMMITTED, verify

    where = _local(path)
    if not where.is_dir():
        _there(where)
        manifest = verify(where)
        sys.stdout.write(f"{where}: good, version {manifest.version} of {manifest.job}\n")
        return
    rows = [f for f in _open(where).found() if job in ("", f.job)]
    damaged, good = [], 0
    for number, row in enumerate(rows, start=1):
        if row.problem == UNCOMMITTED:
            say(f"[{number}/{len(rows)}] {row.path}: skipped: {row.problem}")
            continue
        problem = _damage(row)
        say(f"[{number}/{len(rows)}] {row.path}: {'damaged' if problem else 'good'}")
        damaged += [problem] if problem else []
        good += not problem
    if damaged:
        raise DamagedError("\n".join(damaged))
    if not good:
        raise CheckpointError(f"{where}: there is no complete version{f' of job {job}' if job else ''}")
    sys.stdout.write(f"{where}: {good} good\n")


@app.command("gc")
def collect_garbage(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A folder of versions.")],
    keep: Annotated[int, typer.Option(help="How many of the newest good versions of each job stay.")] = 2,
    every: Annotated[int, typer.Option(metavar="STEPS", help="Also keep one for each so many steps.")] = 0,
    best: Annotated[
        list[int], typer.Option("--best", metavar="VERSION", help="Also keep this one; may be repeated.")
    ] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    job: Job = "",
    trust: Annotated[
        bool, typer.Option("--trust", help="Do not verify the newest versions before older ones are removed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
) -> None:
    """Remove old versions. Also what killed writers left more than an hour ago.

    Damaged versions do not count as kept, and stay for you to look at. Of a version in parts, all that are in this
    folder stay or go together.

    Example: deepvm ckpt gc /mnt/ckpt --keep 2 --every 1000
    """
    from deepvm.checkpoint.folder import UNCOMMITTED, age_s
    from deepvm.checkpoint.retention import kept

    kept((), keep, every)  # refuse what cannot be used before anything is read
    versions = _open(_local(folder))
    rows = [f for f in versions.found() if job in ("", f.job)]
    done = "would remove" if dry_run else "removed"
    for units, halves in _units([f for f in rows if not f.problem]):
        good = units if trust else _newest_good(units, keep)
        stay = kept([unit[0].version for unit in good], keep, every, best)
        old = [unit for unit in good if unit[0].version not in stay]
        # Parts whose counterpart is not here: it may still come, but not behind versions that are here as a whole.
        old += [[row] for row in halves if stay and row.version < min(stay)]
        for row in (row for unit in old for row in unit):
            if not dry_run:
                versions.delete(row.job, row.version)
            sys.stdout.write(f"{done} {row.path}\n")
    for row in rows:
        if row.problem == UNCOMMITTED and age_s(row.path) >= YOUNG_S:
            if not dry_run:
                versions.delete(row.job, row.version)
            sys.stdout.write(f"{done} {row.path}\n")
        elif row.problem and row.problem != UNCOMMITTED:
            say(f"{row.path}: stays: {row.problem}")
    for path in versions.leftovers(YOUNG_S):
        if not dry_run:
            path.unlink(missing_ok=True)
        sys.stdout.write(f"{done} {path}\n")


@app.command("restore")
def restore(
    place: Annotated[str, typer.Argument(metavar="PLACE|FILE", help=f"A version's file, or where they are: {_PLACE}.")],
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="The file to write; it appears when it is whole.")],
    version: Annotated[
        int | None, typer.Option(metavar="N", help="This one. The newest good one unless given.")
    ] = None,
    job: Job = "",
    form: Annotated[
        Literal["torch", "safetensors"],
        typer.Option("--format", help="The file as it is, or the model's tensors alone for other programs."),
    ] = "torch",
    parts: Annotated[
        list[str], typer.Option("--parts", metavar="DIR", help="Another node's folder; may be repeated.")
    ] = [],  # noqa: B006  see above
) -> None:
    """Write a version to a file. The newest good one, after it was compared with its commit record.

    The parts that several memory nodes have kept (JOB.part-1-of-2, ...) are joined to the file of JOB; where each node
    has a folder of its own, name the others with --parts.

    Example: deepvm ckpt restore /mnt/ckpt --to model.pt
    """
    from tempfile import TemporaryDirectory

    target = Path(to)
    if target.is_dir() or not target.parent.is_dir():
        raise RequestError("to", to, "a file in a folder that exists")
    try:
        with TemporaryDirectory(prefix=".deepvm-restore-", dir=target.parent) as folder:
            source, manifest = _get(_where(place), job, version, Path(folder), [_local(p) for p in parts])
            if form == "safetensors":
                from deepvm.checkpoint.export import export_safetensors

                export_safetensors(source, target)
            else:
                _copy(source, manifest, target, own=source.parent == Path(folder))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}") from error
    sys.stdout.write(f"{target}: version {manifest.version} of {manifest.job}\n")


def _get(where: Path | str, job: str, version: int | None, folder: Path, more: list[Path]) -> tuple[Path, Manifest]:
    """A verified file of the version that is wanted, and its record; one that had to be made lies in ``folder``."""
    from deepvm.checkpoint.folder import verify

    if isinstance(where, Path) and not where.is_dir():
        _there(where)
        manifest = verify(where)
        if version not in (None, manifest.version):
            raise RequestError("version", version, f"{manifest.version}, which this file holds")
        return where, manifest
    if isinstance(where, Path):
        from deepvm.checkpoint.tiers.gather import GatherTier, jobs_in

        places = [_open(path) for path in (where, *more)]
        jobs = jobs_in(places)
        if not job and len(jobs) > 1:
            raise RequestError("job", job, f"one of {', '.join(jobs)}")
        job = job or (jobs or ["job"])[0]
        tier: Tier = GatherTier(places)
    else:
        tier = _tier(where)
    try:
        found = [m for m in tier.versions(_one_job(job)) if version in (None, m.version)]
        for manifest in found:
            try:
                return tier.fetch(manifest, folder), manifest
            except CheckpointError as error:
                if version is not None:
                    raise
                say(f"skipped: {error}")
    finally:
        tier.close()
    what = "no good version" if found else "no complete version"
    hint = ""
    if isinstance(where, Path) and any(f.job.startswith(f"{job}.part-") for p in places for f in p.found()):
        hint = "; not all its parts are here, name the folders of the other memory nodes with --parts"
    raise DataError(f"{tier.url}: {what}{'' if version is None else f' {version}'} of job {job}{hint}")


def _copy(source: Path, manifest: Manifest, target: Path, *, own: bool) -> None:
    """Make ``target``; of a source that is ours to take, without copying it."""
    import os
    import secrets
    import shutil

    from deepvm.checkpoint.disk import sync_folder
    from deepvm.checkpoint.folder import verify

    hidden = source if own else target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        if not own:
            shutil.copyfile(source, hidden)
            verify(hidden, manifest)  # what was read the second time need not be what was verified
        with hidden.open("rb+") as stream:
            os.fsync(stream.fileno())
        hidden.replace(target)
        sync_folder(target.parent)
    finally:
        hidden.unlink(missing_ok=True)


def _units(rows: list[Found]) -> list[tuple[list[list[Found]], list[Found]]]:
    """For each job its versions, newest first, each the files that belong together; and parts without counterpart."""
    from deepvm.checkpoint.parts import whole_job

    jobs: dict[tuple[str, int], dict[int, list[Found]]] = {}
    for row in rows:
        job, _, of = whole_job(row.job) or (row.job, 0, 0)
        jobs.setdefault((job, of), {}).setdefault(row.version, []).append(row)
    found = []
    for _, versions in sorted(jobs.items()):
        newest_first = [versions[v] for v in sorted(versions, reverse=True)]
        parts = len({row.job for unit in newest_first for row in unit})  # of those that this folder has at all
        halves = [row for unit in newest_first if len(unit) < parts for row in unit]
        found.append(([unit for unit in newest_first if len(unit) == parts], halves))
    return found


def _newest_good(units: list[list[Found]], keep: int) -> list[list[Found]]:
    """Without the damaged among the newest: these must not be all that is left."""
    good: list[list[Found]] = []
    for number, unit in enumerate(units):
        if len(good) == keep:
            return good + units[number:]
        problem = next((problem for row in unit if (problem := _damage(row))), "")
        if problem:
            say(f"{problem}; it stays, and does not count")
        else:
            good.append(unit)
    return good


def _damage(row: Found) -> str:
    from deepvm.checkpoint.folder import verify

    if row.problem:
        return f"{row.path}: {row.problem}"
    try:
        verify(row.path, row.manifest)
    except DamagedError as error:
        return str(error)
    return ""


def _row(found: Found) -> dict[str, Any]:
    return {
        "job": found.job,
        "version": found.version,
        "path": str(found.path),
        "bytes": found.size,
        "complete": not found.problem,
        "problem": found.problem or None,
        "created": (found.manifest.created if found.manifest else "") or None,
    }


def _remote_row(url: str, manifest: Manifest) -> dict[str, Any]:
    from deepvm.checkpoint.folder import file_name

    return {
        "job": manifest.job,
        "version": manifest.version,
        "path": f"{url}/{file_name(manifest.job, manifest.version)}",
        "bytes": manifest.size,
        "complete": True,
        "problem": None,
        "created": manifest.created or None,
    }


def _where(place: str) -> Path | str:
    """A local path, or the URL of something else."""
    if "://" not in place:
        return Path(place)
    if not place.startswith("file://"):
        return place
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(place)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise RequestError("PLACE", place, "file:///folder, with three slashes")
    return Path(unquote(parts.path))


def _local(place: str) -> Path:
    where = _where(place)
    if not isinstance(where, Path):
        raise RequestError("PLACE", place, "a file or a folder on this machine, or file:///folder")
    return where


def _there(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    return path


def _open(folder: Path) -> VersionFolder:
    from deepvm.checkpoint.folder import VersionFolder

    if not _there(folder).is_dir():
        raise RequestError("PLACE", str(folder), "a folder of versions")
    return VersionFolder(folder)


def _one_job(job: str) -> str:
    import os

    return job or os.environ.get("DEEPVM_JOB") or "job"


def _tier(where: Path | str) -> Tier:
    import secrets

    if isinstance(where, Path):
        from deepvm.checkpoint.tiers.file import FileTier

        return FileTier(where)
    if not where.startswith(("tcp://", "tcps://", "s3://")):
        raise RequestError("PLACE", where, _PLACE)
    from deepvm.checkpoint.tiers.open import open_tier

    return open_tier(where, secrets.token_hex(8))
