"""The interface of a tier: a place that takes whole versions and gives them back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import ClassVar

from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import Damage, Manifest
from deepvm.errors import CheckpointError


class Level(str, Enum):
    """What an acknowledged version survives, from weak to strong; each level has those before it in it.

    LOCAL: the end of this process, not that of this machine (a folder in memory, such as ``/dev/shm``). REMOTE: the
    loss of this machine, while the memory node lives. DURABLE: that as well; a folder is as durable as what it lies on.
    """

    LOCAL = "local"
    REMOTE = "remote"
    DURABLE = "durable"


LEAST_BYTES_S = 50e6
"""Bytes in a second for which every place has time: limits grow with the version, or a large one would never arrive."""


def _filled(end: int) -> None:
    """Nothing to wait for."""


def _unheard(reason: CheckpointError) -> None:
    """Nobody asks."""


@dataclass(frozen=True)
class Shard:
    """One rank's part of a version, in the trainer's memory; what is ready does not change until the tier has returned.

    Attributes:
        job: whose it is. version: optimizer steps that it contains. rank: whose part.
        layout: of the whole version. image: the whole file's address space; only the rank's own segments are filled.
        ready: waits until the own bytes below a position are what they will be; to be called before they are read.
            Raises CheckpointError when they will never be.
        home: the hidden file that ``image`` is a mapping of, where a tier is to make a version of that (strategy D).
        best: the training calls it the best so far.
        attempt: grows with every save of a run, and is the same on all ranks: a number may be saved twice with other
            bytes, and parts of both are no version.
        lost: a tier that has returned from ``put`` tells here, with the reason, that it will acknowledge nothing more;
            one that has acknowledged all levels, or raised, need not.
    """

    job: str
    version: int
    rank: int
    layout: Layout
    image: memoryview
    ready: Callable[[int], None] = _filled
    home: Path | None = None
    best: bool = False
    attempt: int = 0
    lost: Callable[[CheckpointError], None] = _unheard

    @property
    def moving_s(self) -> float:
        """Seconds that copying, sending and writing the whole version may take beside every other wait."""
        return self.layout.size / LEAST_BYTES_S

    def manifest(self, crcs: Sequence[int]) -> Manifest:
        """The commit record of the version that this is the whole of, complete now."""
        return Manifest.of(self.job, self.version, self.layout, crcs, best=self.best)


class Tier(ABC):
    """A place for versions. All methods but ``close`` may be called from several threads, and block until done.

    Every wait has a limit, after which a :class:`~deepvm.errors.CheckpointError` is raised. A version that was not
    acknowledged may be lost; it must never be given back as complete, nor harm those before it.

    Attributes:
        streams: whether :meth:`put` calls ``shard.ready`` for what it reads, so that a version can be sent while it is
            still being copied. To other tiers only finished copies are given.
        volatile: whether it never gets beyond :attr:`Level.LOCAL`.
        away: whether what it keeps cannot go with this machine. Beside such a tier, what the others have does not count
            as safe from that.
    """

    streams: ClassVar[bool] = False
    volatile: bool = False
    away: ClassVar[bool] = True

    @property
    @abstractmethod
    def url(self) -> str:
        """What the user calls it, without secrets."""

    def prove(self) -> None:  # noqa: B027  some places can only be tried
        """Make sure that versions can be written, as far as that can be told now. Raises CheckpointError."""

    @abstractmethod
    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """Take one rank's part of a version.

        Args:
            shard: the part.
            acknowledged: called as soon as the whole version, of all ranks, is safe at a level; once for each level
                that this tier reaches, the weakest first, perhaps from another thread after this method has returned.
                The shard's memory is free when it returns.

        Raises:
            CheckpointError: it is not safe.
            TierBusyError: there is no room now; nothing was taken, skip this version.
        """

    @abstractmethod
    def versions(self, job: str) -> tuple[Manifest, ...]:
        """The complete versions, newest first; their bytes are not verified yet."""

    @abstractmethod
    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """A file with this version's bytes, verified against the manifest: the tier's own, or one made in ``folder``.

        Raises:
            CheckpointError: it is gone or damaged.
        """

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """The versions that were there once and that :meth:`versions` does not give, newest first.

        Where versions cannot be half there, there are none. Raises CheckpointError.
        """
        return ()

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """Have nobody take these, and those that are damaged, for versions any more, without losing what is there.

        Raises:
            CheckpointError: that cannot be done.
        """
        raise CheckpointError(f"{self.url}: damaged versions cannot be set aside there; take another name for the job")

    def settle(self, limit_s: float) -> bool:
        """Wait until everything that can be acknowledged was; returns whether that was so within the time."""
        return True

    def close(self) -> None:  # noqa: B027  a tier without connections has nothing to close
        """Let go of connections."""
