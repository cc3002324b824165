"""The results of a job on the user's computer: ``deepvm jobs fetch``."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.tiers.striped import RecoveryTier
from deepvm.core.units import parse_time, utc_text
from deepvm.errors import CheckpointError, DataError, DeepVMError
from deepvm.jobs.agent.backups import open_backups
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import JobRow
from deepvm.jobs.history.job_report import unkept
from deepvm.jobs.storage.backup_store import files_of, place_of
from deepvm.jobs.storage.fetched_files import SAME, BroughtFile, FetchFolder
from deepvm.jobs.storage.output_store import NamedOutput, OutputStore, named_outputs, open_objects
from deepvm.jobs.submission import storage_of
from deepvm.records import dataclass

CHECKPOINT = "checkpoint.pt"
_BACKUP = "backup"
# Memory of machines ends with the job
_LASTING = ("file", "s3", "gs", "az")


@dataclass(frozen=True)
class FetchedFile:
    """A file of a job that lies in the user's folder now."""

    name: str  # Below the folder
    bytes: int
    kind: str  # output, checkpoint or backup
    machine: str  # That wrote it; empty of checkpoints and backups
    step: int | None  # Of checkpoints and backups
    kept: str | None  # When, ISO 8601
    state: str  # new, replaced or same


@dataclass(frozen=True)
class JobResults:
    """What was brought to the folder ``where``, and what could not be."""

    name: str
    where: str
    files: list[FetchedFile]
    problems: list[str]


def fetch_results(row: JobRow, world: JobState, target: Path, *, all_files: bool) -> JobResults:
    """Bring a job's outputs and its newest checkpoint. Raises DataError: there is nothing."""
    storage = storage_of(row.name, row.folder, row.spec)
    folder = FetchFolder(target, row.name)
    problems = [
        f"outputs of {machine} are not kept since {utc_text(kept.failing_s or 0.0)}: {kept.why}"
        for machine, kept in unkept(world).items()
    ]
    results = JobResults(row.name, str(target), [], problems)
    tiers = [tier for tier in storage.tiers if tier.partition(":")[0].lower() in _LASTING]
    with folder.opened():
        with _noted(results):
            _outputs(storage.outputs, folder, results, all_files=all_files)
        with _noted(results, CHECKPOINT):
            _checkpoint(tiers, folder, results)
        with _noted(results, _BACKUP):
            _backup(tiers, folder, results)
    if not results.files and not results.problems:
        patterns = ", ".join(storage.patterns) or "none"
        raise DataError(
            f"{row.name} has kept no outputs and no checkpoint yet (outputs: {patterns}); see"
            f" 'deepvm jobs show {row.name}'"
        )
    return results


@contextmanager
def _noted(results: JobResults, name: str = "") -> Iterator[None]:
    """An error is a problem of the results; what else there is comes all the same."""
    try:
        yield
    except (DeepVMError, OSError) as error:
        about = "" if name in str(error) else f"{name}: "
        results.problems.append(f"{about}{error}")


def _outputs(url: str, folder: FetchFolder, results: JobResults, *, all_files: bool) -> None:
    if not url:
        return
    store = OutputStore(open_objects(url, results.name))
    lists = []
    for machine in store.machines():
        try:
            lists.append(store.read(machine))
        except ValueError as error:
            results.problems.append(f"the outputs of {machine} are not brought: {error}")
    for output in named_outputs(lists, all_files=all_files):
        with _noted(results, output.name):
            results.files.append(_output(store, folder, output, results.name))


def _output(store: OutputStore, folder: FetchFolder, output: NamedOutput, job: str) -> FetchedFile:
    file = output.file
    machine = output.machine
    while True:
        new = BroughtFile(output.name, file.sha256, job, file.kept_s, f"output of {machine}")
        try:
            state = folder.bring(new, file.bytes, store.pieces(machine, file))
            break
        except CheckpointError:
            # The machine may have kept a newer one meanwhile, and removed this one
            newer = store.read(machine).files.get(output.source)
            if newer is None or newer.kept_s <= file.kept_s:
                raise
            file = newer
    kept = utc_text(file.kept_s)
    return FetchedFile(output.name, file.bytes, "output", machine, None, kept, state)


def _free_name(name: str, results: JobResults) -> str:
    """A name that no output has."""
    taken = {file.name for file in results.files}
    while name in taken:
        name = f"deepvm/{name}"
    return name


def _open_tier(url: str) -> Tier | None:
    place = urlsplit(url)
    if place.scheme.lower() != "file":
        return open_tier(url, session="")
    path = Path(unquote(place.path))
    return RecoveryTier([VersionFolder(path)]) if path.is_dir() else None


def _checkpoint(tiers: list[str], folder: FetchFolder, results: JobResults) -> None:
    """The newest of all tiers that is whole; a tier that does not answer hides no other."""
    versions: list[tuple[CommitRecord, Tier]] = []
    with ExitStack() as stack:
        for url in tiers:
            with _noted(results, url):
                if (tier := _open_tier(url)) is not None:
                    stack.enter_context(closing(tier))
                    versions += [(record, tier) for record in tier.versions(results.name)]
        for record, tier in sorted(versions, key=lambda pair: -pair[0].version):
            try:
                results.files.append(_version(tier, record, folder, results))
                return
            except CheckpointError as error:
                results.problems.append(f"version {record.version} is not brought: {error}")


def _version(
    tier: Tier, record: CommitRecord, folder: FetchFolder, results: JobResults
) -> FetchedFile:
    name = _free_name(CHECKPOINT, results)
    source = f"version {record.version} of {record.created}"
    here = folder.here(name)
    state = SAME
    kept = None
    kept_s = 0.0
    if record.created:
        kept_s = parse_time(record.created).timestamp()
        kept = utc_text(kept_s)
    if here is None or (here.source, here.job) != (source, results.name):
        folder.check_space(record.size)
        path = tier.fetch(record, folder.parts)
        state = folder.bring_copy(name, path, kept_s, source)
    return FetchedFile(name, record.size, "checkpoint", "", record.version, kept, state)


def _backup(tiers: list[str], folder: FetchFolder, results: JobResults) -> None:
    """The newest backup of a script that saves by itself, of its first rank."""
    store = open_backups(tiers, results.name)
    if store is None:
        return
    backup = next(iter(store.whole()), None)
    if backup is None:
        return
    # The newest generation's newest counts
    step, generation = place_of(backup.name)
    kept_s = generation + step / 1e12
    for path, source in files_of(store.fetch(backup, 0, folder.parts / _BACKUP)):
        name = _free_name(f"{_BACKUP}/{source}", results)
        size = path.stat().st_size
        state = folder.bring_copy(name, path, kept_s, backup.name)
        results.files.append(FetchedFile(name, size, _BACKUP, "", step, None, state))
