"""Several ranks write one object: each sends its bytes as a part; rank 0 joins them.

A part is a hidden object, ``.parts/JOB/VERSION.EPOCH.RUN.ATTEMPT.RANK``: a rank's bytes, one range
behind the other, and their CRC-32. It is there when all of it is. Rank 0 reads the parts, fills in
the file's checksums, and writes the version as if it had been alone; then it removes them, by which
the others know. What killed ranks leave is removed before the first version of the next run.
"""

from __future__ import annotations

import hashlib
import mmap
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.files.shared_file_write import until
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import Segment
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.tiers.object_store import ObjectStore
from deepvm.errors import CheckpointError, DamagedError

LIMIT_S = 60.0
"""How long to wait for other ranks, besides the time for the bytes."""
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_CRC_BYTES = 4


class Parts:
    """The parts of versions in a bucket, of one run."""

    def __init__(self, bucket: ObjectStore, session: str) -> None:
        """``session``: a random name of the run that all ranks share."""
        self._bucket = bucket
        self._run = hashlib.sha256(session.encode()).hexdigest()[:8]

    def name(self, shard: Shard, rank: int, epoch: int) -> str:
        """A rank's part: a step may be saved twice, and a rank may still be at the last save."""
        return (
            f"{self._folder(shard.job)}{shard.version}.{epoch}.{self._run}.{shard.attempt}.{rank}"
        )

    def _folder(self, job: str) -> str:
        return f"{self._bucket.prefix}.parts/{check_job(job)}/"

    def clear(self, job: str, epoch: int) -> None:
        """Remove the parts of other runs, but for those of newer generations.

        Raises CheckpointError.
        """
        folder = self._folder(job)
        with self._bucket.errors("remove parts of earlier runs"):
            self._bucket.remove(
                *(name for name in self._bucket.sizes(folder) if self._is_older(name, epoch))
            )
        self._bucket.abort_unfinished(folder, lambda name: self._is_older(name, epoch))

    def _is_older(self, name: str, epoch: int) -> bool:
        words = name.rpartition("/")[2].split(".")
        return (
            len(words) == 5
            and words[1].isdigit()
            and int(words[1]) <= epoch
            and words[2] != self._run
        )

    def send(self, shard: Shard, name: str) -> None:
        """Send this rank's part. Raises CheckpointError."""
        share = _Share(shard.layout.shards[shard.rank])
        crc = 0

        def final() -> Iterator[int]:
            nonlocal crc
            for (offset, length), end in zip(share.segments, share.ends, strict=True):
                shard.ready(offset + length)
                crc = crc32(shard.image[offset : offset + length], crc)
                yield end
            yield share.size + _CRC_BYTES

        def read(start: int, end: int) -> bytes:
            # The checksum follows the bytes: it is known once the last of them was final.
            own = b"".join(shard.image[a:b] for a, b in share.places(start, min(end, share.size)))
            return (
                own
                + crc.to_bytes(_CRC_BYTES, "little")[
                    max(start - share.size, 0) : max(end - share.size, 0)
                ]
            )

        with self._bucket.errors(f"write {name}"):
            self._bucket.upload(name, share.size + _CRC_BYTES, read, final())

    def await_commit(self, shard: Shard, name: str, is_there: Callable[[], bool]) -> None:
        """Wait until rank 0 has removed this rank's part: it has committed then.

        Raises CheckpointError: it has not.
        """
        otherwise = f"{name}: rank 0 did not commit it"
        # Rank 0 removes parts after a failure, too: that the part is gone does not mean success.
        self._until(lambda: not self._bucket.sizes(name), shard, otherwise)
        if not is_there():
            raise CheckpointError(f"{self._bucket.url}: {otherwise}")

    def joined(self, shard: Shard, names: Sequence[str]) -> memoryview:
        """The whole version, but for its checksums; ``names``: of the parts of ranks 1, 2, ...

        Raises CheckpointError: they did not come in time, or are not what was sent.
        """
        layout = shard.layout
        folder = names[0].rpartition(".")[0] + "."
        sizes = dict[str, int]()

        def all_there() -> bool:
            sizes.update(self._bucket.sizes(folder))
            return sizes.keys() >= set(names)

        self._until(all_there, shard, f"version {shard.version}: not all ranks sent their part")
        image = memoryview(mmap.mmap(-1, layout.size))
        for offset, length in layout.shards[shard.rank]:
            shard.ready(offset + length)
            image[offset : offset + length] = shard.image[offset : offset + length]
        for name, segments in zip(names, layout.shards[1:], strict=True):
            self._read(name, sizes[name], _Share(segments), image, shard)
        return image

    def _read(self, name: str, size: int, share: _Share, image: memoryview, shard: Shard) -> None:
        """Read a part to where it belongs."""
        crc = 0
        done = 0
        last = b""
        if size == share.size + _CRC_BYTES:
            with self._bucket.errors(f"read {name}"):
                for piece in self._bucket.pieces(name, size):
                    shard.ready(shard.layout.size)  # it may be given up for a newer version
                    own = memoryview(piece)[: max(share.size - done, 0)]
                    at = 0
                    for start, end in share.places(done, done + len(own)):
                        image[start:end] = own[at : at + end - start]
                        at += end - start
                    crc = crc32(own, crc)
                    done = done + len(piece)
                    last = last + piece[len(own) :]
        if done != size or last != crc.to_bytes(_CRC_BYTES, "little"):
            raise DamagedError(f"{self._bucket.url}: {name} is not what its rank sent")

    def _until(self, done: Callable[[], bool], shard: Shard, otherwise: str) -> None:
        deadline = time.monotonic() + LIMIT_S + shard.moving_s
        otherwise = f"{self._bucket.url}: {otherwise}"
        with self._bucket.errors("list its parts"):
            until(done, shard, deadline, otherwise, _PAUSE_S, _LONGEST_PAUSE_S)


class _Share:
    """A rank's ranges of a file, as one stream of bytes."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.ends = list(accumulate(length for _, length in segments))
        self.size = self.ends[-1] if self.ends else 0

    def places(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """The ranges of the file that a range of the stream is."""
        number = bisect_right(self.ends, start)
        while start < end:
            offset, length = self.segments[number]
            begin = offset + start - (self.ends[number] - length)
            count = min(end, self.ends[number]) - start
            yield begin, begin + count
            start = start + count
            number = number + 1
