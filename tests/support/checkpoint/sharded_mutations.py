"""What a broken checkpointer of sharded models would do, for a run to do it.

See ``train_sharded.Run.change``.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files import shared_file_write
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.manifest import Shard
from deepvm.checkpoint.snapshot import snapshotter
from deepvm.checkpoint.snapshot.host_buffer import Slot
from support.checkpoint import failing_disk
from support.checkpoint.slow_copies import stop_noticing


def parts_at_the_wrong_place() -> None:
    """A rank's parts of two tensors of one size change places; all checksums are right."""
    init = Slot.__init__

    def swapped(self: Slot, *words: Any, **more: Any) -> None:
        init(self, *words, **more)
        lengths = [piece.length for piece in self.pieces]
        length = max(n for n in lengths if lengths.count(n) > 1)
        one, other = [number for number, n in enumerate(lengths) if n == length][:2]
        self.targets[one], self.targets[other] = self.targets[other], self.targets[one]

    Slot.__init__ = swapped  # type: ignore[method-assign]


def no_gate() -> None:
    """The next step does not wait for the copy."""
    snapshotter.Snapshotter.gate = lambda self, *copies: None  # type: ignore[method-assign]
    stop_noticing()  # else what it mixes is noticed, and not sent


def accepts_what_is_missing() -> None:
    """Rank 0 commits without another one's part."""
    failing_disk.accepts_what_is_missing(setattr)


def mixes_runs() -> None:
    """What a killed run left is not told from what this one writes, nor removed."""

    def name(target: Path, suffix: str, session: str, rank: int) -> Path:
        digest = hashlib.sha256(str(rank).encode()).hexdigest()[:8]
        return target.with_name(f".{target.name}{suffix}.{digest}.tmp")

    shared_file_write._name = name
    shared_file_write.put_part.__defaults__ = (3.0,)
    VersionFolder.sweep = lambda self, *_: None  # type: ignore[method-assign]


def second_rank_comes_late() -> None:
    """Not broken: in its first save."""
    write, late = shared_file_write._write_part, [1.0]

    def slow(hidden: Path, shard: Shard) -> None:
        if shard.rank:
            time.sleep(late.pop() if late else 0.0)
        write(hidden, shard)

    shared_file_write._write_part = slow


MUTATIONS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        parts_at_the_wrong_place,
        no_gate,
        accepts_what_is_missing,
        mixes_runs,
        second_rank_comes_late,
    )
}
