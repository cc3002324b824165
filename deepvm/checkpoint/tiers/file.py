"""``file:///folder``: versions on a local or mounted file system, durable when acknowledged.

They are as durable as the folder: the machine's own disk does not survive the loss of the machine,
and memory (``/dev/shm``, tmpfs) only the end of the process, which is all that is then
acknowledged.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from urllib.parse import unquote

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import read_manifest, verify
from deepvm.checkpoint.files.epoch_file import EpochFile
from deepvm.checkpoint.files.shared_file_write import put_part
from deepvm.checkpoint.files.version_dir import YOUNG_S, VersionFolder
from deepvm.checkpoint.files.writer_lock import NODE
from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.manifest import UNRECORDED, CommitRecord, Damage
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.tiers.base import Store, Tier
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.io.atomic_write import sync
from deepvm.io.failpoints import point
from deepvm.io.file_lock import FileLock

log = logging.getLogger("deepvm.checkpoint")
_MOST_SHOWN = 5
# Dropping a query would write elsewhere
_URL = re.compile(r"(?i:file)://(?:localhost)?(?P<path>/[^\0?#]*)")
_NETWORK = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "ceph",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "afs",
    "glusterfs",
)
_READ_BYTES = 2**20
"""Of memory for each reader, besides that for versions."""


class FileTier(Store):
    """A folder; with several ranks, one that all of them see."""

    form = "file:///folder"
    streams = fills = True
    away = False  # nothing tells a volume that outlives the machine from one that does not

    def __init__(self, folder: Path, *, keep: int = 0, every: int = 0, session: str = "") -> None:
        """Nothing is created before the first save. For the arguments see :class:`Store`."""
        super().__init__(keep, every, session)
        self.folder = VersionFolder(folder)
        self.url = f"file://{folder}"
        medium = durable_write.medium(folder)
        self.volatile = medium.volatile
        self.shared = medium.kind in _NETWORK or medium.kind.startswith("fuse.")
        self._jobs = set[str]()
        self._known: dict[str, set[int]] = {}
        self._node_lock = FileLock(folder / NODE, 0o666)

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        return cls(folder_of(url, option), keep=keep, every=every, session=session)

    def prove(self) -> None:
        """See :meth:`Tier.prove`; warns of a folder in memory."""
        if self.volatile:
            log.warning("%s is %s", self.url, durable_write.medium(self.folder.path))
        place = durable_write.existing(self.folder.path)
        if not (
            place.is_dir() and os.access(place, os.W_OK | os.X_OK) and self._takes_folders(place)
        ):
            raise CheckpointError(
                f"{self.url}: no version can be written there: {place} is not a writable folder; "
                "mount it for writing, give this user the right, or name another one"
            )

    def _takes_folders(self, place: Path) -> bool:
        """Whether one can be made in a folder, by trying (as in ``/proc``), except on networks."""
        if self.shared:
            return True
        try:
            with tempfile.TemporaryDirectory(prefix=".deepvm-", dir=place):
                return True
        except OSError as error:
            # Old versions may still be restored, or give way
            return error.errno in (errno.ENOSPC, errno.EDQUOT)

    def begin(self, job: str, epoch: int) -> None:
        self.folder.begin(job, epoch)

    def epoch(self, job: str) -> int:
        return EpochFile(self.folder.path, job).read()

    def _put(self, shard: Shard) -> None:
        if shard.layout.world > 1:
            put_part(self.folder, shard, self._session)
            return
        crcs: list[int] = []
        # Chunks are written while those after them are still being copied and summed: the disk is
        # the slowest.
        final = seal(shard.image, shard.layout, crcs, ready=shard.ready)
        home = shard.home
        if home is None or home.parent != self.folder.path:
            self.folder.write(
                shard.image, shard.job, shard.version, final, lambda: shard.manifest(crcs)
            )
        else:  # the bytes are in a file of this folder as soon as they are final (strategy D)
            for _ in final:
                pass
            with durable_write.failing(home):
                point("home.before-sync")
                sync(home)
                point("home.after-sync")
            self.folder.adopt(home, shard.manifest(crcs))
        self._jobs.add(shard.job)

    def open_for_writing(self, *, shared: bool = False) -> None:
        path = self.folder.path
        with durable_write.failing(path, "used for versions"):
            durable_write.make_folder(path)
            if not self._node_lock.take(shared=shared):
                raise CheckpointError(
                    f"{path}: another memory node writes there; give this one another folder, or"
                    " both --shared-folder"
                )
        if not os.access(path, os.W_OK):
            raise CheckpointError(f"{path}: cannot be used for versions: it is not writable")
        # What another node or a trainer is writing must not be taken for what a killed one left.
        with self.folder.writer_lock.alone() as alone:
            self.folder.sweep(0 if alone and not shared else YOUNG_S)

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """See :class:`Store`. Frees the memory of other jobs: nodes never learn that they ended."""
        with self._writing:
            for other in self._jobs - {job}:
                self.folder.drop_spare(other)
            self._jobs = {job}
        self.folder.write(image, job, version, final, manifest)

    def unrecorded(self, job: str) -> set[int]:
        return {f.version for f in self.folder.found(job) if f.problem == UNRECORDED}

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        path = self.folder.file(job, version)
        try:
            manifest = read_manifest(path)
            stream = path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        return manifest, _pieces(stream, path, manifest.size)

    def jobs(self) -> set[str]:
        return {row.job for row in self.folder.found()}

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`; the next version overwrites its file if it is of the same job."""
        with self._writing:
            self.folder.delete(job, version, spare=job in self._jobs)

    def _notice(self, job: str, newest: int, there: set[int]) -> None:
        """Warn once if another run seems to write this job's checkpoints to this folder."""
        known = self._known.get(job)
        if known is None:
            others = {v for v in there if v > newest}
        else:
            others = there - known - {newest}
        self._known[job] = there
        if others and job not in self._warned:
            self._warned.add(job)
            numbers = ", ".join(map(str, sorted(others)[:_MOST_SHOWN]))
            log.warning(
                f"{self.url}: versions of {job} that this run has not written: {numbers}. If an"
                " earlier run went further, the next restore takes its versions, unless you remove"
                " them; if another run writes here now, each removes versions of the other: give"
                " one another name, in DEEPVM_JOB"
            )

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        return self.folder.manifests(job)

    def damaged(self, job: str) -> tuple[Damage, ...]:
        return self.folder.damaged(job)

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :meth:`Tier.set_aside`: files and records get names that end in ``.aside``."""
        self.folder.set_aside(job, versions)

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        path = self.folder.file(manifest.job, manifest.version)
        verify(path, manifest)
        return path

    def close(self) -> None:
        """Remove spares, and let another node write there."""
        with self._writing:
            for job in self._jobs:
                self.folder.drop_spare(job)
            self.folder.writer_lock.leave()
            self._node_lock.release()


def folder_of(url: str, option: str) -> Path:
    """The folder of ``file:///folder``, where ``%20`` is a space. Raises RequestError."""
    found = _URL.fullmatch(url)
    if found is None or "\0" in (path := unquote(found["path"])):
        allowed = (
            f"{FileTier.form}, with three slashes and without ? and #; in a folder's name write %3F"
            " and %23"
        )
        raise RequestError(option, url, allowed)
    return Path(path)


def _pieces(stream: BufferedReader, path: Path, size: int) -> Iterator[memoryview]:
    """A file's bytes, each piece in the same memory."""
    buffer = memoryview(bytearray(min(_READ_BYTES, size)))
    with stream, durable_write.failing(path, "read"):
        for start in range(0, size, _READ_BYTES):
            piece = buffer[: size - start]
            if stream.readinto(piece) < len(piece):
                raise DamagedError(f"{path.name}: the file is shorter than its commit record says")
            yield piece
