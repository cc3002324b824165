"""``s3://bucket/prefix``: versions in an object store, durable when acknowledged.

A version is an object that plain ``torch.load`` reads once it is downloaded, and a commit record beside it, which is
written when the object is complete: whoever sees a record may rely on the bytes. A trainer that is killed while it
uploads leaves parts that cost money and that nobody lists: let a lifecycle rule of the bucket abort them after a day.

A version that takes the place of one with the same number has a second record, the *upcoming* one, from before its
object is completed until its usual record is there. An object changes at once or not at all, and so at each moment one
of the two records fits it; which one it is, a chunk in which they differ tells (an object's ETag says nothing of its
bytes where they are encrypted). The same bytes again leave the object as it is. One writer is assumed: a completion
that the store carries out when its sender is dead, and another one has saved the same number since, is not noticed.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from deepvm.checkpoint.crc import crc32
from deepvm.checkpoint.folder import check_job, file_name, parse_name
from deepvm.checkpoint.image import seal
from deepvm.checkpoint.layout import CHUNK_BYTES
from deepvm.checkpoint.manifest import SUFFIX, Manifest
from deepvm.checkpoint.retention import kept, kept_of
from deepvm.checkpoint.tiers.base import Level, Shard, Tier
from deepvm.checkpoint.tiers.bucket import Bucket, checksum
from deepvm.errors import CheckpointError, DamagedError, RequestError

_UPCOMING = SUFFIX + ".next"
"""Added to an object's name: a record that is about to take the place of an older one, and counts only beside that."""
_MOST_PARTS = 10_000

log = logging.getLogger("deepvm.checkpoint")
_T = TypeVar("_T")


