"""``s3://bucket/prefix``: checkpoints in an object store, durable when acknowledged.

Generations of ``deepvm run`` write labeled objects. A run without a number replaces one object for
each checkpoint: from before it is completed until its usual record is there, it has an *upcoming*
record, so that one of the two always fits the object; a chunk in which they differ tells which. One
writer is assumed: a completion carried out after another one of the same number is not noticed.
"""

import base64
import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

from deepvm.checkpoint.files.file_names import check_job
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES, cut
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, NewVersion
from deepvm.checkpoint.tiers.base import Tier, log
from deepvm.checkpoint.tiers.checkpoint_store import CheckpointStore, reader
from deepvm.checkpoint.tiers.object_store import ObjectStore, Read, submit
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CheckpointError, DamagedError, RequestError

# Added to an object's name: a record of what is about to be completed, or just was
UPCOMING = SUFFIX + ".next"
_URL = re.compile(r"(?i:s3)://(?P<bucket>[^/\0?#]+)(?P<prefix>/[^\0?#]*)?")
_CONNECT_S = 10
_READ_S = 60
_READS = 3
_MOST_PARTS = 10_000
_MISSING = ("NoSuchKey", "404")
# Errors of a conditional request: the object is another
_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
_ADVICE = {
    "NoSuchBucket": "make the bucket first, or correct its name",
    "AccessDenied": (
        "the credentials need s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and"
        " ListBucket"
    ),
    "NoCredentialsError": (
        "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the VM's role"
    ),
}


class Bucket(ObjectStore):
    """The objects whose names start with a prefix; requests raise boto3's errors."""

    def __init__(
        self, name: str, prefix: str, *, threads: int = 8, attempts: int = 5, endpoint: str = ""
    ) -> None:
        """``threads``: requests at once. ``endpoint``: empty for the environment's or AWS's."""
        self.name = name
        prefix = prefix.strip("/")
        if prefix:
            self.prefix = f"{prefix}/"
        super().__init__(f"s3://{name}/{self.prefix}".rstrip("/"), threads)
        self._attempts = attempts
        self._endpoint = endpoint or None

    @cached_property
    def s3(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=self.threads + 2,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
        )
        try:
            # A session of its own, as several threads may come here at once
            return boto3.session.Session().client("s3", endpoint_url=self._endpoint, config=config)
        except ValueError as error:  # botocore has no class of its own for it
            raise CheckpointError(
                f"{self.url}: {error}; correct AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
            ) from None

    def prove(self) -> None:
        where = {"Bucket": self.name, "Key": f"{self.prefix}.deepvm-proof"}
        with self.errors("write there"):
            upload = self.s3.create_multipart_upload(**where)["UploadId"]
            self.s3.abort_multipart_upload(**where, UploadId=upload)

    @contextlib.contextmanager
    def errors(self, action: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except (BotoCoreError, ClientError) as error:
            name = type(error).__name__
            text = str(error)
            if isinstance(error, ClientError):
                name, message = (
                    error.response.get("Error", {}).get(k, "") for k in ("Code", "Message")
                )
                text = f"{name}: {message}"
            advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
            raise CheckpointError(f"{self.url}: cannot {action}: {text}{advice}") from error

    def _list(self, operation: str, rows: str, prefix: str) -> Iterator[JsonObject]:
        for page in self.s3.get_paginator(operation).paginate(Bucket=self.name, Prefix=prefix):
            yield from page.get(rows, ())

    def sizes(self, prefix: str) -> dict[str, int]:
        return {row["Key"]: row["Size"] for row in self.rows(prefix)}

    def composite(self, key: str) -> str:
        """The store's checksum of the parts' checksums, or another text if it keeps none."""
        head = self.s3.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        # Mostly followed by the number of parts
        return str(head.get("ChecksumCRC32")).partition("-")[0]

    def _object(self, key: str, **options: str) -> tuple[bytes, str]:
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(_READS)):
            try:
                reply = self.s3.get_object(Bucket=self.name, Key=key, **options)
                return bytes(reply["Body"].read()), str(reply["ETag"])
            except BotoCoreError:  # botocore retries a request, but not a reply that breaks off
                if not left:
                    raise
        raise AssertionError

    def whole(self, key: str, **options: str) -> bytes:
        return self._object(key, **options)[0]

    def rows(self, prefix: str) -> Iterator[JsonObject]:
        """What S3 lists: ``Key``, ``Size``, ``ETag``."""
        return self._list("list_objects_v2", "Contents", prefix)

    def reader(self, key: str, size: int) -> Read:
        """All ranges are of the object that is there now."""
        head = self.s3.head_object(Bucket=self.name, Key=key)
        if head["ContentLength"] != size:
            raise DamagedError(
                f"{self.url}: {key} has {head['ContentLength']} bytes instead of {size}"
            )
        return lambda start, end: self.whole(
            key, Range=f"bytes={start}-{end - 1}", IfMatch=head["ETag"]
        )

    def content(self, key: str) -> bytes | None:
        found = self.get(key)
        return found and found[0]

    def write(self, key: str, data: bytes, **condition: str) -> None:
        """The store verifies its checksum."""
        total = checksum(crc32(data))
        self.s3.put_object(Bucket=self.name, Key=key, Body=data, ChecksumCRC32=total, **condition)

    def get(self, key: str) -> tuple[bytes, str] | None:
        from botocore.exceptions import ClientError

        with self.errors(f"read {key}"):
            try:
                return self._object(key)
            except ClientError as error:
                if error.response["Error"]["Code"] not in _MISSING:
                    raise
                return None

    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"}
        if etag is not None:
            condition = {"IfMatch": etag}
        with self.errors(f"write {key}"):
            try:
                self.write(key, data, **condition)
            except ClientError as error:
                if error.response["Error"]["Code"] not in (*_MISSING, *_REFUSED):
                    raise
                return False
        return True

    def remove(self, *keys: str) -> None:
        for key in keys:
            self.s3.delete_object(Bucket=self.name, Key=key)

    def rename(self, key: str, new: str) -> None:
        self.s3.copy({"Bucket": self.name, "Key": key}, self.name, new)
        self.remove(key)

    def open_upload(self, key: str) -> dict[str, str]:
        where = {"Bucket": self.name, "Key": key}
        created = self.s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")
        return {**where, "UploadId": created["UploadId"]}

    def send_parts(
        self, upload: Mapping[str, str], size: int, read: Read, final: Iterable[int]
    ) -> list[JsonDict]:
        """Send all bytes of an upload, each part once it is final; returns what completes it."""
        chunks = -(-size // CHUNK_BYTES)
        each = CHUNK_BYTES * -(-chunks // _MOST_PARTS)

        def send(number: int, start: int, end: int) -> JsonDict:
            data = read(start, end)
            total = checksum(crc32(data))
            reply = self.s3.upload_part(**upload, PartNumber=number, Body=data, ChecksumCRC32=total)
            return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32": total}

        with ThreadPoolExecutor(self.threads, thread_name_prefix="deepvm-s3") as pool:
            sent: list[Future[JsonDict]] = []
            try:
                for number, (start, end) in enumerate(cut(final, size, each), start=1):
                    sent.append(submit(pool, send, number, start, end))
                return [part.result() for part in sent]
            except BaseException:
                # No part may arrive after the upload was aborted
                pool.shutdown(cancel_futures=True)
                raise

    def upload(self, key: str, size: int, read: Read, final: Iterable[int]) -> None:
        upload = self.open_upload(key)
        try:
            parts = self.send_parts(upload, size, read, final)
            self.s3.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})
        except BaseException:
            self.abort(upload)
            raise

    def abort(self, upload: Mapping[str, str]) -> bool:
        """Abort an upload; returns whether it is known that nothing of it will be there."""
        try:
            self.s3.abort_multipart_upload(**upload)
        except Exception as error:
            log.warning("%s: parts of %s stay behind: %s", self.url, upload["Key"], error)
            return False
        return True

    def abort_unfinished(self, prefix: str, wanted: Callable[[str], bool]) -> None:
        with self.errors("list its unfinished uploads"):
            rows = list(self._list("list_multipart_uploads", "Uploads", prefix))
        for row in rows:
            key = row["Key"]
            if wanted(key):
                log.info("%s: an upload of %s that was never completed is given up", self.url, key)
                self.abort({"Bucket": self.name, "Key": key, "UploadId": row["UploadId"]})


