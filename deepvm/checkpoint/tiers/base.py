"""The interfaces of storage tiers, and of those that a memory node can persist checkpoints to."""

import contextlib
import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.file_names import file_name
from deepvm.checkpoint.format.checksums import UpTo, seal
from deepvm.checkpoint.format.manifest import (
    Acknowledge,
    CommitRecord,
    Damage,
    Level,
    NewVersion,
    Shard,
    verified,
)
from deepvm.errors import CheckpointError, DamagedError, RequestError
from deepvm.io.atomic_write import hidden_path


def kept(
    versions: Sequence[int], keep: int = 2, every: int = 0, best: Collection[int] = ()
) -> set[int]:
    """Of complete checkpoints, the newest ``keep`` and the ``best``. Raises RequestError.

    ``every``: also the first checkpoint at or after each multiple of this number; 0 for none. What
    is not kept now will not be kept later either.
    """
    if keep < 1:
        raise RequestError(
            "keep", keep, "a whole number from 1: the newest checkpoint always stays"
        )
    if every < 0:
        raise RequestError("every", every, "a whole number of steps, 0 for none")
    ordered = sorted(set(versions))
    stay = set(ordered[-keep:]) | (set(ordered) & set(best))
    reached = 0
    for version in ordered:
        if every and version // every > reached:
            reached = version // every
            stay.add(version)
    return stay


def outdated(
    complete: Collection[int], unrecorded: Collection[int], keep: int = 2, every: int = 0
) -> set[int]:
    """Checkpoints without a record that :func:`kept` would drop: no sign of a loss."""
    return {v for v in unrecorded if v not in kept([*complete, v], keep, every)}


def kept_of(manifests: Sequence[CommitRecord], keep: int = 2, every: int = 0) -> set[int]:
    """As :func:`kept`, with the newest of those marked as best."""
    best = max((m.version for m in manifests if m.best), default=-1)
    return kept([m.version for m in manifests], keep, every, {best})


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
    """A place for checkpoints. All methods but ``close`` are thread-safe and block until done.

    Every wait has a limit, and failures raise :class:`~deepvm.errors.CheckpointError`. A checkpoint
    that was not acknowledged must never be given back as complete, nor harm those before it.
    """

    url: str  # without secrets
    form = ""  # of its URLs, for errors
    listed = True  # whether `deepvm ckpt` can ask it, from outside the training
    # Whether put() calls `shard.ready` for what it reads; other tiers get finished copies only
    streams = False
    shared: bool = False  # jobs on other machines may write there too: each needs its own name
    volatile: bool = False  # never gets beyond Level.LOCAL
    # Whether it cannot be lost with this machine; next to such a tier, others do not count as safe
    away = True

    @property
    def reads_memory(self) -> bool:
        """Whether it can read an image in a ``MemoryFile`` from this process's memory."""
        return False

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> "Tier":
        """The tier that a URL means; errors call it ``option``. Raises RequestError.

        ``session``: the same for all tiers and ranks of a run. ``keep``, ``every``: :func:`kept`.
        """
        raise NotImplementedError(f"{cls.__name__} has no URL")

    def prove(self) -> None:  # noqa: B027  some places can only be tried
        """Make sure that checkpoints can be written, as far as that can be known now."""

    def begin(self, job: str, epoch: int) -> None:  # noqa: B027  what one run alone can reach needs no fence
        """Write as this generation, and shut out older ones. Raises CheckpointError: it is old."""

    def epoch(self, job: str) -> int:
        """The newest generation that has started, 0 if none has."""
        return 0

    @abstractmethod
    def put(self, shard: Shard, acknowledged: Acknowledge) -> None:
        """Take one rank's part of a checkpoint; its memory is free on return.

        ``acknowledged`` is called once for each level at which the whole checkpoint is safe, the
        weakest first, perhaps from another thread after the return. Raises TierBusyError: there is
        no space now: skip this checkpoint, or put the same shard again.
        """

    @abstractmethod
    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """The complete checkpoints, newest first; their bytes are not verified yet."""

    @abstractmethod
    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """A verified file of this checkpoint: the tier's own, or one made in ``folder``."""

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """The checkpoints that existed once and are incomplete now, newest first."""
        return ()

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """Rename these and all damaged checkpoints; they no longer count, no bytes are lost."""
        raise CheckpointError(
            f"{self.url}: damaged checkpoints cannot be quarantined there; take another name"
            " for the job"
        )

    def settle(self, limit_s: float) -> bool:
        """Wait until everything that can be acknowledged was; False on timeout."""
        return True

    def close(self) -> None:  # noqa: B027  a tier without connections has nothing to close
        """Close connections."""


