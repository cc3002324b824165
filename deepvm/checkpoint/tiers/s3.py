"""``s3://bucket/prefix``: versions in an object store, durable when acknowledged.

A version is an object that plain ``torch.load`` reads, and a commit record next to it, written when
the object is complete; parts of several ranks are joined first
(:mod:`deepvm.checkpoint.tiers.bucket_parts`). A trainer that is killed during an upload leaves
parts that cost money and are not listed as objects: the next one aborts them if it may list
uploads, and a lifecycle rule of the bucket should after a day.

From before its object is completed until its usual record is there, a version has an *upcoming*
record. So no killed writer leaves an object with neither: such an object has lost its record. A
replaced object changes atomically, so one of the two records always fits it; a chunk in which they
differ tells which (an encrypted object's ETag says nothing of its bytes). Saving the same bytes
again leaves the object as it is. One writer is assumed: a completion that the store carries out
after its sender has died and another one has saved the same number is not noticed.

Generations of ``deepvm run`` follow each other while requests of older ones may still be under way.
What they write has names of its own, is never replaced, and counts once the job's ledger lists it
(:mod:`deepvm.checkpoint.tiers.ledger`).
"""

from __future__ import annotations

import base64
import contextlib
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord
from deepvm.checkpoint.tiers.base import Tier
from deepvm.checkpoint.tiers.bucket import Bucket, checksum
from deepvm.checkpoint.tiers.checkpoint_store import CheckpointStore, reader
from deepvm.errors import CheckpointError, DamagedError, RequestError

log = logging.getLogger("deepvm.checkpoint")
UPCOMING = SUFFIX + ".next"
"""Added to an object's name: a record of what is about to be completed, or just was."""
_URL = re.compile(r"(?i:s3)://(?P<bucket>[^/\0?#]+)(?P<prefix>/[^\0?#]*)?")


