"""A part of a bucket: single requests, and which versions there are complete, by which commit record."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from deepvm.checkpoint.files.file_names import check_job, file_name, parse_name
from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.manifest import SUFFIX, UNRECORDED, CommitRecord, Damage
from deepvm.checkpoint.tiers.base import fulfil
from deepvm.errors import CheckpointError, DamagedError, RequestError

UPCOMING = SUFFIX + ".next"
"""Added to an object's name: a record of what is about to be completed, or just was."""
_CONNECT_S, _READ_S = 10, 60
_READS = 3
_ADVICE = {
    "NoSuchBucket": "make the bucket first, or correct its name",
    "AccessDenied": "the credentials need s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the VM's role",
}
_T = TypeVar("_T")


class Bucket:
    """The objects whose names begin with a prefix; for their meaning see :mod:`deepvm.checkpoint.tiers.s3`.

    Single requests raise boto3's errors; :meth:`errors` turns them into ours, as do the methods that take a job.
    """

    def __init__(self, name: str, prefix: str, *, threads: int, attempts: int, endpoint: str) -> None:
        """Remember where; nothing is sent yet. For the arguments see ``S3Tier``."""
        self.name, self.prefix = name, prefix.strip("/") + "/" if prefix.strip("/") else ""
        self.url = f"s3://{name}/{self.prefix}".rstrip("/")
        self.threads, self._attempts, self._endpoint = threads, attempts, endpoint or None
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
            raise CheckpointError(f"{self.url}: {error}; correct AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL") from None

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
            name, text = type(error).__name__, str(error)
            if isinstance(error, ClientError):
                name, message = (error.response.get("Error", {}).get(k, "") for k in ("Code", "Message"))
                text = f"{name}: {message}"
            advice = f"; {_ADVICE[name]}" if name in _ADVICE else ""
            raise CheckpointError(f"{self.url}: cannot {what}: {text}{advice}") from error

    def _list(self, operation: str, rows: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        for page in self.s3.get_paginator(operation).paginate(Bucket=self.name, Prefix=prefix):
            yield from page.get(rows, ())

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name begins so."""
        return {row["Key"]: row["Size"] for row in self._list("list_objects_v2", "Contents", prefix)}

    def composite(self, key: str) -> str:
        """The store's checksum of the checksums of an object's parts; some other text if it keeps none."""
        head = self.s3.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        return str(head.get("ChecksumCRC32")).partition("-")[0]  # mostly followed by the number of parts

    def _read(self, key: str, **options: str) -> bytes:
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(_READS)):
            try:
                return bytes(self.s3.get_object(Bucket=self.name, Key=key, **options)["Body"].read())
            except BotoCoreError:  # botocore retries a request, but not a reply that breaks off
                if not left:
                    raise
        raise AssertionError

    def chunk(self, key: str, manifest: CommitRecord, number: int, **options: str) -> bytes:
        """A chunk of a version's object; ``options`` are those of GetObject."""
        start = number * manifest.chunk_bytes
        end = min(start + manifest.chunk_bytes, manifest.size)
        return self._read(key, Range=f"bytes={start}-{end - 1}", **options)

    def commit(self, record: str, manifest: CommitRecord) -> None:
        """Write a commit record atomically; the store verifies its checksum. Raises CheckpointError."""
        data = manifest.to_json()
        with self.errors(f"write {record}"):
            self.s3.put_object(Bucket=self.name, Key=record, Body=data, ChecksumCRC32=checksum(crc32(data)))

    def remove(self, *keys: str) -> None:
        """Remove objects in order; missing ones are ignored."""
        for key in keys:
            self.s3.delete_object(Bucket=self.name, Key=key)

    def key(self, job: str, version: int) -> str:
        """Name of a version's object."""
        return self.prefix + file_name(job, version)

    def _version(self, key: str, job: str) -> int | None:
        name = parse_name(key[len(self.prefix) :])
        return name[1] if name is not None and name[0] == job else None

    def uploads(self, job: str) -> list[tuple[str, str]]:
        """Name and id of the uploads of a job's versions that are neither completed nor aborted."""
        with self.errors("list its unfinished uploads"):
            found = [*self._list("list_multipart_uploads", "Uploads", f"{self.prefix}{check_job(job)}-")]
        return [(row["Key"], row["UploadId"]) for row in found if self._version(row["Key"], job) is not None]

    def objects(self, job: str) -> tuple[dict[str, int], list[int]]:
        """Bytes of the objects of a job, and the versions that have one or a record, newest first."""
        with self.errors("list its objects"):
            sizes = self.sizes(f"{self.prefix}{check_job(job)}-")
        numbers = {self._version(key.removesuffix(SUFFIX), job) for key in sizes}
        return sizes, sorted((number for number in numbers if number is not None), reverse=True)

    def look(self, job: str) -> list[CommitRecord | Damage]:
        """Each version's commit record or damage, newest first."""
        sizes, versions = self.objects(job)
        with ThreadPoolExecutor(self.threads) as pool:
            asked = [submit(pool, self.state, job, version, sizes) for version in versions]
        return [found for each in asked if (found := each.result()) is not None]

    def state(self, job: str, version: int, sizes: Mapping[str, int]) -> CommitRecord | Damage | None:
        """One version's record or damage; None if there is nothing of it, or it was removed meanwhile."""
        key = self.key(job, version)
        records = {key + SUFFIX, key + UPCOMING} & sizes.keys()
        if key not in sizes:
            problem = f"{self._shown(key)}: its commit record is there and the object is not"
            return Damage(version, problem) if records else None
        try:
            if not records:
                raise DamagedError(f"{self._shown(key)}: {UNRECORDED}")
            return self.record(job, version, sizes)
        except DamagedError as error:
            return Damage(version, str(error), sizes[key])

    def record(self, job: str, version: int, sizes: Mapping[str, int]) -> CommitRecord | None:
        """The record that fits a version's object; None if it was removed. Raises DamagedError: none fits."""
        key = self.key(job, version)
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
            raise DamagedError(f"{self._shown(key)}: it has {sizes[key]} bytes in place of {found.size}")
        return found

    def _fits(self, key: str, size: int, upcoming: CommitRecord, found: CommitRecord | DamagedError | None) -> bool:
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
                # If the parts were chunks, which they mostly are, the store's checksum is made of the record's.
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
                if error.response["Error"]["Code"] not in ("NoSuchKey", "404"):
                    raise
                return None
            except RequestError as error:
                return DamagedError(f"{self._shown(record)}: {error}")

    def _shown(self, key: str) -> str:
        return f"s3://{self.name}/{key}"


def submit(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: Any) -> Future[_T]:
    """Submit work to a pool, or do it here if the pool takes no more."""
    try:
        return pool.submit(work, *arguments)
    except RuntimeError:  # no threads at the interpreter's end: a last save must work even there
        done: Future[_T] = Future()
        fulfil(done, work, *arguments)
        return done


def checksum(crc: int) -> str:
    """A CRC-32 in S3's encoding."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
