"""``gs://bucket/prefix``, ``az://container/prefix``: Google or Azure storage, by fsspec.

A version is an object that plain ``torch.load`` reads, ``JOB-VERSION.gEPOCH-RANDOM.pt``, and its
commit record next to it. These names are never written again, and a version counts once the
job's ledger lists its name: killed writers, lost replies and late requests leave objects that do
not count, which the next run removes. One writer at a time is assumed for a job; generations of
``deepvm run`` shut each other out, see :mod:`deepvm.checkpoint.tiers.ledger`.

The store's own library authenticates, retries, and encrypts the way there; of what arrived the size
is compared.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import secrets
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files.file_names import aside_suffix, epoch_of, labelled_name, new_label
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage
from deepvm.checkpoint.tiers.base import Tier, download
from deepvm.checkpoint.tiers.cloud_objects import CloudObjects, labels_of
from deepvm.checkpoint.tiers.ledger import Ledger, StaleError
from deepvm.checkpoint.tiers.object_store import ObjectStore
from deepvm.errors import CheckpointError, DamagedError, MissingExtraError, RequestError

log = logging.getLogger("deepvm.checkpoint")
_URL = re.compile(
    r"(?P<scheme>gs|az)://(?P<bucket>[^/\0?#@]+)(?P<prefix>/[^\0?#]*)?", re.IGNORECASE
)
_LOOKS = 5
"""Times to list and read a job's versions, of which one may be removed or replaced in between."""
_LIBRARIES = {"gs": "gcsfs", "az": "adlfs"}


