"""Several ranks write one file in a shared folder: each its own bytes; rank 0 commits it.

A rank reports that its bytes are on disk by a small hidden file with their checksums, or with null
if it cannot write. Rank 0 verifies the bytes, commits, and removes all reports.
"""

import contextlib
import hashlib
import json
import mmap
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from deepvm.checkpoint.files.durable_write import failing
from deepvm.checkpoint.files.version_dir import VersionFolder
from deepvm.checkpoint.format.checksums import crc32, seal
from deepvm.checkpoint.format.manifest import SUFFIX, CommitRecord, Shard
from deepvm.errors import CheckpointError, TierBusyError
from deepvm.io.atomic_write import discard
from deepvm.io.failpoints import point

_PAUSE_S = 0.01


def put_part(folder: VersionFolder, shard: Shard, session: str, limit_s: float = 60.0) -> None:
    """Write one rank's part, and wait for the commit; ``session``: the same on all ranks.

    ``limit_s``: how long to wait for the other ranks, besides ``Shard.moving_s``.
    """
    target = folder.file(shard.job, shard.version)
    # A rank may still be at the save before, of the same number
    session = f"{session} {shard.attempt}"
    hidden = _name(target, "", session, -1)
    parts = [_name(target, SUFFIX, session, rank) for rank in range(shard.layout.world)]
    deadline = time.monotonic() + limit_s + shard.moving_s
    try:
        with failing(target):
            try:
                folder.enter()
                _write_part(hidden, shard)
            except TierBusyError:  # all ranks give it up
                raise
            except (CheckpointError, OSError):
                _refuse(parts, shard, deadline)
                raise
            point("shared-file.before-part")
            _report(parts[shard.rank], _checksums(shard))
            if shard.rank:
                otherwise = f"{target}: rank 0 did not commit it"
                until(lambda: not parts[shard.rank].exists(), shard, deadline, otherwise)
                found = folder.complete(shard.job, shard.version)
                if found is None or found.layout != shard.layout.digest:
                    raise CheckpointError(otherwise)
                return
            otherwise = f"{target}: not all ranks wrote their part"
            until(lambda: all(part.exists() for part in parts), shard, deadline, otherwise)
            missing = ", ".join(str(rank) for rank, part in enumerate(parts) if _refused(part))
            if missing:
                raise CheckpointError(f"{target}: rank {missing} could not write its part")
            point("shared-file.before-commit")
            folder.adopt(hidden, _complete(hidden, shard, parts))
    finally:
        # Either the file was renamed, or this rank gives the checkpoint up: no other rank would
        # remove these. Only rank 0 removes a refusal, once it has seen it.
        discard(hidden)
        for rank, part in enumerate(parts):
            if not shard.rank or (rank == shard.rank and not _refused(part)):
                discard(part)


def _name(target: Path, suffix: str, session: str, rank: int) -> Path:
    digest = hashlib.sha256(f"{session} {rank}".encode()).hexdigest()[:8]
    return target.with_name(f".{target.name}{suffix}.{digest}.tmp")


def _write_part(hidden: Path, shard: Shard) -> None:
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb", buffering=0) as file:
        file.truncate(shard.layout.size)
        for offset, length in shard.layout.shards[shard.rank]:
            end = offset + length
            shard.ready(end)
            while offset < end:
                offset += os.pwrite(descriptor, shard.image[offset:end], offset)
        os.fsync(descriptor)


def _checksums(shard: Shard) -> list[int]:
    return [crc32(shard.image[o : o + n]) for o, n in shard.layout.shards[shard.rank]]


def _refuse(parts: list[Path], shard: Shard, deadline: float) -> None:
    """Tell the others that this rank's part will not come, so that they need not wait for it."""
    if shard.rank:
        with contextlib.suppress(OSError):  # else they wait
            _report(parts[shard.rank], None)
        return
    # Rank 0 removes their reports: they see that it will not commit
    with contextlib.suppress(CheckpointError):
        until(lambda: all(part.exists() for part in parts[1:]), shard, deadline, "")


def _refused(part: Path) -> bool:
    try:
        return json.loads(part.read_text()) is None
    except (OSError, ValueError):
        return False


def _report(part: Path, crcs: list[int] | None) -> None:
    """Write atomically: the others look for the name."""
    draft = part.with_name(part.name.replace(".tmp", "")[:-8] + secrets.token_hex(4) + ".tmp")
    draft.write_text(json.dumps(crcs))
    os.replace(draft, part)


def until(
    done: Callable[[], bool],
    shard: Shard,
    deadline: float,
    otherwise: str,
    pause_s: float = _PAUSE_S,
    longest_s: float = _PAUSE_S,
) -> None:
    """Wait for other ranks. Raises CheckpointError: ``otherwise``."""
    while not done():
        shard.ready(shard.layout.size)  # it may be given up for a newer checkpoint
        if time.monotonic() > deadline:
            raise CheckpointError(f"{otherwise} in time; the checkpoint is given up")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def _complete(hidden: Path, shard: Shard, parts: list[Path]) -> CommitRecord:
    layout = shard.layout
    crcs = list[int]()
    with (
        hidden.open("r+b") as file,
        mmap.mmap(file.fileno(), layout.size) as memory,
        memoryview(memory) as image,
    ):
        for rank, part in enumerate(parts):
            sums = json.loads(part.read_text())
            for (offset, length), crc in zip(layout.shards[rank], sums, strict=True):
                if crc32(image[offset : offset + length]) != crc:
                    raise CheckpointError(
                        f"{hidden}: the bytes of rank {rank} at {offset} are not what it wrote"
                    )
        for _ in seal(image, layout, crcs):
            pass
        memory.flush()
        os.fsync(file.fileno())
    return shard.manifest(crcs)
