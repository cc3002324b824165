"""``deepvm ckpt``: list, verify, thin out and restore checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deepvm.cli.checkpoint.bench import bench
from deepvm.cli.checkpoint.gc import collect_garbage, damage, removed, torn, units_of
from deepvm.cli.checkpoint.place import PLACE, Job, local, open_folder, open_place, there, wanted_job, where_is
from deepvm.cli.output import TableJson, print_document, say
from deepvm.errors import CheckpointError, DamagedError, DataError, RequestError

if TYPE_CHECKING:
    from deepvm.checkpoint.format.manifest import Manifest
    from deepvm.checkpoint.tiers.base import Tier

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="List, verify, thin out, restore and measure checkpoints."
)
app.command("bench", short_help="Measure how long training stands still for a save.")(bench)


@app.command("ls")
def list_versions(
    place: Annotated[str, typer.Argument(metavar="PLACE", help=f"Where the versions are: {PLACE}.")],
    job: Job = "",
    output: TableJson = "table",
) -> None:
    """List versions, complete or not. The newest come first; a memory node or a bucket is asked for one job.

    Example: deepvm ckpt ls /mnt/ckpt -o json
    """
    where = where_is(place)
    rows = _rows_in(where, job) if isinstance(where, Path) else _remote_rows(where, wanted_job(job) or "job")
    if output == "json":
        print_document(rows)
        return
    from deepvm.core.units import format_bytes
    from deepvm.reports.tables import Column, print_table

    columns = [
        Column("job", drop=1),
        Column("version", "right"),
        Column("size", "right", drop=2),
        Column("created", drop=3),
        Column("state"),
    ]
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
    print_table(columns, cells, also="-o json")


@app.command("verify")
def verify_versions(
    place: Annotated[str, typer.Argument(metavar="PLACE|FILE", help=f"A version's file, or where they are: {PLACE}.")],
    job: Job = "",
) -> None:
    """Compare versions with their commit records. Every byte is read; exit code 1 names what is damaged.

    Damaged is also a file without its record, a record without its file, and a link, a pipe or a folder in place of a
    file. A memory node or a bucket is asked for one job, and sends one version after the other here.

    Example: deepvm ckpt verify /mnt/ckpt
    """
    from deepvm.checkpoint.files.commit_record import verify

    where = where_is(place)
    if isinstance(where, str):
        _verify_remote(where, wanted_job(job) or "job")
        return
    if not where.is_dir():
        there(where)
        manifest = verify(where)
        sys.stdout.write(f"{where}: good, version {manifest.version} of {manifest.job}\n")
        return
    rows = [f for f in open_folder(where).found() if job in ("", f.job)]
    damaged, good = list[str](), []
    for number, row in enumerate(rows, start=1):
        problem = damage(row)
        if problem and removed(row):  # by a training that goes on beside this
            say(f"[{number}/{len(rows)}] {row.path}: removed meanwhile")
            continue
        say(f"[{number}/{len(rows)}] {row.path}: {'damaged' if problem else 'good'}")
        damaged += [problem] if problem else []
        good += [] if problem else [row]
    damaged += [problem for units, _ in units_of(good) for unit in units if (problem := torn(unit.rows))]
    if damaged:
        raise DamagedError("\n".join(damaged))
    if not good:
        raise CheckpointError(f"{where}: there is no complete version{f' of job {job}' if job else ''}")
    sys.stdout.write(f"{where}: {len(good)} good\n")


def _verify_remote(place: str, job: str) -> None:
    from tempfile import TemporaryDirectory

    damaged = list[str]()
    tier = open_place(place)
    try:
        found = tier.versions(job)
        for number, manifest in enumerate(found, start=1):
            problem = ""
            with TemporaryDirectory(prefix="deepvm-verify-") as folder:
                try:
                    tier.fetch(manifest, Path(folder))
                except DamagedError as error:
                    problem = str(error)
            say(f"[{number}/{len(found)}] version {manifest.version} of {job}: {'damaged' if problem else 'good'}")
            damaged += [problem] if problem else []
        lost = tier.damaged(job)
        for each in lost:
            say(f"version {each.version} of {job}: damaged")
        damaged += [f"{place}: version {each.version} of {job}: {each.problem}" for each in lost]
    finally:
        tier.close()
    if damaged:
        raise DamagedError("\n".join(damaged))
    if not found:
        raise CheckpointError(f"{place}: there is no complete version of job {job}")
    sys.stdout.write(f"{place}: {len(found)} good\n")


app.command("gc")(collect_garbage)


@app.command("restore")
def restore(
    place: Annotated[str, typer.Argument(metavar="PLACE|FILE", help=f"A version's file, or where they are: {PLACE}.")],
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
            source, manifest = _get(where_is(place), job, version, Path(folder), [local(p) for p in parts])
            if form == "safetensors":
                from deepvm.checkpoint.files.export import export_safetensors

                export_safetensors(source, target)
            else:
                _copy(source, manifest, target, own=source.parent == Path(folder))
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}") from error
    sys.stdout.write(f"{target}: version {manifest.version} of {manifest.job}\n")


def _get(where: Path | str, job: str, version: int | None, folder: Path, more: list[Path]) -> tuple[Path, Manifest]:
    """A verified file of the version that is wanted, and its record; one that had to be made lies in ``folder``."""
    from deepvm.checkpoint.files.commit_record import verify

    if isinstance(where, Path) and not where.is_dir():
        there(where)
        manifest = verify(where)
        if version not in (None, manifest.version):
            raise RequestError("version", version, f"{manifest.version}, which this file holds")
        if job not in ("", manifest.job):
            raise RequestError("job", job, f"{manifest.job}, whose version this file holds")
        return where, manifest
    if isinstance(where, Path):
        from deepvm.checkpoint.files.file_names import whole_job
        from deepvm.checkpoint.tiers.recover_stripes import RecoveryTier, jobs_in

        places = [open_folder(path) for path in (where, *more)]
        jobs = jobs_in(places)
        job = wanted_job(job)
        if not job and len(jobs) > 1:
            raise RequestError("job", job, f"one of {', '.join(jobs)}")
        job = job or (jobs or ["job"])[0]
        tier: Tier = RecoveryTier(places)
    else:
        job, tier = wanted_job(job) or "job", open_place(where)
    try:
        found = [m for m in tier.versions(job) if version in (None, m.version)]
        for manifest in found:
            try:
                return tier.fetch(manifest, folder), manifest
            except CheckpointError as error:
                if version is not None:
                    raise
                say(f"skipped: {error}")
        damaged = len(tier.damaged(job))
    finally:
        tier.close()
    what = "no good version" if found else "no complete version"
    hint = f"; {damaged} damaged, see 'deepvm ckpt verify'" if damaged else ""
    if isinstance(where, Path) and any((whole_job(f.job) or ("",))[0] == job for p in places for f in p.found()):
        hint += "; not all its parts are here, name the folders of the other memory nodes with --parts"
    raise DataError(f"{tier.url}: {what}{'' if version is None else f' {version}'} of job {job}{hint}")


def _copy(source: Path, manifest: Manifest, target: Path, *, own: bool) -> None:
    """Make ``target``; of a source that is ours to take, without copying it."""
    import os
    import secrets
    import shutil

    from deepvm.checkpoint.files.commit_record import verify
    from deepvm.checkpoint.files.durable_write import sync_folder

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


def _rows_in(folder: Path, job: str) -> list[dict[str, Any]]:
    found = [f for f in open_folder(folder).found() if job in ("", f.job)]
    return [
        _row(f.job, f.version, str(f.path), f.size, f.problem, f.manifest.created if f.manifest else "") for f in found
    ]


def _remote_rows(place: str, job: str) -> list[dict[str, Any]]:
    from deepvm.checkpoint.files.file_names import file_name

    tier = open_place(place)
    try:
        rows = [_row(job, m.version, tier.url, m.size, "", m.created) for m in tier.versions(job)]
        rows += [_row(job, d.version, tier.url, d.size, d.problem, "") for d in tier.damaged(job)]
    finally:
        tier.close()
    for row in rows:
        row["path"] += f"/{file_name(job, row['version'])}"
    return sorted(rows, key=lambda row: -row["version"])


def _row(job: str, version: int, path: str, size: int, problem: str, created: str) -> dict[str, Any]:
    return {
        "job": job,
        "version": version,
        "path": path,
        "bytes": size,
        "complete": not problem,
        "problem": problem or None,
        "created": created or None,
    }
