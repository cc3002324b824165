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
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from deepvm.checkpoint.files.file_names import aside_suffix, epoch_of, new_label
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.manifest import SUFFIX, CommitRecord, Damage
from deepvm.checkpoint.tiers.base import Tier, download
from deepvm.checkpoint.tiers.bucket import UPCOMING, Bucket, checksum
from deepvm.checkpoint.tiers.ledger import StaleError
from deepvm.checkpoint.tiers.object_store import ObjectStore
from deepvm.errors import CheckpointError, DamagedError, RequestError

log = logging.getLogger("deepvm.checkpoint")
_URL = re.compile(r"(?i:s3)://(?P<bucket>[^/\0?#]+)(?P<prefix>/[^\0?#]*)?")


class S3Tier(ObjectStore):
    """A bucket, or a part of one; several ranks join their parts of a version there."""

    form = "s3://bucket/prefix"

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        keep: int = 0,
        every: int = 0,
        threads: int = 8,
        attempts: int = 5,
        endpoint: str = "",
        session: str = "",
    ) -> None:
        """Nothing is sent before the first save; ``prefix``: of all names; ``keep=0`` keeps all.

        ``every``: see :func:`deepvm.checkpoint.files.retention.kept`. ``threads``: requests at
        once. ``attempts``: tries of each. ``endpoint``: empty for the environment's or AWS's.
        ``session``: as in :meth:`Tier.open`; one rank needs none.
        """
        self._threads = threads
        self._bucket = Bucket(bucket, prefix, threads=threads, attempts=attempts, endpoint=endpoint)
        super().__init__(self._bucket, session, keep, every)
        self._warned = set[str]()
        # Names of a job's versions, as they were listed last
        self._keys = dict[str, dict[int, str]]()
        self._counting = threading.Lock()
        self._readers = 0

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        """See :meth:`Tier.open`; bucket and prefix are taken literally, as the AWS CLI does."""
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        return cls(found["bucket"], found["prefix"] or "", keep=keep, every=every, session=session)

    def prove(self) -> None:
        """See :meth:`Tier.prove`: begins an upload and aborts it."""
        where = {"Bucket": self._bucket.name, "Key": f"{self._bucket.prefix}.deepvm-proof"}
        with self._bucket.errors("write there"):
            upload = self._bucket.s3.create_multipart_upload(**where)["UploadId"]
            self._bucket.s3.abort_multipart_upload(**where, UploadId=upload)

    def write(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """See :class:`Store`. Creates the object atomically; S3 checks each part's checksum."""
        with self._writing:
            epoch = self._epochs.get(job)
            if epoch is None:
                self._abort_others(job)
                self._replace(image, job, version, final, manifest)
            else:
                self._bucket.ledger(job).check(epoch)  # before all of it is sent in vain
                self._abort_others(job)
                self._add(image, job, version, final, manifest, epoch)

    def _replace(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
    ) -> None:
        """Write the one object of this number."""
        key = self._bucket.key(job, version)
        with self._bucket.errors(f"write {key}"):
            upload = self._bucket.begun(key)
            announced = False
            try:
                parts = self._bucket.send_parts(upload, len(image), _reader(image), final)
                new = manifest()
                (old, labelled) = self._settled(job, version)
                same = old if old is not None and self._has_bytes(key, old, new, parts) else None
                if same is None:
                    announced = True
                    self._bucket.commit(key + UPCOMING, new)
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
                self._bucket.commit(key + SUFFIX, new)
        else:
            try:
                self._end_replacement(key, new)
            except CheckpointError as error:  # the version is complete by its upcoming record
                log.warning("%s keeps two records until it is saved again: %s", key, error)
        if labelled:  # of generations before this run, which has no number
            self._bucket.ledger(job).drop({str(version)}, None)
            self._discard(labelled)

    def _add(
        self,
        image: memoryview,
        job: str,
        version: int,
        final: Iterable[int],
        manifest: Callable[[], CommitRecord],
        epoch: int,
    ) -> None:
        """Write an object of this generation, and have it count."""
        label = new_label(epoch)
        key = self._bucket.key(job, version, label)
        with self._bucket.errors(f"write {key}"):
            upload = self._bucket.begun(key)
            try:
                parts = self._bucket.send_parts(upload, len(image), _reader(image), final)
                self._bucket.s3.complete_multipart_upload(
                    **upload, MultipartUpload={"Parts": parts}
                )
                self._bucket.commit(key + SUFFIX, manifest())
            except BaseException:
                if self._bucket.abort(upload):
                    self._discard((key + SUFFIX, key))
                raise
        try:
            self._bucket.ledger(job).add(str(version), label, epoch)
        except StaleError:
            self._discard((key + SUFFIX, key))
            raise
        try:
            others = [row for row in self._bucket.written(job, version).items() if row[0] != label]
        except CheckpointError as error:
            log.warning("an earlier version %d stays beside it: %s", version, error)
        else:
            self._discard(k for other, keys in others if epoch_of(other) <= epoch for k in keys)

    def _abort_others(self, job: str) -> None:
        """Abort uploads of a killed run, once, before the first upload of this one."""
        if job in self._cleared:
            return
        self._cleared.add(job)
        epoch = self._epochs.get(job)
        try:
            uploads = [
                u
                for u in self._bucket.uploads(job)
                if epoch is None or self._bucket.epoch(u[0]) <= epoch
            ]
            if epoch is not None:
                self._discard(self._bucket.unlisted(job, epoch))
        except CheckpointError as error:
            # It may be allowed to write and not to list: then there is the lifecycle rule
            log.debug("%s", error)
            return
        for key, upload in uploads:
            log.info("%s: an upload of %s that was never completed is given up", self.url, key)
            self._bucket.abort({"Bucket": self._bucket.name, "Key": key, "UploadId": upload})

    def _end_replacement(self, key: str, manifest: CommitRecord) -> None:
        self._bucket.commit(key + SUFFIX, manifest)
        with self._bucket.errors(f"remove {key}{UPCOMING}"):
            self._bucket.remove(key + UPCOMING)

    def _settled(self, job: str, version: int) -> tuple[CommitRecord | None, list[str]]:
        """The one record of the complete checkpoint of this number, and all generations' keys.

        Records that fit nothing are removed.
        """
        key = self._bucket.key(job, version)
        sizes = self._bucket.sizes(key.removesuffix("pt"))
        try:
            old = self._bucket.record(job, version, key, sizes) if key in sizes else None
        except DamagedError:
            old = None
        if old is None:
            # They must not vouch for other bytes.
            self._bucket.remove(
                *(record for record in (key + SUFFIX, key + UPCOMING) if record in sizes)
            )
        elif key + UPCOMING in sizes:
            self._end_replacement(key, old)
        return old, [name for name in sizes if self._bucket.epoch(name.removesuffix(SUFFIX))]

    def _has_bytes(
        self, key: str, old: CommitRecord, new: CommitRecord, parts: Sequence[dict[str, Any]]
    ) -> bool:
        """Whether the object already has the bytes of these parts, by record and by store."""
        if (old.size, old.chunk_bytes, old.crcs) != (new.size, new.chunk_bytes, new.crcs):
            return False
        sums = b"".join(base64.b64decode(part["ChecksumCRC32"]) for part in parts)
        return self._bucket.composite(key) == checksum(crc32(sums))

    def delete(self, job: str, version: int) -> None:
        """See :class:`Store`; its record goes first, after its entry in the ledger."""
        epoch = self._epochs.get(job)
        written = self._bucket.written(job, version)
        if epoch is not None or any(written):
            self._bucket.ledger(job).drop({str(version)}, epoch)
        for label in [each for each in written if epoch is None or epoch_of(each) <= epoch]:
            key = self._bucket.key(job, version, label)
            with self._bucket.errors(f"remove {key}"):
                self._bucket.remove(key + SUFFIX, key + UPCOMING, key)

    def versions(self, job: str) -> tuple[CommitRecord, ...]:
        """See :meth:`Tier.versions`; others are logged once."""
        self._keys[job], found = self._bucket.look(job)
        for each in found:
            if isinstance(each, Damage) and each.problem not in self._warned:
                self._warned.add(each.problem)
                log.warning("version %d of %s is not complete: %s", each.version, job, each.problem)
        return tuple(m for m in found if isinstance(m, CommitRecord))

    def damaged(self, job: str) -> tuple[Damage, ...]:
        """See :meth:`Tier.damaged`."""
        return tuple(d for d in self._bucket.look(job)[1] if isinstance(d, Damage))

    def unrecorded(self, job: str) -> set[int]:
        """See :class:`Store`."""
        sizes, keys = self._bucket.objects(job)
        return {v for v, key in keys.items() if not {key + SUFFIX, key + UPCOMING} & sizes.keys()}

    def set_aside(self, job: str, versions: Collection[int]) -> None:
        """See :meth:`Tier.set_aside`: objects and records are copied to names with ``.aside``."""
        added = aside_suffix()
        sizes, keys = self._bucket.objects(job)
        numbers = sorted({*versions, *(d.version for d in self.damaged(job))} & keys.keys())
        if job in self._epochs:
            self._bucket.ledger(job).check(self._epochs[job])
        for version in numbers:
            key = keys[version]
            with self._bucket.errors(f"set {key} aside"):
                for name in (key + UPCOMING, key + SUFFIX, key):
                    if name in sizes:  # an object of any size is copied, then removed
                        where = {"Bucket": self._bucket.name, "Key": name}
                        self._bucket.s3.copy(where, self._bucket.name, name + added)
                        self._bucket.remove(name)
        if any(keys[version] != self._bucket.key(job, version) for version in numbers):
            self._bucket.ledger(job).drop(
                {str(version) for version in numbers}, self._epochs.get(job)
            )

    def read(self, job: str, version: int) -> tuple[CommitRecord, Iterator[memoryview]]:
        """See :class:`Store`."""
        sizes, keys = self._bucket.objects(job)
        found = self._bucket.state(job, version, keys[version], sizes) if version in keys else None
        if isinstance(found, Damage):
            raise DamagedError(found.problem)
        if found is None:
            raise FileNotFoundError(f"{self.url}: version {version} of {job}")
        return found, self.chunks(found, keys[version])

    def chunks(self, manifest: CommitRecord, key: str = "") -> Generator[memoryview, None, None]:
        """Bytes in order, unverified; ``key``: default by number. Raises CheckpointError.

        Readers share the threads, at least two chunks each: a restarted memory node may serve all
        ranks at once.
        """
        key = key or self._bucket.key(manifest.job, manifest.version)
        with (
            self._bucket.errors(f"read {key}"),
            ThreadPoolExecutor(self._threads, thread_name_prefix="deepvm-s3") as pool,
        ):
            head = self._bucket.s3.head_object(Bucket=self._bucket.name, Key=key)
            if head["ContentLength"] != manifest.size:
                raise DamagedError(
                    f"{self.url}: {key} has {head['ContentLength']} bytes in place of"
                    f" {manifest.size}"
                )
            ahead = deque[Future[bytes]]()
            with self._counting:
                self._readers += 1
            try:
                for number in range(len(manifest.crcs)):
                    ahead.append(
                        pool.submit(self._bucket.chunk, key, manifest, number, IfMatch=head["ETag"])
                    )
                    while len(ahead) > max(self._threads // self._readers, 1):
                        yield memoryview(ahead.popleft().result())
                while ahead:
                    yield memoryview(ahead.popleft().result())
            finally:
                with self._counting:
                    self._readers -= 1
                pool.shutdown(cancel_futures=True)

    def fetch(self, manifest: CommitRecord, folder: Path) -> Path:
        """See :meth:`Tier.fetch`."""
        job = manifest.job
        version = manifest.version
        if version not in self._keys.get(job, {}):  # rank 0 alone may have listed them
            self._keys[job] = self._bucket.objects(job)[1]
        key = self._keys[job].get(version) or self._bucket.key(job, version)
        return download(self.chunks(manifest, key), manifest, folder, f"{self.url}: {key}")


def _reader(image: memoryview) -> Callable[[int, int], bytes]:
    return lambda start, end: bytes(image[start:end])
