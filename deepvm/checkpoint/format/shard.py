"""What a trainer hands to storage: one rank's part of a version, and how safe a place makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import Manifest
from deepvm.errors import CheckpointError, RequestError


class Level(str, Enum):
    """What an acknowledged version survives, weakest first; each level includes those before it.

    LOCAL: the end of this process, not that of this machine (a folder in memory, such as ``/dev/shm``). REMOTE: the
    loss of this machine, while the memory node lives. DURABLE: that as well; a folder is as durable as what it lies on.
    """

    LOCAL = "local"
    REMOTE = "remote"
    DURABLE = "durable"


LEAST_BYTES_S = 50e6
"""The slowest bandwidth, in bytes/s, that time limits allow for: they grow with the version's size."""


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

    def check(self) -> None:
        """Raise RequestError if the image has another size than its layout."""
        if len(self.image) != self.layout.size:
            raise RequestError("image", f"{len(self.image)} bytes", f"the {self.layout.size} bytes of its layout")

    def manifest(self, crcs: Sequence[int]) -> Manifest:
        """The commit record of the version that this is the whole of, complete now."""
        return Manifest.of(self.job, self.version, self.layout, crcs, best=self.best)
