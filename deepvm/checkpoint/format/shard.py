"""What a trainer hands to storage: one rank's part of a version, and how safe a place makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from deepvm.checkpoint.format.layout import Layout
from deepvm.checkpoint.format.manifest import CommitRecord
from deepvm.errors import CheckpointError, RequestError


class Level(str, Enum):
    """What an acknowledged version survives, weakest first; each level includes those before it.

    LOCAL: the end of this process, not that of this machine (a folder in memory, such as
    ``/dev/shm``). REMOTE: the loss of this machine, while the memory node lives. DURABLE: that of
    both; a folder is as durable as its disk.
    """

    LOCAL = "local"
    REMOTE = "remote"
    DURABLE = "durable"


LEAST_BYTES_S = 50e6
"""The slowest bandwidth, in bytes/s, that timeouts allow for; they grow with the size."""


@dataclass(frozen=True)
class Shard:
    """One rank's part of a version, in the trainer's memory.

    What is ready does not change until the tier has returned.

    Attributes:
        job: whose it is. version: iterations that it contains. rank: whose part.
        layout: of the whole version. image: the whole file's address space; only the rank's own
            segments are filled.
        ready: waits until the own bytes below a position are final; to be called before they are
            read. Raises CheckpointError: they will never be.
        home: the hidden file that ``image`` maps, of which a tier is to make a version (strategy
            D).
        best: the training calls it the best so far.
        attempt: grows with every save of a run, the same on all ranks: a number may be saved twice
            with other bytes, and parts of both are no version.
        lost: called by a tier that will acknowledge nothing more after ``put``, with the reason;
            not after all levels were acknowledged, or an error raised.
    """

    job: str
    version: int
    rank: int
    layout: Layout
    image: memoryview
    ready: Callable[[int], None] = lambda end: None
    home: Path | None = None
    best: bool = False
    attempt: int = 0
    lost: Callable[[CheckpointError], None] = lambda reason: None

    @property
    def moving_s(self) -> float:
        """Seconds to allow for copying, sending and writing the whole checkpoint."""
        return self.layout.size / LEAST_BYTES_S

    def check(self) -> None:
        """Raise RequestError if the image has another size than its layout."""
        if len(self.image) != self.layout.size:
            raise RequestError(
                "image", f"{len(self.image)} bytes", f"the {self.layout.size} bytes of its layout"
            )

    def manifest(self, crcs: Sequence[int]) -> CommitRecord:
        """The commit record of the version that this is the whole of, complete now."""
        return CommitRecord.of(self.job, self.version, self.layout, crcs, best=self.best)