class CloudTier(ObjectStore):
    """A bucket or container, or a prefix of one, where several ranks join their parts."""

    form = "gs://bucket/prefix, az://container/prefix"

    def __init__(
        self, objects: CloudObjects, *, keep: int = 0, every: int = 0, session: str = ""
    ) -> None:
        """Send nothing before the first version. For the arguments see :class:`ObjectStore`."""
        super().__init__(objects, session, keep, every)
        self._cloud = objects
        self._warned = set[str]()

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """See :meth:`Tier.open`; credentials are those that gcsfs or adlfs find."""
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        scheme = found["scheme"].lower()
        place = found["bucket"] + (found["prefix"] or "").rstrip("/")
        library = _LIBRARIES[scheme]
        if importlib.util.find_spec(library) is None:
            raise MissingExtraError(f"{option} with {scheme}://", library, scheme)
        objects = CloudObjects(partial(_file_system, scheme), place, f"{scheme}://{place}")
        return cls(objects, keep=keep, every=every, session=session)

    def prove(self) -> None:
        """See :meth:`Tier.prove`: makes an object, tries to make it again, and removes it."""
        with self._cloud.errors("write there"):
            if self._cloud.creates_twice(f".deepvm-proof-{secrets.token_hex(4)}"):
                raise CheckpointError(
                    f"{self.url}: this store, or this release of its library, replaces an object"
                    " where it was told to create one, so nothing would keep an older generation"
                    " out; update gcsfs or adlfs"
                )

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """See :class:`Store`."""
        with self._writing:
            epoch = self._epochs.get(job)
            ledger = self._cloud.ledger(job)
            if epoch is not None:
                ledger.check(epoch)  # before all of it is sent in vain
            if job not in self._cleared:
                ledger.ensure()
                self._clear(job)
            label = new_label(epoch or 0)
            key = labelled_name(job, version, label)
            with self._cloud.errors(f"write {key}"):
                try:
                    self._cloud.upload(
                        key, len(image), lambda start, end: bytes(image[start:end]), final
                    )
                    self._cloud.write(key + SUFFIX, manifest().to_json())
                except BaseException:
                    self._discard((key + SUFFIX, key))
                    raise
            try:
                before = ledger.add(str(version), label, epoch)
            except StaleError:
                self._discard((key + SUFFIX, key))
                raise
            replaced = before.entries.get(str(version), label)
            if replaced != label:
                self._discard(_both(labelled_name(job, version, replaced)))

    def _clear(self, job: str) -> None:
        """Remove what killed writers left, once, before the first version of this run."""
        self._cleared.add(job)
        try:
            with self._cloud.errors("list its objects"):
                sizes = self._cloud.sizes(f"{job}-")
            ledger = self._cloud.ledger(job).read()
        except CheckpointError as error:
            log.debug("%s", error)
            return
        if ledger is not None:
            most = self._epochs.get(job, ledger.epoch)
            self._discard(
                name
                for version, labels in labels_of(job, sizes).items()
                for label in labels
                if ledger.entries.get(str(version)) != label and epoch_of(label) <= most
                for name in _both(labelled_name(job, version, label))
            )

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`; its entry goes first."""
        epoch = self._epochs.get(job)
        with self._cloud.errors("list its objects"):
            labels = labels_of(job, self._cloud.sizes(f"{job}-")).get(version, set())
        self._cloud.ledger(job).drop({str(version)}, epoch)
        names = [
            labelled_name(job, version, label)
            for label in labels
            if epoch is None or epoch_of(label) <= epoch
        ]
        with self._cloud.errors(f"remove version {version}"):
            for name in names:
                self._cloud.remove(name + SUFFIX, name)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`; others are logged once."""
        found = self._look(job).values()
        for each in found:
            if isinstance(each, Damage) and each.problem not in self._warned:
                self._warned.add(each.problem)
                log.warning("version %d of %s is not complete: %s", each.version, job, each.problem)
        return tuple(m for m in found if isinstance(m, CommitRecord))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`."""
        return tuple(d for d in self._look(job).values() if isinstance(d, Damage))

    def unrecorded(self, job: str) -> set[int]:
        """See :class:`Store`."""
        sizes, keys = self._listed(job)
        return {
            version for version, key in keys.items() if key in sizes and key + SUFFIX not in sizes
        }

    def _look(self, job: str, only: int | None = None) -> dict[str, CommitRecord | Damage]:
        """The commit record or damage of each checkpoint, or one, by object name, newest first."""
        for _ in range(_LOOKS):
            sizes, keys = self._listed(job)
            numbers = sorted(keys, reverse=True) if only is None else keys.keys() & {only}
            found = {
                keys[number]: self._state(job, number, keys[number], sizes) for number in numbers
            }
            there = {key: state for key, state in found.items() if state is not None}
            if len(there) == len(found):
                return there
        raise CheckpointError(
            f"{self.url}: {min(found.keys() - there.keys())}{SUFFIX} is listed, and was not there"
            f" when it was read, {_LOOKS} times in a row; try again if another run writes there; if"
            " none does, remove it"
        )

    def _listed(self, job: str) -> tuple[dict[str, int], dict[int, str]]:
        """Bytes of a job's objects, and the names of the versions that count.

        Raises CheckpointError.
        """
        known: dict[int, str] = {}
        while True:
            ledger = self._cloud.ledger(job).read()
            with self._cloud.errors("list its objects"):
                sizes = self._cloud.sizes(f"{job}-")
            last = known
            known = _keys(job, sizes, ledger)
            # An entry without its object is damage, unless it was removed between the two requests.
            if last == known or all({key, key + SUFFIX} <= sizes.keys() for key in known.values()):
                return sizes, known

    def _state(
        self, job: str, version: int, key: str, sizes: dict[str, int]
    ) -> CommitRecord | Damage | None:
        """A checkpoint's commit record or damage; None if the record was just removed."""
        problem = ""
        if key not in sizes:
            problem = "it is listed and not there"
        elif key + SUFFIX not in sizes:
            problem = UNRECORDED
        else:
            try:
                with self._cloud.errors(f"read {key}{SUFFIX}"):
                    try:
                        raw = self._cloud.whole(key + SUFFIX)
                    except FileNotFoundError:
                        return None
                record = CommitRecord.from_json(raw)
                if (record.job, record.version) != (job, version):
                    problem = f"its commit record is that of {record.job}, version {record.version}"
                elif record.size != sizes[key]:
                    problem = f"it has {sizes[key]} bytes in place of {record.size}"
                else:
                    return record
            except RequestError as error:
                problem = f"its commit record: {error}"
        return Damage(version, f"{self.url}/{key}: {problem}", sizes.get(key, 0))

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :meth:`Tier.set_aside`: objects and records are copied to names with ``.aside``."""
        added = aside_suffix()
        epoch = self._epochs.get(job)
        sizes, keys = self._listed(job)
        numbers = sorted({*versions, *(d.version for d in self.damaged(job))} & keys.keys())
        ledger = self._cloud.ledger(job)
        if epoch is not None:
            ledger.check(epoch)
        for version in numbers:
            with self._cloud.errors(f"set {keys[version]} aside"):
                for name in _both(keys[version]):
                    if name in sizes:
                        self._cloud.rename(name, name + added)
        ledger.drop({str(version) for version in numbers}, epoch)

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        """See :class:`Store`."""
        for key, found in self._look(job, version).items():
            if isinstance(found, Damage):
                raise DamagedError(found.problem)
            return found, self._chunks(found, key)
        raise FileNotFoundError(f"{self.url}: version {version} of {job}")

    def _chunks(self, manifest: CommitRecord, key: str) -> Generator[memoryview, None, None]:
        with self._cloud.errors(f"read {key}"):
            for piece in self._cloud.pieces(key, manifest.size):
                yield memoryview(piece)

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """See :meth:`Tier.fetch`."""
        job = manifest.job
        version = manifest.version
        key = self._listed(job)[1].get(version)
        if key is None:
            raise CheckpointError(f"{self.url}: version {version} of {job} is gone")
        return download(self._chunks(manifest, key), manifest, folder, f"{self.url}: {key}")


def _keys(job: str, sizes: Iterable[str], ledger: Ledger | None) -> dict[int, str]:
    """The names of the checkpoints that count; all of them if there is no ledger."""
    if ledger is None:
        labels = {
            version: max(found, key=epoch_of) for version, found in labels_of(job, sizes).items()
        }
    else:
        labels = {int(version): label for version, label in ledger.entries.items()}
    return {version: labelled_name(job, version, label) for version, label in labels.items()}


def _both(key: str) -> tuple[str, str]:
    """The record of an object, which goes first, and the object."""
    return key + SUFFIX, key


def _file_system(scheme: str) -> Any:
    """The store's file system, private to us and without a listings cache."""
    import fsspec

    return fsspec.filesystem(scheme, skip_instance_cache=True, use_listings_cache=False)