class Store(Tier):
    """A tier that takes whole checkpoints whose checksums are known, from one node's threads."""

    fills = False  # whether a checkpoint can be written while it is still arriving

    def __init__(self, keep: int, every: int, session: str) -> None:
        """As in :meth:`Tier.open`, but ``keep=0`` keeps all."""
        if keep:
            kept((), keep, every)  # refuse now what cannot be used, not after the first checkpoint
        self._keep = keep
        self._every = every
        self._session = session
        self._warned = set[str]()
        self._writing = threading.RLock()

    def put(self, shard: Shard, acknowledged: Acknowledge) -> None:
        shard.check()
        with self._writing:
            self._put(shard)
            if self.volatile:
                acknowledged(Level.LOCAL)
                shard.lost(
                    CheckpointError(
                        f"{self.url}: version {shard.version} is in this machine's memory only"
                    )
                )
            else:
                acknowledged(Level.DURABLE)
            if self._keep and not shard.rank:
                self._prune(shard.job, shard.version)

    @abstractmethod
    def _put(self, shard: Shard) -> None:
        """Write one rank's part, and wait until the whole is committed."""

    def _write_whole(self, shard: Shard, image: memoryview, ready: UpTo = lambda end: None) -> None:
        crcs: list[int] = []
        final = seal(image, shard.layout, crcs, ready=ready)
        self.write(NewVersion(image, shard.job, shard.version, final, lambda: shard.manifest(crcs)))

    def _prune(self, job: str, newest: int) -> None:
        try:
            found = self.versions(job)
            self._notice(job, newest, {m.version for m in found})
            # Newer checkpoints are from a run that went further, before it was restarted from an
            # older one.
            rows = [m for m in found if m.version <= newest]
            for version in self.expired(job, rows, self._keep, self._every) - {newest}:
                self.delete(job, version)
        except CheckpointError as error:
            # A full disk is bad enough: it must not also stop the training
            log.warning("old checkpoints stay: %s", error)

    def _notice(self, job: str, newest: int, there: set[int]) -> None:  # noqa: B027
        """Compare the checkpoints that are there with those that this run has written."""

    @abstractmethod
    def open_for_writing(self, *, shared: bool = False) -> None:
        """Clear up what a killed node left. Raises CheckpointError: it cannot be written to.

        ``shared``: other nodes that say so too may write there, no two of them checkpoints of one
        job.
        """

    @abstractmethod
    def write(self, new: NewVersion) -> None:
        """Write a checkpoint and its record durably; on an error the old or the new is complete."""

    @abstractmethod
    def unrecorded(self, job: str) -> set[int]:
        """The damaged checkpoints of which only the record is gone."""

    @abstractmethod
    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        """A checkpoint in pieces, unverified, each valid until the next.

        Raises FileNotFoundError, or CheckpointError: it cannot be read; also from the iterator.
        """

    @abstractmethod
    def jobs(self) -> set[str]:
        """The jobs of which there is anything."""

    @abstractmethod
    def delete(self, job: str, version: int) -> None:
        """Remove a checkpoint, if it is there."""

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
    url = re.sub(rf"({begin})[^/@,]*@", r"\1***@", url)
    return re.sub(r"([?&](?!replicas=)[^=&#]*=)[^&#]*", r"\1***", url)


def download(
    pieces: Generator[memoryview, None, None], manifest: CommitRecord, folder: Path, name: str
) -> Path:
    """Write a checkpoint to a new file, without a record. Raises DamagedError, CheckpointError."""
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
