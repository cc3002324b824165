"""The results of a job on the user's computer: ``deepvm jobs fetch``."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.registry import open_tier
from deepvm.checkpoint.tiers.striped import RecoveryTier
from deepvm.core.units import parse_time, utc_text
from deepvm.errors import CheckpointError, DamagedError, DataError, DeepVMError
from deepvm.jobs.agent.backups import open_backups
from deepvm.jobs.decisions.world import JobState
from deepvm.jobs.history.history import JobRow
from deepvm.jobs.history.job_report import unkept
from deepvm.jobs.storage.backup_store import files_of
from deepvm.jobs.storage.fetched_files import SAME, BroughtFile, FetchFolder, digest_of, file_pieces
from deepvm.jobs.storage.output_store import FoundOutput, OutputStore, chosen, open_objects
from deepvm.jobs.submission import storage_of

CHECKPOINT = "checkpoint.pt"
_BACKUP = "backup"
_TRIES = 3
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
    """What was brought to ``folder``, and what could not be."""

    name: str
    folder: Path
    files: list[FetchedFile]
    problems: list[str]

    @property
    def where(self) -> str:
        return str(self.folder)


def fetch_results(row: JobRow, world: JobState, target: Path, *, all_files: bool) -> JobResults:
    """Bring a job's outputs and its newest checkpoint. Raises DataError: there is nothing."""
    storage = storage_of(row.name, row.folder, row.spec)
    folder = FetchFolder(target, row.name)
    problems = [
        f"outputs of {machine} are not kept since {utc_text(kept.failing_s or 0.0)}: {kept.why}"
        for machine, kept in unkept(world).items()
    ]
    found = JobResults(row.name, target, [], problems)
    tiers = [tier for tier in storage.tiers if tier.partition(":")[0].lower() in _LASTING]
    with folder.opened():
        with _noted(found):
            _outputs(storage.outputs, folder, found, all_files=all_files)
        with _noted(found):
            _checkpoint(tiers, folder, found)
        with _noted(found):
            _backup(tiers, folder, found)
    if not found.files and not found.problems:
        patterns = ", ".join(storage.patterns) or "none"
        raise DataError(
            f"{row.name} has kept no outputs and no checkpoint yet (outputs: {patterns}); see"
            f" 'deepvm jobs show {row.name}'"
        )
    return found


@contextmanager
def _noted(found: JobResults, name: str = "") -> Iterator[None]:
    """An error is a problem of the results; what else there is comes all the same."""
    try:
        yield
    except (DeepVMError, OSError) as error:
        about = "" if name in str(error) else f"{name}: "
        found.problems.append(f"{about}{error}")


def _outputs(url: str, folder: FetchFolder, found: JobResults, *, all_files: bool) -> None:
    if not url:
        return
    store = OutputStore(open_objects(url, found.name))
    lists = []
    for machine in store.machines():
        try:
            lists.append(store.read(machine))
        except ValueError as error:
            found.problems.append(f"the outputs of {machine} are not brought: {error}")
    files = chosen(lists, all_files=all_files)
    if files:
        folder.fits(sum(each.file.bytes for each in files if not _is_here(folder, each, found)))
    for one in files:
        with _noted(found, one.name):
            found.files.append(_output(store, folder, one, found.name))


def _new(one: FoundOutput, job: str) -> BroughtFile:
    return BroughtFile(one.name, one.file.sha256, job, one.file.kept_s, f"output of {one.machine}")


def _is_here(folder: FetchFolder, one: FoundOutput, found: JobResults) -> bool:
    try:
        return folder.state(_new(one, found.name)) == SAME
    except DataError:  # it is said when it is to be brought
        return True


def _output(store: OutputStore, folder: FetchFolder, one: FoundOutput, job: str) -> FetchedFile:
    for left in reversed(range(_TRIES)):
        file = one.file
        try:
            state = folder.bring(_new(one, job), file.bytes, store.pieces(one.machine, file))
            break
        except CheckpointError:
            # The machine may have kept a newer one meanwhile, and removed this one
            newer = store.read(one.machine).files.get(one.source)
            if newer is None or newer == file or not left:
                raise
            one = replace(one, file=newer)
    kept = utc_text(file.kept_s)
    return FetchedFile(one.name, file.bytes, "output", one.machine, None, kept, state)


def _free_name(name: str, found: JobResults) -> str:
    """A name that no output has."""
    taken = {file.name for file in found.files}
    while name in taken:
        name = f"deepvm/{name}"
    return name


def _open_tier(url: str) -> Tier | None:
    place = urlsplit(url)
    if place.scheme.lower() != "file":
        return open_tier(url, session="")
    path = Path(unquote(place.path))
    return RecoveryTier([VersionFolder(path)]) if path.is_dir() else None


def _checkpoint(tiers: list[str], folder: FetchFolder, found: JobResults) -> None:
    for url in tiers:
        tier = _open_tier(url)
        if tier is None:
            continue
        with closing(tier):
            for record in tier.versions(found.name):
                try:
                    found.files.append(_version(tier, record, folder, found))
                    return
                except DamagedError as error:
                    found.problems.append(f"version {record.version} is not brought: {error}")


def _version(
    tier: Tier, record: CommitRecord, folder: FetchFolder, found: JobResults
) -> FetchedFile:
    name = _free_name(CHECKPOINT, found)
    source = f"version {record.version} of {record.created}"
    here = folder.here(name)
    state = SAME
    if here is None or (here.source, here.job) != (source, found.name):
        folder.fits(2 * record.size)
        path = tier.fetch(record, folder.parts)
        kept_s = parse_time(record.created).timestamp() if record.created else 0.0
        new = BroughtFile(name, digest_of(path), found.name, kept_s, source)
        state = folder.bring(new, path.stat().st_size, file_pieces(path))
    facts = (record.version, record.created or None, state)
    return FetchedFile(name, record.size, "checkpoint", "", *facts)


def _backup(tiers: list[str], folder: FetchFolder, found: JobResults) -> None:
    """The newest backup of a script that saves by itself, of its first rank."""
    store = open_backups(tiers, found.name)
    kept = next(iter(store.whole()), None) if store else None
    if store is None or kept is None:
        return
    top = store.fetch(kept, 0, folder.parts / "backup")
    place, _, generation = kept.name.partition("-")
    for path, name in files_of(top):
        name = _free_name(f"{_BACKUP}/{name}", found)
        # The newest generation's newest counts
        kept_s = float(generation) + float(place) / 1e12
        new = BroughtFile(name, digest_of(path), found.name, kept_s, kept.name)
        size = path.stat().st_size
        state = folder.bring(new, size, file_pieces(path))
        found.files.append(FetchedFile(name, size, "backup", "", kept.step, None, state))
