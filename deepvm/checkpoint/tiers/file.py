"""``file:///folder``: checkpoints on a local or mounted file system, as durable as that is."""

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from urllib.parse import unquote

from deepvm.checkpoint.files import durable_write
from deepvm.checkpoint.files.commit_record import read_manifest, verify
from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.files.shared_file_write import put_part
from deepvm.checkpoint.files.version_dir import NODE, YOUNG_S, EpochFile, VersionFolder
from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.manifest import UNRECORDED, CommitRecord, NewVersion, Shard
from deepvm.checkpoint.tiers.base import Store, Tier, log
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.io.atomic_write import sync
from deepvm.io.failpoints import point
from deepvm.io.file_lock import FileLock

_MOST_SHOWN = 5
# Dropping a query would write elsewhere
_URL = re.compile(r"(?i:file)://(?:localhost)?(?P<path>/[^\0?#]*)")
_NETWORK = re.compile(
    r"nfs4?|cifs|smb3|smbfs|ceph|lustre|gpfs|beegfs|9p|afs|glusterfs|fuse\..*", re.DOTALL
)
_READ_BYTES = 2**20  # Of memory for each reader, besides that for checkpoints


class FileTier(VersionFolder, Store):
    """A folder; with several ranks, one that all of them see."""

    form = "file:///folder"
    streams = fills = True
    away = False  # nothing tells a volume that outlives the machine from one that does not

    def __init__(self, folder: Path, *, keep: int = 0, every: int = 0, session: str = "") -> None:
        VersionFolder.__init__(self, folder)
        Store.__init__(self, keep, every, session)
        self.url = f"file://{folder}"
        medium = durable_write.medium(folder)
        self.volatile = medium.volatile
        self.shared = _NETWORK.fullmatch(medium.kind) is not None
        self._jobs = set[str]()
        self._known: dict[str, set[int]] = {}
        self._node_lock = FileLock(folder / NODE, 0o666)

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        return cls(folder_of(url, option), keep=keep, every=every, session=session)

    def prove(self) -> None:
        if self.volatile:
            log.warning("%s is %s", self.url, durable_write.medium(self.path))
        place = durable_write.existing(self.path)
        usable = place.is_dir() and os.access(place, os.W_OK | os.X_OK)
        if not usable or not self._takes_folders(place):
            raise CheckpointError(
                f"{self.url}: no checkpoint can be written there: {place} is not a writable"
                " folder; "
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
            # Old checkpoints may still be restored, or give way
            return error.errno in (errno.ENOSPC, errno.EDQUOT)

    def epoch(self, job: str) -> int:
        return EpochFile(self.path, job).read()

    def _put(self, shard: Shard) -> None:
        if shard.layout.world > 1:
            put_part(self, shard, self._session)
            return
        home = shard.home
        if home is None or home.parent != self.path:
            self._write_whole(shard, shard.image, shard.ready)
            return
        # The bytes are in a file of this folder as soon as they are final (strategy D)
        crcs: list[int] = []
        for _ in seal(shard.image, shard.layout, crcs, ready=shard.ready):
            pass
        with durable_write.failing(home):
            point("home.before-sync")
            sync(home)
            point("home.after-sync")
        self.adopt(home, shard.manifest(crcs))
        self._jobs.add(shard.job)

    def open_for_writing(self, *, shared: bool = False) -> None:
        path = self.path
        with durable_write.failing(path, "used for checkpoints"):
            durable_write.make_folder(path)
            if not self._node_lock.take(shared=shared):
                raise CheckpointError(
                    f"{path}: another memory node writes there; give this one another folder, or"
                    " both --shared-folder"
                )
        if not os.access(path, os.W_OK):
            raise CheckpointError(f"{path}: cannot be used for checkpoints: it is not writable")
        # What another node or a trainer is writing must not be taken for what a killed one left.
        with self.writer_lock.alone() as alone:
            self.sweep(0 if alone and not shared else YOUNG_S)

    def write(self, new: NewVersion) -> None:
        """Free the spares of other jobs, too: nodes never learn that they ended."""
        check_job(new.job)
        with self._writing:
            for other in self._jobs - {new.job}:
                self.drop_spare(other)
            self._jobs = {new.job}
        super().write(new)

    def unrecorded(self, job: str) -> set[int]:
        return {f.version for f in self.found(job) if f.problem == UNRECORDED}

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        path = self.file(job, version)
        try:
            manifest = read_manifest(path)
            stream = path.open("rb")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
        return manifest, _pieces(stream, path, manifest.size)

    def jobs(self) -> set[str]:
        return {row.job for row in self.found()}

    def delete(self, job: str, version: int, *, spare: bool = False) -> None:
        with self._writing:
            super().delete(job, version, spare=spare or job in self._jobs)

    def _notice(self, job: str, newest: int, there: set[int]) -> None:
        """Warn once if another run seems to write this job's checkpoints to this folder."""
        if job in self._known:
            others = there - self._known[job] - {newest}
        else:
            others = {v for v in there if v > newest}
        self._known[job] = there
        if others and job not in self._warned:
            self._warned.add(job)
            numbers = ", ".join(map(str, sorted(others)[:_MOST_SHOWN]))
            log.warning(
                f"{self.url}: checkpoints of {job} that this run has not written: {numbers}. If an"
                " earlier run went further, the next restore takes its checkpoints, unless"
                " you remove"
                " them; if another run writes here now, each removes checkpoints of the other: give"
                " one another name, in DEEPVM_JOB"
            )

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        path = self.file(manifest.job, manifest.version)
        verify(path, manifest)
        return path

    def close(self) -> None:
        with self._writing:
            for job in self._jobs:
                self.drop_spare(job)
            self.writer_lock.leave()
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
    buffer = memoryview(bytearray(min(_READ_BYTES, size)))
    with stream, durable_write.failing(path, "read"):
        for start in range(0, size, _READ_BYTES):
            piece = buffer[: size - start]
            if stream.readinto(piece) < len(piece):
                raise DamagedError(f"{path.name}: the file is shorter than its manifest says")
            yield piece
