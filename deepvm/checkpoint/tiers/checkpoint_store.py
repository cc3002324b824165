"""Checkpoints in a store of objects: which count, and how one rank or several write one.

A checkpoint is an object, ``JOB-VERSION.gEPOCH-RANDOM.pt``, and its manifest, ``….json``.
These names are never written again, and a checkpoint counts once the job's ledger lists its name:
what killed writers, lost replies and late requests leave does not count.

Of several ranks each sends its bytes and their CRC-32 as a hidden object, a part,
``.parts/JOB/VERSION.EPOCH.RUN.ATTEMPT.RANK``. Rank 0 reads the parts, writes the checkpoint, and
removes them, by which the others know.
"""

import hashlib
import mmap
import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import ClassVar

from deepvm.checkpoint.files.file_names import (
    aside_suffix,
    check_job,
    epoch_of,
    file_name,
    labeled_name,
    new_label,
    parse_labeled,
)
from deepvm.checkpoint.files.shared_file_write import until
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import Segment
from deepvm.checkpoint.format.manifest import (
    SUFFIX,
    UNRECORDED,
    CommitRecord,
    Damage,
    NewVersion,
    Shard,
)
from deepvm.checkpoint.tiers.base import Store, download, log
from deepvm.checkpoint.tiers.object_store import Ledger, LedgerFile, ObjectStore, StaleError, submit
from deepvm.errors import CheckpointError, DamagedError, RequestError

# Times to list and read a job's checkpoints, of which one may be removed or replaced in between
_LOOKS = 5
LIMIT_S = 60.0  # How long to wait for other ranks, besides the time for the bytes
_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_CRC_BYTES = 4
# The CRC-32 of any bytes that their own CRC-32 follows, the lowest byte first
_CRC_OF_SUMMED = 0x2144DF1C


