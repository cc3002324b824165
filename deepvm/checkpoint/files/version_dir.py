"""A folder of checkpoints: atomic writes, listed by manifests, verified before use.

A write: the bytes into a hidden file, fsync; the record into another, the *upcoming* record, fsync,
fsync of the folder; then the file gets its name, fsync of the folder, and only then the record. So
a named file without a record has lost it, and counts as a damaged checkpoint, as does a record
alone.
Hidden files do not count: the writer that fails removes them, or the next one that is alone there.

A deleted version's file may be kept under a hidden name as a *spare*, which the next checkpoint
overwrites in place, like LightCheck's two slots: no new blocks are needed, even on a full disk.
"""

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path

from deepvm.checkpoint.files import durable_write, file_names
from deepvm.checkpoint.files.commit_record import (
    UPCOMING,
    read_manifest,
    record_of,
    settle,
    upcoming_of,
    verify,
)
from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage, NewVersion
from deepvm.errors import CheckpointError, DamagedError
from deepvm.io.atomic_write import discard, sync, write_bytes
from deepvm.io.failpoints import point
from deepvm.io.file_lock import FileLock
from deepvm.records import dataclass

# Names of the lock files; they stay, empty
WRITERS, NODE = ".deepvm-writers.lock", ".deepvm-node.lock"
_WRITERS_LIMIT_S = 10.0
_EPOCH_LIMIT_S = 30.0


class WriterLock:
    """Marks a process as a writer of a folder, so that others leave its hidden files alone."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / WRITERS, 0o666)
        self._guard = threading.Lock()
        self._warned = False

    def enter(self, clear_up: Callable[[], object] = lambda: None) -> None:
        """Join the writers of an existing folder; the only writer first calls ``clear_up``."""
        with self._guard:
            if not self._lock.held:
                if self._take(shared=False):
                    with contextlib.suppress(CheckpointError):  # writing may work all the same
                        clear_up()
                self._take(shared=True, limit_s=_WRITERS_LIMIT_S)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether this is the only writer until the context ends; then as after :meth:`enter`."""
        with self._guard:
            try:
                yield self._take(shared=False)
            finally:
                self._take(shared=True, limit_s=_WRITERS_LIMIT_S)

    def leave(self) -> None:
        with self._guard:
            self._lock.release()

    def _take(self, *, shared: bool, limit_s: float = 0.0) -> bool:
        why = "another process has been cleaning up for a long time"
        try:
            done = self._lock.take(shared=shared, limit_s=limit_s)
        except OSError as error:
            done = False
            why = f"{error.filename or 'it'}: {error.strerror or error}"
        if shared and not done and not self._warned:
            self._warned = True
            log.warning(
                "a memory node that starts with this folder may remove unfinished files: %s", why
            )
        return done


class EpochFile:
    """The number of one job's newest generation in a folder.

    A commit happens under a shared lock, after a look at the number; raising it takes an exclusive
    one: so a commit is either before, and is seen, or it fails.
    """

    def __init__(self, folder: Path, job: str) -> None:
        self._path = folder / f".{file_names.check_job(job)}.epoch"
        self._lock = self._path.with_name(f"{self._path.name}.lock")

    def read(self) -> int:
        """The number, 0 without one. Raises CheckpointError: the file is damaged."""
        try:
            return int(self._path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._path}: no number of a generation: {error}") from None

    def begin(self, epoch: int) -> None:
        """Refuse lower numbers from now on. Raises CheckpointError: a higher one has started."""
        with self._held(shared=False):
            self._check(epoch)
            if epoch > self.read():
                with failing(self._path):
                    write_bytes(self._path, str(epoch).encode())

    @contextlib.contextmanager
    def current(self, epoch: int) -> Iterator[None]:
        """No higher number starts in the context. Raises CheckpointError: one has started."""
        with self._held(shared=True):
            self._check(epoch)
            yield

    def _check(self, epoch: int) -> None:
        newest = self.read()
        if epoch < newest:
            raise CheckpointError(
                f"{self._path.parent}: generation {epoch} is over: {newest} has started"
            )

    @contextlib.contextmanager
    def _held(self, *, shared: bool) -> Iterator[None]:
        lock = FileLock(self._lock, 0o666)
        try:
            with failing(self._lock, "locked"):
                if not lock.take(shared=shared, limit_s=_EPOCH_LIMIT_S):
                    raise CheckpointError(
                        f"{self._lock}: another process has held it for {_EPOCH_LIMIT_S:.0f} s"
                    )
            yield
        finally:
            lock.release()


YOUNG_S = 3600.0  # Seconds for which a file without a record may belong to an active writer
# Within it who removes a record removes the file, too, on any disk that is not hopelessly busy
_REMOVAL_S = 0.1

log = logging.getLogger("deepvm.checkpoint")


@dataclass(frozen=True)
class Found:
    """A checkpoint's file, bytes not verified; ``job`` and ``version`` are those of its name."""

    path: Path
    job: str
    version: int
    size: int
    manifest: CommitRecord | None
    problem: str = ""  # why it is not complete


