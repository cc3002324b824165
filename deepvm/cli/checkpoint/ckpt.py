"""``deepvm ckpt``: list, verify, restore and benchmark checkpoints."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from deepvm.checkpoint.files import commit_record
from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import file_name
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.tiers.base import Tier, without_secrets
from deepvm.checkpoint.tiers.file import FileTier
from deepvm.checkpoint.tiers.striped import RecoveryTier, jobs_in
from deepvm.cli.checkpoint import versions
from deepvm.cli.checkpoint.versions import JOB, PLACE, PLACE_OR_FILE
from deepvm.cli.long_runs import cleaning_up
from deepvm.cli.output import Output, draw, plot_of, print_as, print_named, say, text
from deepvm.cli.parameters import arg, group, opt
from deepvm.core.json_types import JsonDict
from deepvm.core.options import whole, words
from deepvm.core.units import parse_bytes
from deepvm.errors import (
    CheckpointError,
    DamagedError,
    DataError,
    OptionMismatchError,
    RequestError,
)
from deepvm.io.atomic_write import sync

app = group("List, verify, prune, restore and benchmark checkpoints.")
_STATE = "100MB"
_MAX_TRAINERS = 10_000


@app.command(short_help="Measure how long a save blocks training.")
def bench(
    model: Literal["resnet18", "resnet152"] = opt("resnet18", "140 or 723 MB of state with Adam."),
    reps: int = opt(5, "Rounds of saves, after three of warm-up.", "N"),
    methods: str = opt(
        "",
        "Comma-separated: dcp, dcp-async, torchsnapshot, deepvm-file, deepvm-memory,"
        " deepvm-memory-durable; "
        "default: all available. torch.save always runs.",
        "NAMES",
    ),
    folder: str = opt(".", "Where to write temporary files.", "FOLDER", "--dir"),
    steps: int = opt(4, "Training steps after each save.", "N"),
    trainers: str = opt("", "Only a memory node, with so many at once: 1,4,16.", "N,..."),
    state: str = opt(_STATE, "With --trainers: sizes of each one's state.", "SIZE,..."),
    ranks: int = opt(1, "With --trainers: processes of each, which share its state.", "N"),
    plot: str = plot_of("the ratios"),
    output: Output = "table",
) -> None:
    """Measure how long a checkpoint blocks training, and how long until it is safe.

    All methods save the same training run in turn on one disk; medians, and ratios to torch.save
    with fsync.

    With --trainers a memory node on this machine takes states of that many processes at once, as
    fast as they can send, next to plain TCP, a copy in memory and a write past the page cache.

    Example: deepvm ckpt bench --model resnet18 --reps 5 --dir /mnt/ckpt
    """
    defaults: dict[str, tuple[Any, Any]] = {"state": (state, _STATE), "ranks": (ranks, 1)}
    reason = "needs --trainers"
    if trainers:
        defaults = {"plot": (plot, ""), "model": (model, "resnet18")}
        reason = "does not go with --trainers, which measures only a memory node"
    for option, (given, default) in defaults.items():
        if given != default:
            raise OptionMismatchError(option, given, reason)
    if trainers:
        _bench_node(trainers, state, ranks, reps, folder, output)
        return
    from deepvm.profiling.checkpoint.bench import run_bench
    from deepvm.reports.profiling.measurements import bench_figure

    names = list(filter(None, words(methods, "methods")))
    path = Path(folder or ".")
    with cleaning_up():  # gigabytes must not be left on the disk
        result = run_bench(model, reps, methods=names, folder=path, steps=steps, say=say)
    print_as(output, text("ckpt_bench", bench=result), result.document)
    draw(plot, lambda: bench_figure(result))


def _bench_node(
    trainers: str, state: str, ranks: int, reps: int, folder: str, output: Output
) -> None:
    from deepvm.profiling.checkpoint.node_bench import run_node_bench

    counts = [whole(_MAX_TRAINERS)(word, "trainers") for word in words(trainers, "trainers")]
    # The unit may follow only the last of several sizes: 0.1,1,4GB.
    unit = state.strip().lstrip("0123456789., ")
    sizes = [
        parse_bytes(word if word[-1:].isalpha() else word + unit, "state")
        for word in words(state, "state")
    ]
    with cleaning_up():
        result = run_node_bench(
            counts, sizes, reps, ranks=ranks, folder=Path(folder or "."), say=say
        )
    print_as(output, text("ckpt_bench_node", bench=result), result.document)


@app.command("ls")
def list_versions(
    place: str = arg("PLACE", f"Where the checkpoints are: {PLACE}."),
    job: str = JOB,
    output: Output = "table",
) -> None:
    """List checkpoints, complete or not. The newest come first.

    A memory node or a bucket is asked for one job.

    Example: deepvm ckpt ls /mnt/ckpt -o json
    """
    where = versions.path_or_url(place)
    if isinstance(where, Path):
        rows = [
            _row(f.job, f.version, str(f.path), f.size, f.manifest, f.problem)
            for f in versions.open_folder(where).found(job)
        ]
    else:
        job = versions.wanted_job(job)
        with closing(versions.open_place(where)) as tier:
            rows = [_row(job, m.version, tier.url, m.size, m) for m in tier.versions(job)]
            for damage in tier.damaged(job):
                rows.append(_row(job, damage.version, tier.url, damage.size, None, damage.problem))
        for row in rows:
            row["path"] += f"/{file_name(job, row['version'])}"
        rows.sort(key=lambda row: -row["version"])
    print_as(output, text("ckpt_ls", versions=rows), lambda: rows, name="ckpt-ls")
    if not rows:
        say(f"{without_secrets(str(where))}: no checkpoint{versions.of_job(job)}")


def _row(
    job: str, version: int, path: str, size: int, record: CommitRecord | None, problem: str = ""
) -> JsonDict:
    return {
        "job": job,
        "version": version,
        "path": path,
        "bytes": size,
        "complete": not problem,
        "problem": problem or None,
        "created_at": (record and record.created) or None,
    }


@app.command("verify")
def verify_versions(place: str = PLACE_OR_FILE, job: str = JOB, output: Output = "table") -> None:
    """Compare checkpoints with their manifests.

    Exit code 1: something is damaged, missing or cannot be read.

    Every byte is read. A file without its record, a record without its file, and a link, a pipe or
    a folder where a file should be count as damaged, too. A memory node or a bucket is asked for
    one job, and its checkpoints are downloaded one after the other.

    Example: deepvm ckpt verify /mnt/ckpt
    """
    where = versions.path_or_url(place)
    if not isinstance(where, Path):
        job = versions.wanted_job(job)
        with closing(versions.open_place(where)) as tier:
            problems = list(_verify_job(tier, job, f"{where}: "))
    elif where.is_dir():
        problems = _verify_folder(where, job)
    else:
        try:
            commit_record.verify(versions.existing(where))
            problems = [""]
        except DamagedError as error:
            problems = [str(error)]
    damaged = list(filter(None, problems))
    good = problems.count("")

    def table() -> None:
        if good and not damaged:
            sys.stdout.write(f"{where}: {good} good\n")

    values = {"place": str(where), "good": good, "damaged": damaged}
    print_named(output, table, "ckpt-verify", values)
    if damaged:
        raise DamagedError("\n".join(damaged))
    if not good:
        raise CheckpointError(f"{where}: there is no complete checkpoint{versions.of_job(job)}")


def _verify_folder(folder: Path, job: str) -> list[str]:
    """As :func:`_verify_job` of all jobs; parts must belong together, too."""
    found = versions.open_folder(folder).found(job)
    tier = FileTier(folder)
    problems = [
        problem
        for name in dict.fromkeys(row.job for row in found)
        for problem in _verify_job(tier, name)
    ]
    if not any(problems):
        sound = [row for row in found if not row.problem]
        wholes = [files for known, _ in versions.versions_of(sound) for files in known.values()]
        problems += filter(None, [versions.problem_of(files, trust=True) for files in wholes])
    return problems


def _verify_job(tier: Tier, job: str, place: str = "") -> Iterator[str]:
    for manifest in tier.versions(job):
        version = manifest.version
        problem = ""
        try:
            with TemporaryDirectory(prefix="deepvm-verify-") as folder:
                tier.fetch(manifest, Path(folder))
        except CheckpointError as error:
            left = {record.version for record in tier.versions(job)}
            left |= {damage.version for damage in tier.damaged(job)}
            if version not in left:
                # Not damaged: the retention of a node or a training run removed it
                say(f"version {version} of {job}: removed meanwhile")
                continue
            if not isinstance(error, DamagedError):
                raise
            problem = str(error)
        say(f"version {version} of {job}: {'damaged' if problem else 'good'}")
        yield problem
    for damage in tier.damaged(job):
        say(f"version {damage.version} of {job}: damaged")
        if place:
            yield f"{place}version {damage.version} of {job}: {damage.problem}"
        else:
            yield damage.problem


app.command("gc")(versions.collect_garbage)


@app.command("restore")
def restore(
    place: str = PLACE_OR_FILE,
    to: str = opt(..., "Output file; it appears when it is complete.", "FILE"),
    version: int | None = opt(None, "This checkpoint; default: the newest good one.", "N"),
    job: str = JOB,
    form: Literal["torch", "safetensors"] = opt(
        "torch",
        "The file as saved, or only the model's tensors for other programs.",
        None,
        "--format",
    ),
    parts: list[str] = opt([], "Folder of another node; repeatable.", "DIR"),
) -> None:
    """Write a checkpoint to a file.

    By default the newest good one, verified against its manifest. The parts of several memory
    nodes (JOB.part-1-of-2, ...) are joined into one file; where each node has its own folder, name
    the others with --parts.

    Example: deepvm ckpt restore /mnt/ckpt --to model.pt
    """
    target = Path(to)
    if target.is_dir() or not target.parent.is_dir():
        raise RequestError("to", to, "a file in a folder that exists")
    with (
        failing(target),
        TemporaryDirectory(prefix=".deepvm-restore-", dir=target.parent) as folder,
    ):
        source, manifest = _get(versions.path_or_url(place), job, version, Path(folder), parts)
        if form == "safetensors":
            from deepvm.checkpoint.files.export import export_safetensors

            export_safetensors(source, target)
        else:
            if source.parent != Path(folder):  # one of the user's own files
                source = Path(shutil.copyfile(source, Path(folder, "copy")))
                commit_record.verify(source, manifest)  # it may have changed since it was verified
            sync(source)
            source.replace(target)
            sync(target.parent)
    sys.stdout.write(f"{target}: version {manifest.version} of {manifest.job}\n")


def _get(
    where: Path | str, job: str, version: int | None, folder: Path, more: list[str]
) -> tuple[Path, CommitRecord]:
    if isinstance(where, Path) and not where.is_dir():
        manifest = commit_record.verify(versions.existing(where))
        if version not in (None, manifest.version):
            raise RequestError("version", version, f"{manifest.version}, which this file holds")
        if job not in ("", manifest.job):
            raise RequestError("job", job, f"{manifest.job}, whose version this file holds")
        return where, manifest
    folders: list[VersionFolder] = []
    if isinstance(where, Path):
        folders = [versions.open_folder(where), *map(versions.open_folder, more)]
        tier: Tier = RecoveryTier(folders)
    else:
        tier = versions.open_place(where)
    jobs = jobs_in(folders)
    job = versions.wanted_job(job, "")
    if not job and len(jobs) > 1:
        raise RequestError("job", job, f"one of {', '.join(jobs)}")
    job = job or next(iter(jobs), "job")
    with closing(tier):
        for manifest in tier.versions(job):
            if version not in (None, manifest.version):
                continue
            try:
                return tier.fetch(manifest, folder), manifest
            except CheckpointError as error:
                if version is not None:
                    raise
                say(f"skipped: {error}")
        damaged = len(tier.damaged(job))
    if version is None:
        number = ""
    else:
        number = f" {version}"
    hint = ""
    if damaged:
        hint = f"; {damaged} damaged, see 'deepvm ckpt verify'"
    if job in jobs and not any(place.found(job) for place in folders):
        hint += "; for parts in other folders: --parts"
    raise DataError(f"{tier.url}: no complete checkpoint{number}{versions.of_job(job)}{hint}")