class CheckpointStore(Store):
    """A part of a store of objects. ``records``: the suffixes of an object's manifests."""

    streams = True
    shared = True
    records: ClassVar[tuple[str, ...]] = (SUFFIX,)

    def __init__(
        self, objects: ObjectStore, *, keep: int = 0, every: int = 0, session: str = ""
    ) -> None:
        super().__init__(keep, every, session)
        self._objects = objects
        self.url = objects.url
        self._run = hashlib.sha256(session.encode()).hexdigest()[:8]
        self._epochs = dict[str, int]()
        self._cleared = set[str]()

    def prove(self) -> None:
        self._objects.prove()

    def begin(self, job: str, epoch: int) -> None:
        if self._epochs.get(job) != epoch:  # each connection to a memory node says it again
            self.ledger(job).begin(epoch)
            self._epochs[job] = epoch

    def epoch(self, job: str) -> int:
        return (self.ledger(job).read() or Ledger()).epoch

    def ledger(self, job: str) -> LedgerFile:
        def all_there() -> dict[str, str]:
            labels = self._labels(job, self._sizes(f"{check_job(job)}-"))
            return {str(version): max(found, key=epoch_of) for version, found in labels.items()}

        return LedgerFile(
            self._objects, f"{self._objects.prefix}.{check_job(job)}.ledger", all_there
        )

    def _has_ledger(self, job: str) -> bool:
        return True

    def _drop(self, job: str, versions: Iterable[int]) -> None:
        if self._has_ledger(job):
            self.ledger(job).drop({str(version) for version in versions}, self._epochs.get(job))

    def jobs(self) -> set[str]:
        names = map(self._parsed, self._sizes(""))
        return {name[0] for name in names if name is not None}

    def _put(self, shard: Shard) -> None:
        if shard.layout.world == 1:
            self._write_whole(shard, shard.image, shard.ready)
            return
        epoch = self._epochs.get(shard.job)
        if epoch is not None:
            self.ledger(shard.job).check(epoch)  # before all of it is sent in vain
        names = [self._part_name(shard, rank, epoch or 0) for rank in range(1, shard.layout.world)]
        if shard.rank:
            own = names[shard.rank - 1]
            otherwise = f"{own}: rank 0 did not commit it"
            try:
                self._send_part(shard, own)
                # Rank 0 removes parts after a failure, too: a part that is gone is no success.
                self._until(lambda: not self._objects.sizes(own), shard, otherwise)
                if not any(
                    (m.version, m.layout) == (shard.version, shard.layout.digest)
                    for m in self.versions(shard.job)
                ):
                    raise CheckpointError(f"{self.url}: {otherwise}")
            except BaseException:
                self._discard([own])
                raise
            return
        if shard.job not in self._cleared:
            try:
                self._clear_parts(shard.job, epoch or 0)
            except CheckpointError as error:  # it may be allowed to write and not to list
                log.debug("%s", error)
        try:
            self._write_whole(shard, self._joined(shard, names))
        finally:  # so that the other ranks stop waiting, also after a failure
            self._discard(names)

    def _part_name(self, shard: Shard, rank: int, epoch: int) -> str:
        # A step may be saved twice, and a rank may still be at the last save
        attempt = f"{shard.version}.{epoch}.{self._run}.{shard.attempt}"
        return f"{self._folder(shard.job)}{attempt}.{rank}"

    def _folder(self, job: str) -> str:
        return f"{self._objects.prefix}.parts/{check_job(job)}/"

    def _clear_parts(self, job: str, epoch: int) -> None:
        folder = self._folder(job)

        def is_older(name: str) -> bool:
            words = name.rpartition("/")[2].split(".")
            own = len(words) == 5 and words[1].isdigit() and words[2] != self._run
            return own and int(words[1]) <= epoch

        with self._objects.errors("remove parts of earlier runs"):
            self._objects.remove(*filter(is_older, self._objects.sizes(folder)))
        self._objects.abort_unfinished(folder, is_older)

    def _send_part(self, shard: Shard, name: str) -> None:
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
            summed = crc.to_bytes(_CRC_BYTES, "little")
            return own + summed[max(start - share.size, 0) : max(end - share.size, 0)]

        with self._objects.errors(f"write {name}"):
            self._objects.upload(name, share.size + _CRC_BYTES, read, final())

    def _joined(self, shard: Shard, names: Sequence[str]) -> memoryview:
        """The whole checkpoint without checksums; ``names``: of the parts of ranks 1, 2, ..."""
        layout = shard.layout
        start = names[0].rpartition(".")[0] + "."
        sizes = dict[str, int]()

        def all_there() -> bool:
            sizes.update(self._objects.sizes(start))
            return sizes.keys() >= set(names)

        self._until(all_there, shard, f"version {shard.version}: not all ranks sent their part")
        image = memoryview(mmap.mmap(-1, layout.size))
        for offset, length in layout.shards[shard.rank]:
            shard.ready(offset + length)
            image[offset : offset + length] = shard.image[offset : offset + length]
        for name, segments in zip(names, layout.shards[1:], strict=True):
            self._read_part(name, sizes[name], _Share(segments), image, shard)
        return image

    def _read_part(
        self, name: str, size: int, share: "_Share", image: memoryview, shard: Shard
    ) -> None:
        crc = done = 0
        if size == share.size + _CRC_BYTES:
            with self._objects.errors(f"read {name}"):
                for piece in self._objects.pieces(name, size):
                    shard.ready(shard.layout.size)  # it may be given up for a newer checkpoint
                    own = memoryview(piece)[: max(share.size - done, 0)]
                    at = 0
                    for start, end in share.places(done, done + len(own)):
                        image[start:end] = own[at : at + end - start]
                        at += end - start
                    crc = crc32(piece, crc)
                    done += len(piece)
        if done != size or crc != _CRC_OF_SUMMED:
            raise DamagedError(f"{self.url}: {name} is not what its rank sent")

    def _until(self, done: Callable[[], bool], shard: Shard, otherwise: str) -> None:
        deadline = time.monotonic() + LIMIT_S + shard.moving_s
        with self._objects.errors("list its parts"):
            until(done, shard, deadline, f"{self.url}: {otherwise}", _PAUSE_S, _LONGEST_PAUSE_S)

    def write(self, new: NewVersion) -> None:
        job = new.job
        with self._writing:
            epoch = self._epochs.get(job)
            ledger = self.ledger(job)
            if epoch is not None:
                ledger.check(epoch)  # before all of it is sent in vain
            if job not in self._cleared:
                ledger.ensure()
                self._clear(job, epoch)
            label = new_label(epoch or 0)
            key = self._key(job, new.version, label)
            with self._objects.errors(f"write {key}"):
                try:
                    self._objects.upload(key, len(new.image), reader(new.image), new.final)
                    self._objects.write(key + SUFFIX, new.manifest().to_json())
                except BaseException:
                    self._discard(self._names(key))
                    raise
            try:
                before = ledger.add(str(new.version), label, epoch)
            except StaleError:
                self._discard(self._names(key))
                raise
            newest = before.epoch if epoch is None else epoch
            try:
                for other in self._labels_of(job, new.version) - {label}:
                    if epoch_of(other) <= newest:
                        self._discard(self._names(self._key(job, new.version, other)))
            except CheckpointError as error:
                log.warning("an earlier version %d stays: %s", new.version, error)

    def _clear(self, job: str, epoch: int | None) -> None:
        self._abort_uploads(job, epoch)
        try:
            # In this order: what is listed was sent before
            labels = self._labels(job, self._sizes(f"{check_job(job)}-"))
            ledger = self.ledger(job).read() or Ledger()
        except CheckpointError as error:  # it may be allowed to write and not to list
            log.debug("%s", error)
            return
        first = ledger.epoch + 1 if epoch is None else epoch
        for version, found in labels.items():
            for label in found - {"", ledger.entries.get(str(version))}:
                if epoch_of(label) < first:
                    self._discard(self._names(self._key(job, version, label)))

    def _abort_uploads(self, job: str, epoch: int | None) -> None:
        """Abort uploads of killed runs, if they can be listed: else there is a lifecycle rule."""
        self._cleared.add(job)

        def older(key: str) -> bool:
            name = self._parsed(key)
            return (
                name is not None
                and name[0] == job
                and (epoch is None or epoch_of(name[2]) <= epoch)
            )

        try:
            self._objects.abort_unfinished(f"{self._objects.prefix}{check_job(job)}-", older)
        except CheckpointError as error:
            log.debug("%s", error)

    def open_for_writing(self, *, shared: bool = False) -> None:
        """There is no lock: that no other node writes there is up to the user."""
        self.versions("job")
        self.prove()

    def delete(self, job: str, version: int) -> None:
        epoch = self._epochs.get(job)
        labels = self._labels_of(job, version)
        self._drop(job, [version])
        for label in labels:
            if epoch is None or epoch_of(label) <= epoch:
                key = self._key(job, version, label)
                with self._objects.errors(f"remove {key}"):
                    self._objects.remove(*self._names(key))

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        found = self._look(job).values()
        for each in found:
            if isinstance(each, Damage) and each.problem not in self._warned:
                self._warned.add(each.problem)
                log.warning("version %d of %s is not complete: %s", each.version, job, each.problem)
        return tuple(m for m in found if isinstance(m, CommitRecord))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        return tuple(d for d in self._look(job).values() if isinstance(d, Damage))

    def unrecorded(self, job: str) -> set[int]:
        sizes, keys = self._counting(job)
        return {
            version
            for version, key in keys.items()
            if key in sizes and not sizes.keys() & {key + suffix for suffix in self.records}
        }

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        added = aside_suffix()
        epoch = self._epochs.get(job)
        sizes, keys = self._counting(job)
        numbers = sorted({*versions, *(d.version for d in self.damaged(job))} & keys.keys())
        if epoch is not None:
            self.ledger(job).check(epoch)
        for version in numbers:
            with self._objects.errors(f"set {keys[version]} aside"):
                for name in self._names(keys[version]):
                    if name in sizes:
                        self._objects.rename(name, name + added)
        self._drop(job, numbers)

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        for key, found in self._look(job, version).items():
            if isinstance(found, Damage):
                raise DamagedError(found.problem)
            return found, self._chunks(found, key)
        raise FileNotFoundError(f"{self.url}: version {version} of {job}")

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        key = self._counting(manifest.job)[1].get(manifest.version)
        if key is None:
            raise CheckpointError(
                f"{self.url}: version {manifest.version} of {manifest.job} is gone"
            )
        return download(self._chunks(manifest, key), manifest, folder, f"{self.url}: {key}")

    def _chunks(self, manifest: CommitRecord, key: str) -> Generator[memoryview, None, None]:
        with self._objects.errors(f"read {key}"):
            for piece in self._objects.pieces(key, manifest.size):
                yield memoryview(piece)

    def _look(self, job: str, only: int | None = None) -> dict[str, CommitRecord | Damage]:
        """The manifest or damage of each checkpoint, or ``only`` one, by object name."""
        for _ in range(_LOOKS):
            sizes, keys = self._counting(job)
            numbers = [n for n in sorted(keys, reverse=True) if only in (None, n)]
            with ThreadPoolExecutor(self._objects.threads) as pool:
                asked = {n: submit(pool, self._state, job, n, keys[n], sizes) for n in numbers}
            found = {keys[n]: state for n in numbers if (state := asked[n].result()) is not None}
            if len(found) == len(numbers):
                return found
        gone = min({keys[n] for n in numbers} - found.keys())
        raise CheckpointError(
            f"{self.url}: {gone}{SUFFIX} is listed, and was not there when it was read, {_LOOKS}"
            " times in a row; try again if another run writes there; if none does, remove it"
        )

    def _counting(self, job: str) -> tuple[dict[str, int], dict[int, str]]:
        """Bytes of a job's objects, and the name of each checkpoint that counts."""
        known: dict[int, str] = {}
        while True:
            ledger = None
            if self._has_ledger(job):
                ledger = self.ledger(job).read()
            sizes = self._sizes(f"{check_job(job)}-")
            last = known
            known = self._chosen(job, sizes, ledger)
            # An entry without its object is damage, unless it was removed between the two requests.
            if last == known or all({key, key + SUFFIX} <= sizes.keys() for key in known.values()):
                return sizes, known

    def _chosen(self, job: str, sizes: Iterable[str], ledger: Ledger | None) -> dict[int, str]:
        labels = self._labels(job, sizes)
        if ledger is None:  # as in a copy that lacks it: no generation is shut out
            found = {version: max(each, key=epoch_of) for version, each in labels.items()}
        else:
            found = {version: "" for version, each in labels.items() if "" in each}
            for text, label in ledger.entries.items():
                there = labels.get(int(text), set())
                if label in there or "" not in there:
                    found[int(text)] = label
        return {version: self._key(job, version, label) for version, label in found.items()}

    def _state(
        self, job: str, version: int, key: str, sizes: Mapping[str, int]
    ) -> CommitRecord | Damage | None:
        """A checkpoint's manifest or damage; None if the record was just removed."""
        try:
            if key not in sizes and sizes.keys().isdisjoint(self._names(key)):
                raise DamagedError("it is listed and not there")
            if key not in sizes:
                raise DamagedError("its manifest is there and the object is not")
            record = self._record(key, sizes)
            if record is None:
                return None
            if (record.job, record.version) != (job, version):
                raise DamagedError(
                    f"its manifest is that of {record.job}, version {record.version}"
                )
            if record.size != sizes[key]:
                raise DamagedError(f"it has {sizes[key]} bytes instead of {record.size}")
            return record
        except DamagedError as error:
            name = key[len(self._objects.prefix) :]
            return Damage(version, f"{self.url}/{name}: {error}", sizes.get(key, 0))

    def _record(self, key: str, sizes: Mapping[str, int]) -> CommitRecord | None:
        """The record of an object; None if it was just removed. Raises DamagedError."""
        if key + SUFFIX not in sizes:
            raise DamagedError(UNRECORDED)
        return self._manifest(key + SUFFIX)

    def _manifest(self, name: str) -> CommitRecord | None:
        with self._objects.errors(f"read {name}"):
            data = self._objects.content(name)
        if data is None:
            return None
        try:
            return CommitRecord.from_json(data)
        except RequestError as error:
            raise DamagedError(f"its manifest: {error}") from None

    def _key(self, job: str, version: int, label: str = "") -> str:
        return self._objects.prefix + labeled_name(job, version, label)

    def _names(self, key: str) -> list[str]:
        """The records of an object, which go first, and the object."""
        return [*(key + suffix for suffix in self.records), key]

    def _sizes(self, start: str) -> dict[str, int]:
        with self._objects.errors("list its objects"):
            return self._objects.sizes(self._objects.prefix + start)

    def _parsed(self, key: str) -> tuple[str, int, str] | None:
        return parse_labeled(key[len(self._objects.prefix) :].removesuffix(SUFFIX))

    def _labels(self, job: str, keys: Iterable[str]) -> dict[int, set[str]]:
        """The labels of each checkpoint with an object or record; "" is an unlabeled object."""
        found: dict[int, set[str]] = {}
        for name in map(self._parsed, keys):
            if name is not None and name[0] == job:
                found.setdefault(name[1], set()).add(name[2])
        return found

    def _labels_of(self, job: str, version: int) -> set[str]:
        sizes = self._sizes(file_name(job, version).removesuffix("pt"))
        return self._labels(job, sizes).get(version, set())

    def _discard(self, keys: Iterable[str]) -> None:
        try:
            with self._objects.errors("remove what does not count"):
                self._objects.remove(*keys)
        except CheckpointError as error:
            log.warning("%s", error)


def reader(image: memoryview) -> Callable[[int, int], bytes]:
    """What returns a range of an image."""
    return lambda start, end: bytes(image[start:end])


class _Share:
    """A rank's ranges of a file, as one stream of bytes."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self.segments = segments
        self.ends = list(accumulate(length for _, length in segments))
        self.size = self.ends[-1] if self.ends else 0

    def places(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        number = bisect_right(self.ends, start)
        while start < end:
            offset, length = self.segments[number]
            begin = offset + start - (self.ends[number] - length)
            count = min(end, self.ends[number]) - start
            yield begin, begin + count
            start += count
            number += 1