def checksum(crc: int) -> str:
    """A CRC-32 in S3's encoding."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()


class S3Tier(CheckpointStore):
    """A bucket, or a part of one."""

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
        """``requests``: options of :class:`Bucket`; for the others see :class:`Store`."""
        self._bucket = Bucket(bucket, prefix, **requests)
        super().__init__(self._bucket, keep=keep, every=every, session=session)

    @classmethod
    def open(cls, url: str, session: str, keep: int, every: int, option: str) -> Tier:
        found = _URL.fullmatch(url)
        if found is None:
            raise RequestError(option, url, f"{cls.form}, without ? and #")
        return cls(found["bucket"], found["prefix"] or "", keep=keep, every=every, session=session)

    def write(self, new: NewVersion) -> None:
        """A run without a number replaces the one object of this checkpoint."""
        job = new.job
        version = new.version
        if job in self._epochs:
            super().write(new)
            return
        with self._writing:
            if job not in self._cleared:
                self._abort_uploads(job, None)
            key = self._key(job, version)
            with self._bucket.errors(f"write {key}"):
                upload = self._bucket.open_upload(key)
                announced = False
                try:
                    parts = self._bucket.send_parts(
                        upload, len(new.image), reader(new.image), new.final
                    )
                    record = new.manifest()
                    same, labeled = self._settled(job, version)
                    if same is not None and not self._has_bytes(key, same, record, parts):
                        same = None
                    if same is None:
                        announced = True
                        self._bucket.write(key + UPCOMING, record.to_json())
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
                record = replace(record, created=same.created, best=same.best or record.best)
                if record != same:
                    with self._bucket.errors(f"write {key}{SUFFIX}"):
                        self._bucket.write(key + SUFFIX, record.to_json())
            else:
                try:
                    self._end_replacement(key, record)
                except CheckpointError as error:  # the version is complete by its upcoming record
                    log.warning("%s keeps two records until it is saved again: %s", key, error)
            if labeled:  # of generations before this run, which has no number
                self.ledger(job).drop({str(version)}, None)
                for label in labeled:
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
        """The record of the unlabeled checkpoint, if complete, and labels; strays are removed."""
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
        self, key: str, old: CommitRecord, new: CommitRecord, parts: Sequence[JsonDict]
    ) -> bool:
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
