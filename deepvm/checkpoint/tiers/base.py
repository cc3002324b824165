"""The interfaces of storage tiers, and of those that a memory node can persist versions to."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import file_name
from deepvm.checkpoint.files.retention import kept, kept_of, outdated
from deepvm.checkpoint.format.manifest import CommitRecord, Damage, verified
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.errors import CheckpointError, DamagedError
from deepvm.io.atomic_write import hidden_path

log = logging.getLogger("deepvm.checkpoint")
_T = TypeVar("_T")


def fulfil(future: Future[_T], work: Callable[..., _T], *arguments: Any) -> None:
    """Set a future to what ``work`` returns or raises."""
    try:
        future.set_result(work(*arguments))
    except BaseException as error:
        future.set_exception(error)


def all_settled(waits: Iterable[Callable[[float], bool]], limit_s: float) -> bool:
    """Call all of these with the time that is left; False if one of them timed out."""
    deadline = time.monotonic() + limit_s
    return all([wait(max(deadline - time.monotonic(), 0.0)) for wait in waits])


class Tier(ABC):
    """A place for versions. All methods but ``close`` are thread-safe and block until done.

    Every wait has a limit, after which a :class:`~deepvm.errors.CheckpointError` is raised. A
    version that was not acknowledged may be lost; it must never be given back as complete, nor harm
    those before it.

    Attributes:
        url: what the user calls it, without secrets.
        form: its URLs, for errors. listed: whether ``deepvm ckpt`` can ask it, from outside the
            training.
        shared: whether training jobs on other machines may write there too, so that each needs its
            own job name.
        streams: whether :meth:`put` calls ``shard.ready`` for what it reads, so that a version can
            be sent while it is still being copied. Other tiers get finished copies only.
        volatile: whether it never gets beyond :attr:`Level.LOCAL`.
        away: whether what it keeps cannot be lost with this machine. Next to such a tier, others do
            not count as safe.
    """

    url: str
    form: ClassVar[str] = ""
    listed: ClassVar[bool] = True
    streams: ClassVar[bool] = False
    shared: bool = False
    volatile: bool = False
    away: ClassVar[bool] = True

    @property
    def reads_memory(self) -> bool:
        """Whether it can read an image in a ``MemoryFile`` from this process's memory."""
        return False

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """The tier that a URL means; errors call the URL ``option``.

        Raises RequestError, CheckpointError.

        ``session`` is a random text, the same for all tiers and ranks of a run. Where the trainer
        removes old versions, the newest ``keep`` stay, and one for each ``every`` steps (0 for
        none).
        """
        raise NotImplementedError(f"{cls.__name__} has no URL")

    def prove(self) -> None:  # noqa: B027  some places can only be tried
        """Make sure that versions can be written, as far as that can be known now.

        Raises CheckpointError.
        """

    def begin(self, job: str, epoch: int) -> None:  # noqa: B027  what one run alone can reach needs no fence
        """Write as this generation of a job; from now on nothing of an older one becomes visible.

        Raises CheckpointError: a newer one has started.
        """

    def epoch(self, job: str) -> int:
        """The newest generation that has started, 0 if none has. Raises CheckpointError."""
        return 0

    @abstractmethod
    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """Take one rank's part of a version; its memory is free on return.

        ``acknowledged`` is called as soon as the whole version, of all ranks, is safe at a level:
        once for each level that this tier reaches, the weakest first, perhaps from another thread
        after this method has returned.

        Raises:
            CheckpointError: it is not safe.
            TierBusyError: a place that is to have it has no room now: skip this version, or put the
                same shard again.
        """

    @abstractmethod
    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """The complete versions, newest first; their bytes are not verified yet."""

    @abstractmethod
    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """A verified file of this version: the tier's own, or one made in ``folder``.

        Raises CheckpointError.
        """

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """The versions that existed once and are incomplete now, newest first.

        Raises CheckpointError.
        """
        return ()

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """Rename these and all damaged versions so that they no longer count; no bytes are lost.

        Raises CheckpointError.
        """
        raise CheckpointError(
            f"{self.url}: damaged versions cannot be set aside there; take another name for the job"
        )

    def settle(self, limit_s: float) -> bool:
        """Wait until everything that can be acknowledged was; False on timeout."""
        return True

    def close(self) -> None:  # noqa: B027  a tier without connections has nothing to close
        """Close connections."""


