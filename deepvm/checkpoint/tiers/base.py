"""The interface of a storage tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from deepvm.checkpoint.format.manifest import Damage, Manifest
from deepvm.checkpoint.format.shard import Level, Shard
from deepvm.errors import CheckpointError, RequestError


@dataclass(frozen=True)
class TierOptions:
    """How the tier of a URL is opened.

    Attributes:
        session: a random text, the same for all tiers and ranks of this run.
        keep: how many versions stay where the trainer decides that. every: also one for each so many steps; 0 for none.
        option: what errors call the URL.
    """

    session: str
    keep: int = 2
    every: int = 0
    option: str = "tiers"


def refuse_query(url: str, option: str) -> None:
    """Raise RequestError for a URL with a query or a fragment: dropping those would write elsewhere."""
    if "?" in url or "#" in url:
        raise RequestError(option, url, "a URL without ? and #; in a folder's name write %3F and %23")


class Tier(ABC):
    """A place for versions. All methods but ``close`` are thread-safe and block until done.

    Every wait has a limit, after which a :class:`~deepvm.errors.CheckpointError` is raised. A version that was not
    acknowledged may be lost; it must never be given back as complete, nor harm those before it.

    Attributes:
        form: its URLs, for errors. listed: whether ``deepvm ckpt`` can ask it, from outside the training.
        shared: whether trainings on other machines may write there as well, so that each needs a name of its own.
        streams: whether :meth:`put` calls ``shard.ready`` for what it reads, so that a version can be sent while it is
            still being copied. To other tiers only finished copies are given.
        volatile: whether it never gets beyond :attr:`Level.LOCAL`.
        away: whether what it keeps cannot go with this machine. Beside such a tier, what the others have does not count
            as safe from that.
    """

    form: ClassVar[str] = ""
    listed: ClassVar[bool] = True
    streams: ClassVar[bool] = False
    shared: bool = False
    volatile: bool = False
    away: ClassVar[bool] = True

    @classmethod
    def open(cls, url: str, options: TierOptions) -> Tier:
        """The tier that a URL means. Raises RequestError, CheckpointError."""
        raise NotImplementedError(f"{cls.__name__} has no URL")

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
        """Rename these and all damaged versions, so that nobody takes them for versions; no bytes are lost.

        Raises:
            CheckpointError: that cannot be done.
        """
        raise CheckpointError(f"{self.url}: damaged versions cannot be set aside there; take another name for the job")

    def settle(self, limit_s: float) -> bool:
        """Wait until everything that can be acknowledged was; False on timeout."""
        return True

    def close(self) -> None:  # noqa: B027  a tier without connections has nothing to close
        """Close connections."""
