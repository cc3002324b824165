"""A folder of checkpoints: atomic writes, listed by commit records, verified before use.

A write: the bytes into a hidden file, fsync; the record into another, the *upcoming* record, fsync,
fsync of the folder; then the file gets its name, fsync of the folder, and only then the record.
While a version is replaced, the old or the new one is complete at each moment, see
:mod:`deepvm.checkpoint.files.commit_record`.

So no failed or killed writer leaves a named file without a record: a file alone has lost its
record, and counts as a damaged version, as does a record alone. Hidden files do not count: nothing
was acknowledged. The writer that fails removes them, or the next one that is alone in the folder.

A deleted version's file may be kept under a hidden name as a *spare*, which the next version
overwrites in place, like LightCheck's two slots: no new blocks are needed, even on a full disk. See
:func:`durable_write.is_unused`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import (
    UPCOMING,
    read_manifest,
    record_of,
    settle,
    upcoming_of,
    verify,
)
from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.epoch_file import EpochFile
from deepvm.checkpoint.files.file_names import (
    aside_suffix,
    check_job,
    file_name,
    is_leftover,
    parse_name,
    replaced,
)
from deepvm.checkpoint.files.writer_lock import WriterLock
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage
from deepvm.errors import DamagedError
from deepvm.io.atomic_write import discard, sync
from deepvm.io.failpoints import point

YOUNG_S = 3600.0
"""Seconds for which a file without a record may belong to an active writer."""
_REMOVAL_S = 0.1
"""Within it who removes a record removes the file, too, on any disk that is not hopelessly busy."""

log = logging.getLogger("deepvm.checkpoint")


@dataclass(frozen=True)
class Found:
    """A version's file.

    Attributes:
        path: the file. job, version: from its name. size: bytes.
        manifest: its commit record, None if there is none that can be read.
        problem: why it is not complete, empty if it is; bytes are not verified.
    """

    path: Path
    job: str
    version: int
    size: int
    manifest: CommitRecord | None
    problem: str = ""


class VersionFolder:
    """Versions in one folder of a local or mounted file system."""

    def __init__(self, path: Path, *, direct: bool = True) -> None:
        """Nothing is created before the first write; ``direct``: use direct I/O if supported."""
        self.path = path
        self._direct = direct
        self._epochs = dict[str, int]()
        self._warned: set[tuple[Path, str]] = set()
        self.writer_lock = WriterLock(path)

    def begin(self, job: str, epoch: int) -> None:
        """Write as this generation of a job, and refuse older ones.

        Raises CheckpointError: a newer one has started.
        """
        with failing(self.path):
            durable_write.make_folder(self.path)
        EpochFile(self.path, job).begin(epoch)
        self._epochs[job] = epoch

    def _fence(self, job: str) -> contextlib.AbstractContextManager[None]:
        """While a version is committed no newer generation begins.

        Raises CheckpointError: one has started.
        """
        epoch = self._epochs.get(job)
        if epoch is None:
            return contextlib.nullcontext()
        return EpochFile(self.path, job).current(epoch)

    def file(self, job: str, version: int) -> Path:
        return self.path / file_name(job, version)

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> Path:
        """Write a version and its commit record durably, while its image is being filled in.

        ``final`` yields how many bytes of ``image`` (fastest in page-aligned memory) are final from
        the start, in the end all; ``manifest`` is called when the last byte is written. Raises
        CheckpointError: nothing of it is visible.
        """
        target = self.file(job, version)
        with failing(target):
            hidden = self.reserve(job, version)
            write = partial(
                durable_write.write_file,
                hidden,
                image.cast("B"),
                final,
                direct=self._direct,
                prefix="data",
            )
            self._publish(hidden, target, write, manifest)
        return target

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
        """Turn a hidden file of this folder, complete and durable, into a version.

        Raises CheckpointError.
        """
        target = self.file(manifest.job, manifest.version)
        with failing(target):
            self._publish(hidden, target, lambda: None, lambda: manifest)

    def _publish(
        self,
        hidden: Path,
        target: Path,
        write: Callable[[], None],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """Write a hidden file, rename it and commit it; on failure nothing of it stays."""
        record = record_of(target)
        upcoming = upcoming_of(target)
        ours = [hidden]
        with contextlib.ExitStack() as fence:
            try:
                settle(target)
                write()
                found = manifest()
                fence.enter_context(self._fence(found.job))
                # It stays until the new one is there, as long as its bytes do
                replaces = os.path.lexists(record)
                ours.append(upcoming)  # an earlier one may be the only record of what is there
                self._commit(upcoming, found)
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
                if not replaces:
                    self._remove_unsafe(target)
                raise

    def _promote(self, upcoming: Path, target: Path, manifest: Callable[[], CommitRecord]) -> None:
        try:
            self._rename(upcoming, record_of(target), "replaced")
        except FileNotFoundError:  # another writer of this version took it for a killed writer's
            try:
                verify(target)  # the other may have replaced our bytes too, with its own record
            except DamagedError:
                self._commit(record_of(target), manifest())

    def _remove_unsafe(self, target: Path) -> None:
        """Remove a version that may not last: its writer gets an error."""
        for record in (upcoming_of(target), record_of(target)):
            with contextlib.suppress(OSError):
                self._withdraw(record)
        discard(target)

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
            # The name may be there without being durable; no process may see what this caller was
            # refused.
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
        """Remove a record, if any: an earlier run's must not vouch for other bytes."""
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
        return self.path / f".{check_job(job)}.spare.tmp"

    @cached_property
    def _reuses(self) -> bool:
        return durable_write.can_reuse(self.path)

    def found(self, job: str = "") -> tuple[Found, ...]:
        """All files named like checkpoints, complete or not, by job, newest first."""
        # Also the names of records: one without its file was a complete version once.
        names = {name.removesuffix(SUFFIX) for name in self._names()}
        rows = [row for name in names if (row := self._look(name, job)) is not None]
        return tuple(sorted(rows, key=lambda f: (f.job, -f.version)))

    def _names(self) -> list[str]:
        with failing(self.path, "read"), contextlib.suppress(FileNotFoundError):
            return sorted(os.listdir(self.path))
        return []

    def _look(self, name: str, wanted: str) -> Found | None:
        parsed = parse_name(name)
        if parsed is None or wanted not in ("", parsed[0]):
            return None
        path = self.path / name
        (job, version) = parsed
        manifest: CommitRecord | None = None
        size = 0
        problem = ""
        try:
            status = path.lstat()
            size = status.st_size
            problem = durable_write.not_a_file(status)
            manifest = None if problem else read_manifest(path)
        except FileNotFoundError:
            if os.path.lexists(path):
                problem = UNRECORDED
            elif os.path.lexists(record_of(path)):
                problem = "its commit record is there and the file is not"
            else:
                return None
        except DamagedError as error:
            problem = str(error)
        except OSError as error:
            problem = f"it cannot be looked at: {error.strerror or error}"
        if manifest is not None and (manifest.job, manifest.version) != (job, version):
            problem = f"its commit record is that of {manifest.job}, version {manifest.version}"
            manifest = None
        elif manifest is not None and manifest.size != size:
            problem = f"it has {size} bytes instead of {manifest.size}"
        return Found(path, job, version, size, manifest, problem)

    def complete(self, job: str, version: int) -> CommitRecord | None:
        """The record of one version, bytes not verified; None if it is not complete."""
        row = self._look(file_name(job, version), job)
        if row is None or row.problem:
            return None
        return row.manifest

    def manifests(self, job: str) -> tuple[CommitRecord, ...]:
        """A job's complete checkpoints, newest first, unverified; logs incomplete ones once."""
        rows = self._settled(job)
        for row in rows:
            if row.problem and (row.path, row.problem) not in self._warned:
                self._warned.add((row.path, row.problem))
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
        """Like :meth:`found`, but look again if a record is missing: a removal may be under way."""
        rows = self.found(job)
        if any(
            row.problem == UNRECORDED and (row.path, row.problem) not in self._warned
            for row in rows
        ):
            time.sleep(_REMOVAL_S)
            rows = self.found(job)
        return rows

    def delete(self, job: str, version: int, *, spare: bool = False) -> None:
        """Remove a version, if any, its record first; the next one overwrites a ``spare``.

        Raises CheckpointError.
        """
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
        """Rename versions of a job, and all damaged ones, to names that no longer count.

        Raises CheckpointError.
        """
        suffix = aside_suffix()
        numbers = {*versions, *(d.version for d in self.damaged(job))}
        for version in sorted(numbers):
            target = self.file(job, version)
            # The file last: without its records it still counts as what is left of a version.
            for path in (upcoming_of(target), record_of(target), target):
                with failing(path, "set aside"), contextlib.suppress(FileNotFoundError):
                    os.rename(path, path.with_name(path.name + suffix))
        with failing(self.path):
            if numbers and self.path.is_dir():
                sync(self.path)

    def drop_spare(self, job: str) -> None:
        """Free the spare: nothing more will be written for this job."""
        discard(self._spare(job))

    def leftovers(self, older_than_s: float = 0) -> tuple[Path, ...]:
        """Spares, and what killed writers left: hidden files and upcoming records."""
        return tuple(
            p
            for n in filter(is_leftover, self._names())
            if _age_s(p := self.path / n) >= older_than_s
        )

    def clear(self, left: Path) -> None:
        """Settle or remove one of :meth:`leftovers`. Raises OSError."""
        name = replaced(left.name)
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
    """Seconds since a file was last written or renamed; negative if it is gone."""
    try:
        status = path.lstat()
    except OSError:
        return -1
    # Not st_mtime alone: a copy has the original's. A file from the future is young.
    return max(0.0, time.time() - max(status.st_mtime, status.st_ctime))