class Store(Tier):
    """A tier that takes whole versions whose checksums are known.

    One node writes to it, from several threads.

    ``fills``: whether a version can be written while it is still arriving.
    """

    fills: ClassVar[bool] = False

    def __init__(self, keep: int, every: int, session: str) -> None:
        """As in :meth:`Tier.open`, but ``keep=0`` keeps all, and one rank needs no session."""
        if keep:
            kept((), keep, every)  # refuse now what cannot be used, not after the first version
        self._keep = keep
        self._every = every
        self._session = session
        self._warned = set[str]()
        self._writing = threading.RLock()

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        shard.check()
        with self._writing:
            self._put(shard)
            if self.volatile:
                acknowledged(Level.LOCAL)
                where = "is in this machine's memory only"
                shard.lost(CheckpointError(f"{self.url}: version {shard.version} {where}"))
            else:
                acknowledged(Level.DURABLE)
            if self._keep and not shard.rank:
                self._prune(shard.job, shard.version)

    @abstractmethod
    def _put(self, shard: Shard) -> None:
        """Write one rank's part, and wait until the whole is committed. Raises CheckpointError."""

    def _prune(self, job: str, newest: int) -> None:
        """Remove what retention lets go; the version that was just written is durable and stays."""
        try:
            found = self.versions(job)
            self._notice(job, newest, {m.version for m in found})
            # Newer versions are from a run that went further, before it was restarted from an older
            # one.
            rows = [m for m in found if m.version <= newest]
            for version in self.expired(job, rows, self._keep, self._every) - {newest}:
                self.delete(job, version)
        except CheckpointError as error:
            # A full disk is bad enough: it must not also stop the training
            log.warning("old versions stay: %s", error)

    def _notice(self, job: str, newest: int, there: set[int]) -> None:  # noqa: B027
        """Compare the versions that are there with those that this run has written."""

    @abstractmethod
    def open_for_writing(self, *, shared: bool = False) -> None:
        """Make sure that it can be written to; clear up what a killed node left.

        Raises CheckpointError.

        ``shared``: other nodes that say so too may write there, no two of them versions of the same
        job.
        """

    @abstractmethod
    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """Write a checkpoint and its commit record, see :class:`VersionFolder`.

        Raises CheckpointError: it was not written; of its number the old version, if any, or the
        new one is complete.
        """

    @abstractmethod
    def unrecorded(self, job: str) -> set[int]:
        """The damaged versions of which only the record is gone. Raises CheckpointError."""

    @abstractmethod
    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        """A version in pieces, unverified, each valid until the next.

        Raises FileNotFoundError, or CheckpointError: it cannot be read; also from the iterator.
        """

    @abstractmethod
    def jobs(self) -> set[str]:
        """The jobs of which there is anything. Raises CheckpointError."""

    @abstractmethod
    def delete(self, job: str, version: int) -> None:
        """Remove a version; nothing happens if it is not there. Raises CheckpointError."""

    def expired(self, job: str, records: Iterable[CommitRecord], keep: int, every: int) -> set[int]:
        """The checkpoints in ``records``, and files without a record, that retention drops."""
        rows = list(records)
        numbers = {m.version for m in rows}
        return numbers - kept_of(rows, keep, every) | outdated(
            numbers, self.unrecorded(job), keep, every
        )


def without_secrets(url: str) -> str:
    """A URL without passwords and tokens."""
    begin = "://" if url.startswith("file:") else "://|,"  # a list of nodes has one for each
    return re.sub(
        r"([?&](?!replicas=)[^=&#]*=)[^&#]*",
        r"\1***",
        re.sub(rf"({begin})[^/@,]*@", r"\1***@", url),
    )


def download(
    pieces: Generator[memoryview, None, None], manifest: CommitRecord, folder: Path, name: str
) -> Path:
    """Write a checkpoint's bytes to a new file in ``folder``, atomically, without a record.

    Raises DamagedError: the bytes of ``name`` differ from the ``manifest``; CheckpointError; and
    what ``pieces`` raises.
    """
    path = folder / file_name(manifest.job, manifest.version)
    with failing(path), contextlib.closing(pieces), hidden_path(path) as hidden:
        folder.mkdir(parents=True, exist_ok=True)
        with hidden.open("xb") as file:
            for piece in verified(pieces, manifest, name):
                file.write(piece)
            if file.tell() != manifest.size:
                raise DamagedError(f"{name}: {file.tell()} bytes came instead of {manifest.size}")
        hidden.replace(path)
    return path
