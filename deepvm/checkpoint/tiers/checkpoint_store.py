"""Checkpoints in a store of objects: which count, and how one rank or several write one.

A checkpoint is an object that plain ``torch.load`` reads and its commit record next to it,
``JOB-VERSION.gEPOCH-RANDOM.pt`` and ``….json``. These names are never written again, and a
checkpoint counts once the job's ledger lists its name: killed writers, lost replies and late
requests leave objects that do not count, which the next run removes. Parts of several ranks are
joined first (:mod:`deepvm.checkpoint.tiers.bucket_parts`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

from deepvm.checkpoint.files.file_names import (
    aside_suffix,
    check_job,
    epoch_of,
    file_name,
    labelled_name,
    new_label,
    parse_labelled,
)
from deepvm.checkpoint.format.checksums import seal
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage
from deepvm.checkpoint.format.shard import Shard
from deepvm.checkpoint.tiers.base import Store, download
from deepvm.checkpoint.tiers.bucket_parts import Parts
from deepvm.checkpoint.tiers.ledger import Ledger, LedgerFile, StaleError
from deepvm.checkpoint.tiers.object_store import ObjectStore, submit
from deepvm.errors import CheckpointError, DamagedError, RequestError

log = logging.getLogger("deepvm.checkpoint")
_LOOKS = 5
"""Times to list and read a job's versions, of which one may be removed or replaced in between."""


