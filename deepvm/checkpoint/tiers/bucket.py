"""A prefix of a bucket: single requests, and which checkpoints are complete by which record."""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

from deepvm.checkpoint.files.file_names import (
    check_job,
    epoch_of,
    file_name,
    labelled_name,
    parse_labelled,
)
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage
from deepvm.checkpoint.tiers.ledger import Ledger, LedgerFile
from deepvm.checkpoint.tiers.object_requests import in_order, labels_of, submit
from deepvm.errors import CheckpointError, DamagedError, RequestError

log = logging.getLogger("deepvm.checkpoint")
UPCOMING = SUFFIX + ".next"
"""Added to an object's name: a record of what is about to be completed, or just was."""
_CONNECT_S = 10
_READ_S = 60
_READS = 3
_MOST_PARTS = 10_000
_MISSING = ("NoSuchKey", "404")
_REFUSED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
"""Errors of a conditional request: the object is another."""
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


class Bucket:
    """The objects whose names begin with a prefix.

    For their meaning see :mod:`deepvm.checkpoint.tiers.s3`.

    Single requests raise boto3's errors; :meth:`errors` turns them into ours, as do the methods
    that take a job.
    """

    def __init__(
        self, name: str, prefix: str, *, threads: int, attempts: int, endpoint: str
    ) -> None:
        """Remember where; nothing is sent yet. For the arguments see ``S3Tier``."""
        self.name = name
        self.prefix = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self.url = f"s3://{name}/{self.prefix}".rstrip("/")
        self.threads = threads
        self._attempts = attempts
        self._endpoint = endpoint or None
        self._opening = threading.Lock()

    @cached_property
    def _client(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=self.threads + 2,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
        )
        try:
            return boto3.session.Session().client("s3", endpoint_url=self._endpoint, config=config)
        except ValueError as error:  # botocore has no class of its own for it
            raise CheckpointError(
                f"{self.url}: {error}; correct AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL"
            ) from None

    @property
    def s3(self) -> Any:
        """The client, for what has no method here."""
        with self._opening:  # it may be used by several threads, but not be made by several
            return self._client

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn boto3's errors into ``CheckpointError``: ``what`` could not be done."""
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
            raise CheckpointError(f"{self.url}: cannot {what}: {text}{advice}") from error

    def _list(self, operation: str, rows: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        for page in self.s3.get_paginator(operation).paginate(Bucket=self.name, Prefix=prefix):
            yield from page.get(rows, ())

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name begins so."""
        return {
            row["Key"]: row["Size"] for row in self._list("list_objects_v2", "Contents", prefix)
        }

    def composite(self, key: str) -> str:
        """The store's checksum of the parts' checksums, or another text if it keeps none."""
        head = self.s3.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        # Mostly followed by the number of parts
        return str(head.get("ChecksumCRC32")).partition("-")[0]

    def _read(self, key: str, **options: str) -> bytes:
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(_READS)):
            try:
                return bytes(
                    self.s3.get_object(Bucket=self.name, Key=key, **options)["Body"].read()
                )
            except BotoCoreError:  # botocore retries a request, but not a reply that breaks off
                if not left:
                    raise
        raise AssertionError

    def whole(self, key: str, **options: str) -> bytes:
        """An object's bytes; ``options`` are those of GetObject."""
        return self._read(key, **options)

    def rows(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """What S3 lists of each object whose name begins so: ``Key``, ``Size``, ``ETag``."""
        return self._list("list_objects_v2", "Contents", prefix)

    def chunk(self, key: str, manifest: CommitRecord, number: int, **options: str) -> bytes:
        """A chunk of a version's object; ``options`` are those of GetObject."""
        start = number * manifest.chunk_bytes
        end = min(start + manifest.chunk_bytes, manifest.size)
        return self._read(key, Range=f"bytes={start}-{end - 1}", **options)

    def commit(self, record: str, manifest: CommitRecord) -> None:
        """Write a commit record atomically; the store verifies its checksum.

        Raises CheckpointError.
        """
        data = manifest.to_json()
        with self.errors(f"write {record}"):
            self.s3.put_object(
                Bucket=self.name, Key=record, Body=data, ChecksumCRC32=checksum(crc32(data))
            )

    def get(self, key: str) -> tuple[bytes, str] | None:
        """An object and its ETag, None if there is none. Raises CheckpointError."""
        from botocore.exceptions import BotoCoreError, ClientError

        with self.errors(f"read {key}"):
            for left in reversed(range(_READS)):
                try:
                    reply = self.s3.get_object(Bucket=self.name, Key=key)
                    return bytes(reply["Body"].read()), str(reply["ETag"])
                except ClientError as error:
                    if error.response["Error"]["Code"] not in _MISSING:
                        raise
                    return None
                except BotoCoreError:  # botocore retries a request, but not a reply that breaks off
                    if not left:
                        raise
        raise AssertionError

    def put_if(self, key: str, data: bytes, etag: str | None) -> bool:
        """See :class:`deepvm.checkpoint.tiers.ledger.Conditional`."""
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        with self.errors(f"write {key}"):
            try:
                total = checksum(crc32(data))
                self.s3.put_object(
                    Bucket=self.name, Key=key, Body=data, ChecksumCRC32=total, **condition
                )
            except ClientError as error:
                if error.response["Error"]["Code"] not in (*_MISSING, *_REFUSED):
                    raise
                return False
        return True

    def ledger(self, job: str) -> LedgerFile:
        """The generations of a job; where its ledger was lost, all that is there counts again."""

        def all_there() -> dict[str, str]:
            with self.errors("list its objects"):
                labels = self._labels(job, self.sizes(f"{self.prefix}{job}-"))
            return {
                str(v): newest
                for v, found in labels.items()
                if (newest := max(found, key=epoch_of))
            }

        return LedgerFile(self, f"{self.prefix}.{check_job(job)}.ledger", all_there)

    def remove(self, *keys: str) -> None:
        """Remove objects in order; missing ones are ignored."""
        for key in keys:
            self.s3.delete_object(Bucket=self.name, Key=key)

    def begun(self, key: str) -> dict[str, str]:
        """A new upload in parts, as other requests name it."""
        where = {"Bucket": self.name, "Key": key}
        begun = self.s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")
        return {**where, "UploadId": begun["UploadId"]}

    def send_parts(
        self,
        upload: Mapping[str, str],
        size: int,
        read: Callable[[int, int], bytes],
        final: Iterable[int],
    ) -> list[dict[str, Any]]:
        """Send all bytes of an upload, each part as soon as it is final.

        Returns what completes it.
        """
        chunks = -(-size // CHUNK_BYTES)
        each = CHUNK_BYTES * -(-chunks // _MOST_PARTS)

        def send(number: int, start: int) -> dict[str, Any]:
            data = read(start, min(start + each, size))
            total = checksum(crc32(data))
            reply = self.s3.upload_part(**upload, PartNumber=number, Body=data, ChecksumCRC32=total)
            return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32": total}

        with ThreadPoolExecutor(self.threads, thread_name_prefix="deepvm-s3") as pool:
            sent: list[Future[dict[str, Any]]] = []
            try:
                for end in final:
                    while (start := len(sent) * each) + each <= end or start < end == size:
                        sent.append(submit(pool, send, len(sent) + 1, start))
                return [part.result() for part in sent]
            except BaseException:
                # No part may arrive after the upload was aborted
                pool.shutdown(cancel_futures=True)
                raise

    def upload(
        self, key: str, size: int, read: Callable[[int, int], bytes], final: Iterable[int]
    ) -> None:
        """Make an object, whole or not at all, each part sent as soon as it is final."""
        upload = self.begun(key)
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

    def pieces(self, key: str, size: int) -> Iterator[bytes]:
        """The bytes of an object, in order."""
        return in_order(
            lambda start, end: self._read(key, Range=f"bytes={start}-{end - 1}"), size, self.threads
        )

    def key(self, job: str, version: int, label: str = "") -> str:
        """Name of a version's object; ``label``: of the generation that wrote it."""
        return self.prefix + labelled_name(job, version, label)

    def epoch(self, key: str) -> int:
        """The generation that wrote an object of a version; 0 for a run without a number."""
        name = parse_labelled(key[len(self.prefix) :])
        return 0 if name is None else epoch_of(name[2])

    def written(self, job: str, version: int) -> dict[str, list[str]]:
        """All objects of a version, with their records, by label; most have one at most."""
        stem = f"{self.prefix}{file_name(job, version)[:-3]}."
        found: dict[str, list[str]] = {}
        with self.errors("list its objects"):
            keys = list(self.sizes(stem))
        for key in keys:
            name = parse_labelled(
                key[len(self.prefix) :].removesuffix(UPCOMING).removesuffix(SUFFIX)
            )
            if name is not None:
                found.setdefault(name[2], []).append(key)
        return found

    def _labels(self, job: str, keys: Iterable[str]) -> dict[int, set[str]]:
        return labels_of(job, (key[len(self.prefix) :] for key in keys))

    def uploads(self, job: str) -> list[tuple[str, str]]:
        """Name and id of the uploads of a job's versions that are neither completed nor aborted."""
        found = self.unfinished(f"{self.prefix}{check_job(job)}-")
        return [(key, upload) for key, upload in found if self._labels(job, [key])]

    def unfinished(self, prefix: str) -> list[tuple[str, str]]:
        """Name and id of all such uploads whose names begin so."""
        with self.errors("list its unfinished uploads"):
            return [
                (row["Key"], row["UploadId"])
                for row in self._list("list_multipart_uploads", "Uploads", prefix)
            ]

    def abort_unfinished(self, prefix: str, wanted: Callable[[str], bool]) -> None:
        """Abort uploads whose names begin so and are wanted.

        Raises CheckpointError: they cannot be listed.
        """
        for key, upload in self.unfinished(prefix):
            if wanted(key):
                self.abort({"Bucket": self.name, "Key": key, "UploadId": upload})

    def objects(self, job: str) -> tuple[dict[str, int], dict[int, str]]:
        """Sizes of a job's objects, and the label of each checkpoint, newest first.

        What no generation listed does not count: it is no version, nor damaged.
        """
        with self.errors("list its objects"):
            sizes = self.sizes(f"{self.prefix}{check_job(job)}-")
        labels = self._labels(job, sizes)
        # After the list, so that what it says is there was listed.
        ledger = self.ledger(job).read() if any(any(found) for found in labels.values()) else None
        rows = {v: _chosen(v, labels[v], ledger) for v in sorted(labels, reverse=True)}
        return sizes, {v: self.key(job, v, label) for v, label in rows.items() if label is not None}

    def unlisted(self, job: str, epoch: int) -> list[str]:
        """Objects that older generations left behind and that never count."""
        sizes, keys = self.objects(job)
        names = {key: parse_labelled(key[len(self.prefix) :].removesuffix(SUFFIX)) for key in sizes}
        old = {
            k: n
            for k, n in names.items()
            if n is not None and n[0] == job and n[2] and epoch_of(n[2]) < epoch
        }
        return [key for key, name in old.items() if keys.get(name[1]) != self.key(*name)]

    def look(self, job: str) -> tuple[dict[int, str], list[CommitRecord | Damage]]:
        """The names of a job's versions, and each one's commit record or damage, newest first."""
        sizes, versions = self.objects(job)
        with ThreadPoolExecutor(self.threads) as pool:
            asked = [
                submit(pool, self.state, job, version, key, sizes)
                for version, key in versions.items()
            ]
        return versions, [found for each in asked if (found := each.result()) is not None]

    def state(
        self, job: str, version: int, key: str, sizes: Mapping[str, int]
    ) -> CommitRecord | Damage | None:
        """A checkpoint's record or damage; None if nothing is left, or it was just removed."""
        records = {key + SUFFIX, key + UPCOMING} & sizes.keys()
        if key not in sizes:
            problem = f"{self._shown(key)}: its commit record is there and the object is not"
            return Damage(version, problem) if records else None
        try:
            if not records:
                raise DamagedError(f"{self._shown(key)}: {UNRECORDED}")
            return self.record(job, version, key, sizes)
        except DamagedError as error:
            return Damage(version, str(error), sizes[key])

    def record(
        self, job: str, version: int, key: str, sizes: Mapping[str, int]
    ) -> CommitRecord | None:
        """The record that fits a version's object; None if it was removed.

        Raises DamagedError: none fits.
        """
        # In this order: the upcoming record goes when the usual one says the same.
        upcoming = self._manifest(key + UPCOMING) if key + UPCOMING in sizes else None
        found = self._manifest(key + SUFFIX) if key + SUFFIX in sizes else None
        if isinstance(upcoming, CommitRecord) and self._fits(key, sizes[key], upcoming, found):
            found = upcoming
        if found is None and upcoming is not None:
            found = DamagedError(f"{self._shown(key)}: {UNRECORDED}")
        if isinstance(found, DamagedError):
            raise found
        if found is not None and (found.job, found.version) != (job, version):
            other = f"{found.job}, version {found.version}"
            raise DamagedError(f"{self._shown(key)}: its commit record is that of {other}")
        if found is not None and found.size != sizes[key]:
            raise DamagedError(
                f"{self._shown(key)}: it has {sizes[key]} bytes in place of {found.size}"
            )
        return found

    def _fits(
        self, key: str, size: int, upcoming: CommitRecord, found: CommitRecord | DamagedError | None
    ) -> bool:
        """Whether the object is what the upcoming record says, and not what the usual one does."""
        if size != upcoming.size:
            return False
        numbers = list(range(len(upcoming.crcs)))  # without another record all of it counts
        with self.errors(f"read {key}"):
            if isinstance(found, CommitRecord):
                if found.size != size:
                    return True
                if found.chunk_bytes == upcoming.chunk_bytes:
                    numbers = [n for n in numbers if found.crcs[n] != upcoming.crcs[n]][:1]
            else:
                # If the parts were chunks, which they mostly are, the store's checksum is made of
                # the record's.
                sums = b"".join(crc.to_bytes(4, "big") for crc in upcoming.crcs)
                if self.composite(key) == checksum(crc32(sums)):
                    return True
            return all(crc32(self.chunk(key, upcoming, n)) == upcoming.crcs[n] for n in numbers)

    def _manifest(self, record: str) -> CommitRecord | DamagedError | None:
        """What a record says; None if it was removed meanwhile."""
        from botocore.exceptions import ClientError

        with self.errors(f"read {record}"):
            try:
                return CommitRecord.from_json(self._read(record))
            except ClientError as error:
                if error.response["Error"]["Code"] not in _MISSING:
                    raise
                return None
            except RequestError as error:
                return DamagedError(f"{self._shown(record)}: {error}")

    def _shown(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


def _chosen(version: int, labels: Collection[str], ledger: Ledger | None) -> str | None:
    """Of the labels of a version, the one that counts, None if none does.

    Without a ledger, as in a copy that lacks it, no generation is shut out.
    """
    if ledger is None:
        return max(labels, key=epoch_of, default="")
    listed = ledger.entries.get(str(version))
    return listed if listed in labels else "" if "" in labels else None


def checksum(crc: int) -> str:
    """A CRC-32 in S3's encoding."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