class VersionFolder:
    """Checkpoints in one folder of a local or mounted file system."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """Nothing is created before the first write; ``direct``: use direct I/O if supported."""
        self.path = path
        self._direct = direct
        self._epochs = dict[str, int]()
        self._logged: set[tuple[Path, str]] = set()
        self.writer_lock = WriterLock(path)

    def begin(self, job: str, epoch: int) -> None:
        with failing(self.path):
            durable_write.make_folder(self.path)
        EpochFile(self.path, job).begin(epoch)
        self._epochs[job] = epoch

    def file(self, job: str, version: int) -> Path:
        return self.path / file_names.file_name(job, version)

    def write(self, new: NewVersion) -> None:
        """Fastest in page-aligned memory; if it fails nothing of the checkpoint is visible."""
        target = self.file(new.job, new.version)
        with failing(target):
            hidden = self.reserve(new.job, new.version)

            def written() -> CommitRecord:
                data = new.image.cast("B")
                durable_write.write_file(
                    hidden, data, new.final, direct=self._direct, prefix="data"
                )
                return new.manifest()

            self._publish(hidden, target, written)

    def enter(self) -> None:
        """Create the folder and join its writers until ``writer_lock.leave()``; sweep if alone."""
        durable_write.make_folder(self.path)
        self.writer_lock.enter(self.sweep)

    def reserve(self, job: str, version: int = 0) -> Path:
        """Name of a hidden file for :meth:`adopt`; it exists if there was an unused spare."""
        self.enter()
        hidden = self._hidden(self.file(job, version))
        try:
            os.rename(self._spare(job), hidden)  # only one writer can get it
        except OSError:
            return hidden
        if not (self._reuses and durable_write.is_unused(hidden)):
            hidden.unlink()
        return hidden

    def adopt(self, hidden: Path, manifest: CommitRecord) -> None:
        target = self.file(manifest.job, manifest.version)
        with failing(target):
            self._publish(hidden, target, lambda: manifest)

    def _publish(self, hidden: Path, target: Path, written: Callable[[], CommitRecord]) -> None:
        record = record_of(target)
        upcoming = upcoming_of(target)
        ours = [hidden]
        with contextlib.ExitStack() as fence:
            try:
                settle(target)
                manifest = written()
                epoch = self._epochs.get(manifest.job)
                if epoch is not None:  # no newer generation starts until it is committed
                    fence.enter_context(EpochFile(self.path, manifest.job).current(epoch))
                # It stays until the new one is there, as long as its bytes do
                replaces = os.path.lexists(record)
                ours.append(upcoming)  # an earlier one may be the only record of what is there
                self._commit(upcoming, manifest)
                self._rename(hidden, target, "data")
            except BaseException:
                if os.path.lexists(hidden):
                    discard(*ours)
                raise
            try:
                self._sync("data")
                self._promote(upcoming, target, manifest)
                self._sync("replaced")
            except BaseException:
                if not replaces:  # it may not last, and its writer gets an error
                    for path in (upcoming, record):
                        with contextlib.suppress(OSError):
                            self._withdraw(path)
                    discard(target)
                raise

    def _promote(self, upcoming: Path, target: Path, manifest: CommitRecord) -> None:
        try:
            self._rename(upcoming, record_of(target), "replaced")
        except FileNotFoundError:  # another writer of this checkpoint took it for a killed writer's
            try:
                verify(target)  # the other may have replaced our bytes too, with its own record
            except DamagedError:
                self._commit(record_of(target), manifest)

    def _commit(self, record: Path, manifest: CommitRecord) -> None:
        data = memoryview(manifest.to_json())
        hidden = self._hidden(record)
        try:
            durable_write.write_file(
                hidden, data, [len(data)], direct=self._direct, prefix="record"
            )
            self._rename(hidden, record, "record")
            self._sync("record")
        except BaseException:
            # The name may be there without being durable; no process may see what was refused here
            for name in (hidden, record):
                with contextlib.suppress(OSError):
                    self._withdraw(name)
            raise

    @staticmethod
    def _rename(hidden: Path, target: Path, prefix: str) -> None:
        point(f"{prefix}.before-rename")
        os.replace(hidden, target)

    def _sync(self, prefix: str) -> None:
        point(f"{prefix}.before-folder-sync")
        sync(self.path)
        point(f"{prefix}.after-folder-sync")

    def _withdraw(self, record: Path) -> None:
        try:
            record.unlink()
        except FileNotFoundError:
            return
        sync(self.path)

    @staticmethod
    def _hidden(target: Path) -> Path:
        return target.with_name(
            f".{target.name.removeprefix('.').removesuffix(UPCOMING)}.{secrets.token_hex(4)}.tmp"
        )

    def _spare(self, job: str) -> Path:
        return self.path / f".{file_names.check_job(job)}.spare.tmp"

    @cached_property
    def _reuses(self) -> bool:
        return durable_write.can_reuse(self.path)

    def found(self, job: str = "") -> tuple[Found, ...]:
        """All files named like checkpoints, complete or not, by job, newest first."""
        # Also the names of records: one without its file was a complete checkpoint once.
        names = {name.removesuffix(SUFFIX) for name in self._names()}
        rows = [row for name in names if (row := self._look(name, job)) is not None]
        return tuple(sorted(rows, key=lambda f: (f.job, -f.version)))

    def _names(self) -> list[str]:
        with failing(self.path, "read"), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.path))
        return []

    def _look(self, name: str, wanted: str) -> Found | None:
        parsed = file_names.parse_name(name)
        if parsed is None or wanted not in ("", parsed[0]):
            return None
        path = self.path / name
        job, version = parsed
        manifest: CommitRecord | None = None
        size = 0
        try:
            status = path.lstat()
            size = status.st_size
            problem = durable_write.not_a_file(status)
            manifest = None if problem else read_manifest(path)
        except FileNotFoundError:
            if os.path.lexists(path):
                problem = UNRECORDED
            elif os.path.lexists(record_of(path)):
                problem = "its manifest is there and the file is not"
            else:
                return None
        except DamagedError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be looked at: {error.strerror or error}"
        if manifest is not None and (manifest.job, manifest.version) != (job, version):
            problem = f"its manifest is that of {manifest.job}, version {manifest.version}"
            manifest = None
        elif manifest is not None and manifest.size != size:
            problem = f"it has {size} bytes instead of {manifest.size}"
        return Found(path, job, version, size, manifest, problem)

    def complete(self, job: str, version: int) -> CommitRecord | None:
        """The record of one checkpoint, bytes not verified; None if it is not complete."""
        row = self._look(file_names.file_name(job, version), job)
        if row is None or row.problem:
            return None
        return row.manifest

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """A job's complete checkpoints, newest first, unverified; logs incomplete ones once."""
        rows = self._settled(job)
        for row in rows:
            if row.problem and (row.path, row.problem) not in self._logged:
                self._logged.add((row.path, row.problem))
                log.warning("%s is not complete: %s", row.path, row.problem)
        return tuple(f.manifest for f in rows if f.manifest is not None and not f.problem)

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """A job's checkpoints that are no longer complete, newest first; bytes are not verified."""
        return tuple(
            Damage(f.version, f"{f.path}: {f.problem}", f.size)
            for f in self._settled(job)
            if f.problem
        )

    def _settled(self, job: str) -> tuple[Found, ...]:
        """Looks again if a record is missing: a removal may be under way."""
        rows = self.found(job)
        lost = {(row.path, row.problem) for row in rows if row.problem == UNRECORDED}
        if lost - self._logged:
            time.sleep(_REMOVAL_S)
            rows = self.found(job)
        return rows

    def delete(self, job: str, version: int, *, spare: bool = False) -> None:
        """Remove a checkpoint, if any, its record first; the next one overwrites a ``spare``."""
        target = self.file(job, version)
        with failing(target, "removed"), contextlib.suppress(FileNotFoundError):
            # The records first: a part of the file must never be taken for the whole.
            self._withdraw(upcoming_of(target))
            self._withdraw(record_of(target))
            if spare and self._reuses:
                os.replace(target, self._spare(job))
            else:
                target.unlink()

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """Rename checkpoints of a job, and all damaged ones, to names that no longer count."""
        suffix = file_names.aside_suffix()
        numbers = sorted({*versions, *(d.version for d in self.damaged(job))})
        for version in numbers:
            target = self.file(job, version)
            # The file last: without its records it still counts as what is left of a checkpoint.
            for path in (upcoming_of(target), record_of(target), target):
                with failing(path, "set aside"), contextlib.suppress(FileNotFoundError):
                    os.rename(path, path.with_name(path.name + suffix))
        with failing(self.path):
            if numbers and self.path.is_dir():
                sync(self.path)

    def drop_spare(self, job: str) -> None:
        discard(self._spare(job))

    def leftovers(self, older_than_s: float = 0) -> tuple[Path, ...]:
        """Spares, and what killed writers left: hidden files and upcoming records."""
        paths = [self.path / name for name in filter(file_names.is_leftover, self._names())]
        return tuple(path for path in paths if _age_s(path) >= older_than_s)

    def clear(self, left: Path) -> None:
        """Settle or remove one of :meth:`leftovers`. Raises OSError."""
        name = file_names.replaced(left.name)
        if name:
            settle(self.path / name)
        else:
            left.unlink(missing_ok=True)

    def sweep(self, older_than_s: float = 0) -> None:
        """Clear all :meth:`leftovers`, without an age only while no process writes."""
        for path in self.leftovers(older_than_s):
            with contextlib.suppress(OSError):
                self.clear(path)


def _age_s(path: Path) -> float:
    try:
        status = path.lstat()
    except OSError:
        return -1
    # Not st_mtime alone: a copy has the original's. A file from the future is young.
    return max(0.0, time.time() - max(status.st_mtime, status.st_ctime))