class CheckpointStore(Store):
    """A part of a store of objects."""

    streams: ClassVar[bool] = True
    shared = True
    records: ClassVar[tuple[str, ...]] = (SUFFIX,)
    """Suffixes of an object's commit records."""

    def __init__(
        self, objects: ObjectStore, *, keep: int = 0, every: int = 0, session: str = ""
    ) -> None:
        super().__init__(keep, every, session)
        self._objects = objects
        self.url = objects.url
        self._parts = Parts(objects, session)
        self._epochs = dict[str, int]()
        self._cleared = set[str]()

    def prove(self) -> None:
        self._objects.prove()

    def begin(self, job: str, epoch: int) -> None:
        if self._epochs.get(job) != epoch:  # each connection to a memory node says it again
            self.ledger(job).begin(epoch)
            self._epochs[job] = epoch

    def epoch(self, job: str) -> int:
        found = self.ledger(job).read()
        if found is None:
            return 0
        return found.epoch

    def ledger(self, job: str) -> LedgerFile:
        """The generations of a job; where its ledger was lost, all that is there counts again."""

        def all_there() -> dict[str, str]:
            labels = self._labels(job, self._sizes(f"{check_job(job)}-"))
            return {str(version): max(found, key=epoch_of) for version, found in labels.items()}

        return LedgerFile(
            self._objects, f"{self._objects.prefix}.{check_job(job)}.ledger", all_there
        )

    def _has_ledger(self, job: str) -> bool:
        return True

    def _drop(self, job: str, names: set[str]) -> None:
        """Have these versions count no more."""
        if self._has_ledger(job):
            self.ledger(job).drop(names, self._epochs.get(job))

    def jobs(self) -> set[str]:
        names = map(self._parsed, self._sizes(""))
        return {name[0] for name in names if name is not None}

    def _write_whole(
        self, shard: Shard, image: memoryview, ready: Callable[[int], None] = lambda end: None
    ) -> None:
        crcs: list[int] = []
        final = seal(image, shard.layout, crcs, ready=ready)
        self.write(image, shard.job, shard.version, final, lambda: shard.manifest(crcs))

    def _put(self, shard: Shard) -> None:
        """See :class:`Store`; of several ranks, rank 0 joins the parts."""
        if shard.layout.world == 1:
            self._write_whole(shard, shard.image, shard.ready)
            return
        epoch = self._epochs.get(shard.job)
        if epoch is not None:
            self.ledger(shard.job).check(epoch)  # before all of it is sent in vain
        names = [self._parts.name(shard, rank, epoch or 0) for rank in range(1, shard.layout.world)]
        if shard.rank:
            own = names[shard.rank - 1]
            try:
                self._parts.send(shard, own)
                self._parts.await_commit(shard, own, lambda: self._is_there(shard))
            except BaseException:
                self._discard([own])
                raise
            return
        if shard.job not in self._cleared:
            try:
                self._parts.clear(shard.job, epoch or 0)
            except CheckpointError as error:  # it may be allowed to write and not to list
                log.debug("%s", error)
        try:
            self._write_whole(shard, self._parts.joined(shard, names))
        finally:  # so that the other ranks stop waiting, also after a failure
            self._discard(names)

    def _is_there(self, shard: Shard) -> bool:
        digest = shard.layout.digest
        return any(
            m.version == shard.version and m.layout == digest for m in self.versions(shard.job)
        )

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        with self._writing:
            epoch = self._epochs.get(job)
            ledger = self.ledger(job)
            if epoch is not None:
                ledger.check(epoch)  # before all of it is sent in vain
            if job not in self._cleared:
                ledger.ensure()
                self._clear(job, epoch)
            label = new_label(epoch or 0)
            key = self._key(job, version, label)
            with self._objects.errors(f"write {key}"):
                try:
                    self._objects.upload(key, len(image), reader(image), final)
                    self._objects.write(key + SUFFIX, manifest().to_json())
                except BaseException:
                    self._discard(self._names(key))
                    raise
            try:
                before = ledger.add(str(version), label, epoch)
            except StaleError:
                self._discard(self._names(key))
                raise
            newest = before.epoch if epoch is None else epoch
            try:
                others = self._labels_of(job, version) - {label}
            except CheckpointError as error:
                log.warning("an earlier version %d stays: %s", version, error)
                return
            for other in others:
                if epoch_of(other) <= newest:
                    self._discard(self._names(self._key(job, version, other)))

    def _clear(self, job: str, epoch: int | None) -> None:
        """Remove what killed writers left, once, before the first version of this run."""
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
        """See :class:`Store`.

        A wrong name or a missing permission fails now, not with the first version.

        There is no lock: that no other node writes there is up to the user.
        """
        self.versions("job")
        self.prove()

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`; its record goes first, after its entry in the ledger."""
        epoch = self._epochs.get(job)
        labels = self._labels_of(job, version)
        self._drop(job, {str(version)})
        for label in labels:
            if epoch is None or epoch_of(label) <= epoch:
                key = self._key(job, version, label)
                with self._objects.errors(f"remove {key}"):
                    self._objects.remove(*self._names(key))

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`; others are logged once."""
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
        """See :meth:`Tier.set_aside`: objects and records are copied to names with ``.aside``."""
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
        self._drop(job, {str(version) for version in numbers})

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        for key, found in self._look(job, version).items():
            if isinstance(found, Damage):
                raise DamagedError(found.problem)
            return found, self._chunks(found, key)
        raise FileNotFoundError(f"{self.url}: version {version} of {job}")

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        job = manifest.job
        version = manifest.version
        key = self._counting(job)[1].get(version)
        if key is None:
            raise CheckpointError(f"{self.url}: version {version} of {job} is gone")
        return download(self._chunks(manifest, key), manifest, folder, f"{self.url}: {key}")

    def _chunks(self, manifest: CommitRecord, key: str) -> Generator[memoryview, None, None]:
        """Bytes in order, unverified. Raises CheckpointError."""
        with self._objects.errors(f"read {key}"):
            for piece in self._objects.pieces(key, manifest.size):
                yield memoryview(piece)

    def _look(self, job: str, only: int | None = None) -> dict[str, CommitRecord | Damage]:
        """The commit record or damage of each checkpoint, or one, by object name, newest first."""
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
        """Bytes of a job's objects, and the name of each version that counts.

        Raises CheckpointError.
        """
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
        """A checkpoint's commit record or damage; None if the record was just removed."""
        try:
            if key not in sizes and sizes.keys().isdisjoint(self._names(key)):
                raise DamagedError("it is listed and not there")
            if key not in sizes:
                raise DamagedError("its commit record is there and the object is not")
            record = self._record(key, sizes)
            if record is None:
                return None
            if (record.job, record.version) != (job, version):
                raise DamagedError(
                    f"its commit record is that of {record.job}, version {record.version}"
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
        try:
            if data is None:
                return None
            return CommitRecord.from_json(data)
        except RequestError as error:
            raise DamagedError(f"its commit record: {error}") from None

    def _key(self, job: str, version: int, label: str = "") -> str:
        """Name of a version's object; ``label``: of the generation that wrote it."""
        return self._objects.prefix + labelled_name(job, version, label)

    def _names(self, key: str) -> list[str]:
        """The records of an object, which go first, and the object."""
        return [*(key + suffix for suffix in self.records), key]

    def _sizes(self, start: str) -> dict[str, int]:
        with self._objects.errors("list its objects"):
            return self._objects.sizes(self._objects.prefix + start)

    def _parsed(self, key: str) -> tuple[str, int, str] | None:
        """Job, version and label of an object or its record."""
        return parse_labelled(key[len(self._objects.prefix) :].removesuffix(SUFFIX))

    def _labels(self, job: str, keys: Iterable[str]) -> dict[int, set[str]]:
        """The labels of each version with an object or record; "" is an unlabeled object."""
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