class S3Tier(CheckpointStore):
    """A bucket, or a part of one; several ranks join their parts of a version there."""

    form = "s3://bucket/prefix"
    records: ClassVar[tuple[str, ...]] = (SUFFIX, UPCOMING)

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        keep: int = 0,
        every: int = 0,
        session: str = "",
        **requests: Any,
    ) -> None:
        """Nothing is sent before the first save; ``prefix``: of all names.

        ``requests``: options of :class:`Bucket`; for the others see :class:`Store`.
        """
        self._bucket = Bucket(bucket, prefix, **requests)
        super().__init__(self._bucket, keep=keep, every=every, session=session)

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """See :meth:`Tier.open`; bucket and prefix are taken literally, as the AWS CLI does."""
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        return cls(found["bucket"], found["prefix"] or "", keep=keep, every=every, session=session)

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """See :class:`Store`; a run without a number replaces the one object of this version."""
        with self._writing:
            if job in self._epochs:
                super().write(image, job, version, final, manifest)
                return
            if job not in self._cleared:
                self._abort_uploads(job, None)
            self._replace(image, job, version, final, manifest)

    def _replace(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        key = self._key(job, version)
        with self._bucket.errors(f"write {key}"):
            upload = self._bucket.open_upload(key)
            announced = False
            try:
                parts = self._bucket.send_parts(upload, len(image), reader(image), final)
                new = manifest()
                (old, labelled) = self._settled(job, version)
                same = None
                if old is not None and self._has_bytes(key, old, new, parts):
                    same = old
                if same is None:
                    announced = True
                    self._bucket.write(key + UPCOMING, new.to_json())
                    self._bucket.s3.complete_multipart_upload(
                        **upload, MultipartUpload={"Parts": parts}
                    )
            except BaseException:
                # One that cannot be aborted may be complete
                if self._bucket.abort(upload) and announced:
                    with contextlib.suppress(Exception):  # alone it is evidence of nothing
                        self._bucket.remove(key + UPCOMING)
                raise
        if same is not None:
            self._bucket.abort(upload)
            new = replace(new, created=same.created, best=same.best or new.best)
            if new != same:
                with self._bucket.errors(f"write {key}{SUFFIX}"):
                    self._bucket.write(key + SUFFIX, new.to_json())
        else:
            try:
                self._end_replacement(key, new)
            except CheckpointError as error:  # the version is complete by its upcoming record
                log.warning("%s keeps two records until it is saved again: %s", key, error)
        if labelled:  # of generations before this run, which has no number
            self.ledger(job).drop({str(version)}, None)
            for label in labelled:
                self._discard(self._names(self._key(job, version, label)))

    def _end_replacement(self, key: str, manifest: CommitRecord) -> None:
        with self._bucket.errors(f"write {key}{SUFFIX}"):
            self._bucket.write(key + SUFFIX, manifest.to_json())
        with self._bucket.errors(f"remove {key}{UPCOMING}"):
            self._bucket.remove(key + UPCOMING)

    def _has_ledger(self, job: str) -> bool:
        # Not by reading it: who may list only some prefixes is refused what is not there
        return job in self._epochs or bool(self._sizes(f".{check_job(job)}.ledger"))

    def _settled(self, job: str, version: int) -> tuple[CommitRecord | None, set[str]]:
        """The record of the complete unlabeled checkpoint of this number, and generations' labels.

        Records that fit nothing are removed.
        """
        key = self._key(job, version)
        sizes = self._bucket.sizes(key.removesuffix("pt"))
        old = None
        if key in sizes:
            old = self._state(job, version, key, sizes)
        if not isinstance(old, CommitRecord):
            old = None
            # They must not vouch for other bytes.
            self._bucket.remove(*(key + end for end in self.records if key + end in sizes))
        elif key + UPCOMING in sizes:
            self._end_replacement(key, old)
        return old, self._labels(job, sizes).get(version, set()) - {""}

    def _has_bytes(
        self, key: str, old: CommitRecord, new: CommitRecord, parts: Sequence[dict[str, Any]]
    ) -> bool:
        """Whether the object already has the bytes of these parts, by record and by store."""
        if (old.size, old.chunk_bytes, old.crcs) != (new.size, new.chunk_bytes, new.crcs):
            return False
        sums = b"".join(base64.b64decode(part["ChecksumCRC32"]) for part in parts)
        return self._bucket.composite(key) == checksum(crc32(sums))

    def _record(self, key: str, sizes: Mapping[str, int]) -> CommitRecord | None:
        """The record that fits an object; None if it was removed. Raises DamagedError."""
        # In this order: the upcoming record goes when the usual one says the same.
        upcoming = self._found(key + UPCOMING, sizes)
        found = self._found(key + SUFFIX, sizes)
        if isinstance(upcoming, CommitRecord) and self._fits(key, sizes[key], upcoming, found):
            return upcoming
        if isinstance(found, DamagedError):
            raise found
        if found is None and (upcoming is not None or not sizes.keys() & {*self._names(key)[:-1]}):
            raise DamagedError(UNRECORDED)
        return found

    def _found(self, name: str, sizes: Mapping[str, int]) -> CommitRecord | DamagedError | None:
        try:
            if name in sizes:
                return self._manifest(name)
            return None
        except DamagedError as error:
            return error

    def _fits(
        self,
        key: str,
        size: int,
        upcoming: CommitRecord,
        record: CommitRecord | DamagedError | None,
    ) -> bool:
        """Whether the object is what the upcoming record says, and not what the usual one does."""
        if size != upcoming.size:
            return False
        numbers = list(range(len(upcoming.crcs)))  # without another record all of it counts
        with self._bucket.errors(f"read {key}"):
            if isinstance(record, CommitRecord):
                if record.size != size:
                    return True
                if record.chunk_bytes == upcoming.chunk_bytes:
                    numbers = [n for n in numbers if record.crcs[n] != upcoming.crcs[n]][:1]
            else:
                # If the parts were chunks, which they mostly are, the store's checksum is made of
                # the record's.
                sums = b"".join(crc.to_bytes(4, "big") for crc in upcoming.crcs)
                if self._bucket.composite(key) == checksum(crc32(sums)):
                    return True
            for number in numbers:
                start = number * upcoming.chunk_bytes
                end = min(start + upcoming.chunk_bytes, size)
                data = self._bucket.whole(key, Range=f"bytes={start}-{end - 1}")
                if crc32(data) != upcoming.crcs[number]:
                    return False
        return True