class S3Tier(Tier):
    """A bucket, or a part of one. Only whole versions can be written here, as in a folder."""

    streams = True

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
        region: str = "",
    ) -> None:
        """Remember where; nothing is sent before the first version.

        Args:
            bucket: its name.
            prefix: what the names of all objects begin with, without a slash at its end.
            keep: how many versions stay, see :func:`deepvm.checkpoint.retention.kept`; 0 for all.
            every: see there.
            threads: parts that are under way at once.
            attempts: how often a request is tried; botocore waits longer before each.
            endpoint: URL of another store with this interface; the environment's or AWS's unless given.
            region: the environment's unless given.
        """
        if keep or every:
            kept((), keep, every)
        if not bucket:
            raise RequestError("bucket", bucket, "the name of a bucket, as in s3://bucket/prefix")
        self._prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._keep, self._every, self._threads = keep, every, threads
        url = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._bucket = Bucket(bucket, url, threads=threads, attempts=attempts, endpoint=endpoint, region=region)
        self._writing = threading.RLock()
        self._counting, self._readers = threading.Lock(), 0

    @property
    def url(self) -> str:
        """See :class:`Tier`."""
        return self._bucket.url

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :meth:`Tier.put`."""
        layout = shard.layout
        if layout.world != 1:
            raise CheckpointError(
                f"{self.url}: {layout.world} ranks hold parts of this version; a memory node joins them"
            )
        if len(shard.image) != layout.size:
            raise RequestError("image", f"{len(shard.image)} bytes", f"the {layout.size} bytes of its layout")
        crcs: list[int] = []
        with self._writing:
            final = seal(shard.image, layout, crcs, ready=shard.ready)
            self._store(shard.job, shard.version, shard.image, final, lambda: shard.manifest(crcs))
            acknowledged(Level.DURABLE)
            if self._keep:
                self._prune(shard.job, shard.version)

    def write(self, image: memoryview, manifest: Manifest) -> None:
        """Write a version whose checksums are known, and its commit record.

        Raises:
            CheckpointError: it could not be written; what was complete under its number before still is, or it is.
        """
        with self._writing:
            self._store(manifest.job, manifest.version, image, iter([len(image)]), lambda: manifest)

    def prove(self) -> None:
        """See :meth:`Tier.prove`: an upload that is given up at once."""
        where = {"Bucket": self._bucket.name, "Key": f"{self._prefix}.deepvm-proof"}
        with self._bucket.told("write there"):
            upload = self._bucket.s3.create_multipart_upload(**where)["UploadId"]
            self._bucket.s3.abort_multipart_upload(**where, UploadId=upload)

    def _commit(self, record: str, manifest: Manifest) -> None:
        with self._bucket.told(f"write {record}"):
            self._bucket.write(record, manifest.to_json())

    def _key(self, job: str, version: int) -> str:
        return self._prefix + file_name(job, version)

    def _store(
        self, job: str, version: int, image: memoryview, final: Iterator[int], manifest: Callable[[], Manifest]
    ) -> None:
        """Make the object, whole or not at all, and its record; S3 compares each part with its checksum."""
        key = self._key(job, version)
        where = {"Bucket": self._bucket.name, "Key": key}
        with self._bucket.told(f"write {key}"):
            begun = self._bucket.s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")
            upload = {**where, "UploadId": begun["UploadId"]}
            try:
                parts = self._send_parts(upload, image, final)
                new, old = manifest(), self._settled(job, version)
                same = old is not None and self._is(key, old, new, parts)
                if old is not None and not same:
                    self._commit(key + _UPCOMING, new)
                if not same:
                    self._bucket.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
            except BaseException:
                self._abort(upload)
                raise
        if old is None:
            self._commit(key + SUFFIX, new)
        elif same:
            self._abort(upload)
            new = replace(new, created=old.created, best=old.best or new.best)
            if new != old:
                self._commit(key + SUFFIX, new)
        else:
            try:
                self._end_replacement(key, new)
            except CheckpointError as error:  # the version is complete by its upcoming record
                log.warning("%s keeps two records until it is saved again: %s", key, error)

    def _abort(self, upload: dict[str, str]) -> None:
        try:
            self._bucket.s3.abort_multipart_upload(**upload)
        except Exception as error:
            log.warning("%s: parts of %s stay behind: %s", self.url, upload["Key"], error)

    def _end_replacement(self, key: str, manifest: Manifest) -> None:
        self._commit(key + SUFFIX, manifest)
        with self._bucket.told(f"remove {key}{_UPCOMING}"):
            self._bucket.remove(key + _UPCOMING)

    def _settled(self, job: str, version: int) -> Manifest | None:
        """The one record of what is complete under this number; those that fit nothing go, None is left then."""
        key = self._key(job, version)
        sizes = self._bucket.sizes(key)
        whole = key in sizes and key + SUFFIX in sizes
        old = self._record(job, version, sizes[key], key + _UPCOMING in sizes) if whole else None
        if old is None:
            # They must not vouch for other bytes.
            self._bucket.remove(*(record for record in (key + SUFFIX, key + _UPCOMING) if record in sizes))
        elif key + _UPCOMING in sizes:
            self._end_replacement(key, old)
        return old

    def _is(self, key: str, old: Manifest, new: Manifest, parts: Sequence[dict[str, Any]]) -> bool:
        """Whether the object has the bytes already that were sent in these parts, by its record and by the store.

        A store that keeps the checksums of parts tells one made of them, a *composite* one, and mostly their number.
        """
        if (old.size, old.chunk_bytes, old.crcs) != (new.size, new.chunk_bytes, new.crcs):
            return False
        sums = b"".join(base64.b64decode(part["ChecksumCRC32"]) for part in parts)
        head = self._bucket.s3.head_object(Bucket=self._bucket.name, Key=key, ChecksumMode="ENABLED")
        return str(head.get("ChecksumCRC32")).partition("-")[0] == checksum(crc32(sums))

    def _send_parts(self, upload: dict[str, str], image: memoryview, final: Iterator[int]) -> list[dict[str, Any]]:
        chunks = -(-len(image) // CHUNK_BYTES)
        size = CHUNK_BYTES * -(-chunks // _MOST_PARTS)

        def send(number: int, start: int) -> dict[str, Any]:
            data = bytes(image[start : start + size])
            total = checksum(crc32(data))
            reply = self._bucket.s3.upload_part(**upload, PartNumber=number, Body=data, ChecksumCRC32=total)
            return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32": total}

        with ThreadPoolExecutor(self._threads, thread_name_prefix="deepvm-s3") as pool:
            sent: list[Future[dict[str, Any]]] = []
            try:
                for end in final:
                    while (start := len(sent) * size) + size <= end or start < end == len(image):
                        sent.append(_submit(pool, send, len(sent) + 1, start))
                return [part.result() for part in sent]
            except BaseException:
                pool.shutdown(cancel_futures=True)  # no part may arrive after the upload was aborted
                raise

    def _found(self, job: str) -> dict[int, tuple[int, bool]]:
        """Bytes of each version of a job that has a record, and whether there is an upcoming one."""
        with self._bucket.told("list its objects"):
            sizes = self._bucket.sizes(f"{self._prefix}{check_job(job)}-")
        found = {}
        for key, size in sizes.items():
            name = parse_name(key[len(self._prefix) :])
            if name is not None and name[0] == job and key + SUFFIX in sizes:
                found[name[1]] = size, key + _UPCOMING in sizes
        return found

    def _prune(self, job: str, newest: int) -> None:
        """Remove what the policy lets go, as :class:`deepvm.checkpoint.tiers.file.FileTier` does."""
        try:
            rows = [m for m in self.versions(job) if m.version <= newest]
            for version in {m.version for m in rows} - kept_of(rows, self._keep, self._every) - {newest}:
                self.delete(job, version)
        except CheckpointError as error:
            log.warning("old versions stay: %s", error)

    def delete(self, job: str, version: int) -> None:
        """Remove a version, first its record; nothing happens when it is not there. Raises CheckpointError."""
        key = self._key(job, version)
        with self._bucket.told(f"remove {key}"):
            self._bucket.remove(key + SUFFIX, key + _UPCOMING, key)

    def versions(self, job: str) -> tuple[Manifest, ...]:
        """See :meth:`Tier.versions`."""
        found = self._found(job)
        with ThreadPoolExecutor(self._threads) as pool:
            asked = [_submit(pool, self._record, job, v, *found[v]) for v in sorted(found, reverse=True)]
        return tuple(r for a in asked if (r := a.result()) is not None)

    def manifest(self, job: str, version: int) -> Manifest | None:
        """The commit record of a complete version, None where there is none. Raises CheckpointError."""
        found = self._found(job)
        return self._record(job, version, *found[version]) if version in found else None

    def chunks(self, manifest: Manifest) -> Iterator[memoryview]:
        """A version's bytes, in order, unverified; several chunks are under way at once. Raises CheckpointError.

        Of all readers together about as many as there are threads, and two of each: a memory node that has started
        anew may have to serve all ranks of a training at once.
        """
        key = self._key(manifest.job, manifest.version)
        starts = range(0, manifest.size, manifest.chunk_bytes)
        with (
            self._bucket.told(f"read {key}"),
            ThreadPoolExecutor(self._threads, thread_name_prefix="deepvm-s3") as pool,
        ):
            etag, ahead = self._head(key, manifest), deque[Future[bytes]]()
            with self._counting:
                self._readers += 1
            try:
                for start in starts:
                    end = min(start + manifest.chunk_bytes, manifest.size)
                    ahead.append(pool.submit(self._range, key, start, end, IfMatch=etag))
                    while len(ahead) > max(self._threads // self._readers, 1):
                        yield memoryview(ahead.popleft().result())
                while ahead:
                    yield memoryview(ahead.popleft().result())
            finally:
                with self._counting:
                    self._readers -= 1
                pool.shutdown(cancel_futures=True)

    def _head(self, key: str, manifest: Manifest) -> str:
        head = self._bucket.s3.head_object(Bucket=self._bucket.name, Key=key)
        if head["ContentLength"] != manifest.size:
            raise DamagedError(f"{self.url}: {key} has {head['ContentLength']} bytes in place of {manifest.size}")
        return str(head["ETag"])

    def _record(self, job: str, version: int, size: int, replaced: bool) -> Manifest | None:
        key = self._key(job, version)
        # In this order: the upcoming record goes when the usual one says the same.
        upcoming = self._read(key, _UPCOMING) if replaced else None
        found = self._read(key, SUFFIX)
        if found is not None and upcoming is not None and self._fits(key, size, upcoming, found):
            found = upcoming
        if found is not None and (found.job, found.version, found.size) != (job, version, size):
            log.warning("%s/%s is not complete: its commit record is that of another file", self.url, key)
            return None
        return found

    def _fits(self, key: str, size: int, upcoming: Manifest, found: Manifest) -> bool:
        """Whether the object is what the upcoming record says, and not what the usual one does."""
        if found.size != upcoming.size:
            return upcoming.size == size
        alike = found.chunk_bytes == upcoming.chunk_bytes
        differ = [n for n, crc in enumerate(upcoming.crcs) if not alike or found.crcs[n] != crc]
        for number in differ[:1] if alike else differ:
            start = number * upcoming.chunk_bytes
            with self._bucket.told(f"read {key}"):
                data = self._range(key, start, min(start + upcoming.chunk_bytes, upcoming.size))
            if crc32(data) != upcoming.crcs[number]:
                return False
        return True

    def _read(self, key: str, suffix: str) -> Manifest | None:
        with self._bucket.told(f"read {key}{suffix}"):
            data = self._bucket.read_if_there(key + suffix)
        try:
            return None if data is None else Manifest.from_json(data)  # it may have been removed meanwhile
        except RequestError as error:
            log.warning("%s/%s is not complete: %s", self.url, key, error)
            return None

    def _range(self, key: str, start: int, end: int, **options: str) -> bytes:
        return self._bucket.read(key, Range=f"bytes={start}-{end - 1}", **options)

    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """See :meth:`Tier.fetch`."""
        name = file_name(manifest.job, manifest.version)
        target, hidden = folder / name, folder / f".{name}.{secrets.token_hex(4)}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                with self._bucket.told(f"read {self._prefix}{name}"):
                    self._download(manifest, descriptor)
            finally:
                os.close(descriptor)
            os.replace(hidden, target)
        except OSError as error:
            raise CheckpointError(f"{target}: cannot be written: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)
        return target

    def _download(self, manifest: Manifest, descriptor: int) -> None:
        key = self._key(manifest.job, manifest.version)
        etag = self._head(key, manifest)

        def receive(number: int) -> None:
            start = number * manifest.chunk_bytes
            end = min(start + manifest.chunk_bytes, manifest.size)
            data = self._range(key, start, end, IfMatch=etag)
            if crc32(data) != manifest.crcs[number]:
                raise DamagedError(f"{self.url}: {key}: bytes {start} to {end - 1} are damaged")
            view, done = memoryview(data), 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], start + done)

        with ThreadPoolExecutor(self._threads, thread_name_prefix="deepvm-s3") as pool:
            try:
                for _ in pool.map(receive, range(len(manifest.crcs))):
                    pass
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def _submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done
