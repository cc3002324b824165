"""``s3://bucket/prefix``: versions in an object store, durable when acknowledged.

A version is an object that plain ``torch.load`` reads once it is downloaded, and a commit record beside it, which is
written when the object is complete: whoever sees a record may rely on the bytes. A trainer that is killed while it
uploads leaves parts that cost money and that nobody lists: let a lifecycle rule of the bucket abort them after a day.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from deepvm.checkpoint.crc import crc32
from deepvm.checkpoint.folder import check_job, file_name, parse_name
from deepvm.checkpoint.image import seal
from deepvm.checkpoint.layout import CHUNK_BYTES
from deepvm.checkpoint.manifest import SUFFIX, Manifest
from deepvm.checkpoint.retention import kept, kept_of
from deepvm.checkpoint.tiers.base import Level, Shard, Tier
from deepvm.errors import CheckpointError, DamagedError, RequestError

_MOST_PARTS = 10_000
_CONNECT_S, _READ_S = 10, 60
_READS = 3
_ADVICE = {
    "NoSuchBucket": "make the bucket first, or correct its name",
    "AccessDenied": "the credentials need s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the VM's role",
}

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
        self._bucket, self._prefix = bucket, prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._keep, self._every, self._threads, self._attempts = keep, every, threads, attempts
        self._endpoint, self._region = endpoint or None, region or None
        self._writing, self._opening = threading.RLock(), threading.Lock()

    @property
    def url(self) -> str:
        """See :class:`Tier`."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @cached_property
    def _made(self) -> Any:
        import boto3
        from botocore.config import Config

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=self._threads + 2,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
        )
        session = boto3.session.Session()
        try:
            return session.client("s3", region_name=self._region, endpoint_url=self._endpoint, config=config)
        except ValueError as error:  # botocore has no class of its own for it
            raise CheckpointError(f"{self.url}: {error}; correct AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL") from None

    @property
    def _s3(self) -> Any:
        with self._opening:  # the client may be used by several threads, but not be made by several
            return self._made

    def put(self, shard: Shard, acknowledged: Callable[[Level], None]) -> None:
        """See :meth:`Tier.put`."""
        layout = shard.layout
        if layout.world != 1:
            raise CheckpointError(
                f"{self.url}: {layout.world} ranks hold parts of this version; a memory node joins them"
            )
        if len(shard.image) != layout.size:
            raise RequestError("image", f"{len(shard.image)} bytes", f"the {layout.size} bytes of its layout")
        key = self._key(shard.job, shard.version)
        crcs: list[int] = []
        with self._writing:
            self._upload(key, shard.image, seal(shard.image, layout, crcs, ready=shard.ready))
            self._commit(key, shard.manifest(crcs))
            acknowledged(Level.DURABLE)
            if self._keep:
                self._prune(shard.job, shard.version)

    def write(self, image: memoryview, manifest: Manifest) -> None:
        """Write a version whose checksums are known, and its commit record.

        Raises:
            CheckpointError: it could not be written; nothing of it is visible.
        """
        key = self._key(manifest.job, manifest.version)
        with self._writing:
            self._upload(key, image, iter([len(image)]))
            self._commit(key, manifest)

    def prove(self) -> None:
        """Make sure that versions can be written, by an upload that is given up at once. Raises CheckpointError."""
        where = {"Bucket": self._bucket, "Key": f"{self._prefix}.deepvm-proof"}
        with self._told("write there"):
            upload = self._s3.create_multipart_upload(**where)["UploadId"]
            self._s3.abort_multipart_upload(**where, UploadId=upload)

    def _commit(self, key: str, manifest: Manifest) -> None:
        record = manifest.to_json()
        with self._told(f"write {key}{SUFFIX}"):
            self._s3.put_object(
                Bucket=self._bucket, Key=key + SUFFIX, Body=record, ChecksumCRC32=_checksum(crc32(record))
            )

    def _key(self, job: str, version: int) -> str:
        return self._prefix + file_name(job, version)

    def _upload(self, key: str, image: memoryview, final: Iterator[int]) -> None:
        """Make the object, whole or not at all; S3 compares each part with its checksum."""
        where = {"Bucket": self._bucket, "Key": key}
        with self._told(f"write {key}"):
            upload = self._s3.create_multipart_upload(**where, ChecksumAlgorithm="CRC32")["UploadId"]
            try:
                parts = self._send_parts({**where, "UploadId": upload}, image, final)
                # The same version of an earlier run: its record must not vouch for other bytes.
                if key + SUFFIX in self._sizes(key + SUFFIX):
                    self._s3.delete_object(Bucket=self._bucket, Key=key + SUFFIX)
                self._s3.complete_multipart_upload(**where, UploadId=upload, MultipartUpload={"Parts": parts})
            except BaseException:
                try:
                    self._s3.abort_multipart_upload(**where, UploadId=upload)
                except Exception as error:
                    log.warning("%s: parts of %s stay behind: %s", self.url, key, error)
                raise

    def _send_parts(self, upload: dict[str, str], image: memoryview, final: Iterator[int]) -> list[dict[str, Any]]:
        chunks = -(-len(image) // CHUNK_BYTES)
        size = CHUNK_BYTES * -(-chunks // _MOST_PARTS)

        def send(number: int, start: int) -> dict[str, Any]:
            data = bytes(image[start : start + size])
            checksum = _checksum(crc32(data))
            reply = self._s3.upload_part(**upload, PartNumber=number, Body=data, ChecksumCRC32=checksum)
            return {"PartNumber": number, "ETag": reply["ETag"], "ChecksumCRC32": checksum}

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

    def _sizes(self, prefix: str) -> dict[str, int]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix)
        return {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", ())}

    def _found(self, job: str) -> dict[int, int]:
        """Bytes of each version of a job that has a record."""
        with self._told("list its objects"):
            sizes = self._sizes(f"{self._prefix}{check_job(job)}-")
        found = {}
        for key, size in sizes.items():
            name = parse_name(key[len(self._prefix) :])
            if name is not None and name[0] == job and key + SUFFIX in sizes:
                found[name[1]] = size
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
        with self._told(f"remove {key}"):
            self._s3.delete_object(Bucket=self._bucket, Key=key + SUFFIX)
            self._s3.delete_object(Bucket=self._bucket, Key=key)

    def versions(self, job: str) -> tuple[Manifest, ...]:
        """See :meth:`Tier.versions`."""
        found = self._found(job)
        with ThreadPoolExecutor(self._threads) as pool:
            asked = [_submit(pool, self._record, job, v, found[v]) for v in sorted(found, reverse=True)]
        return tuple(r for a in asked if (r := a.result()) is not None)

    def manifest(self, job: str, version: int) -> Manifest | None:
        """The commit record of a complete version, None where there is none. Raises CheckpointError."""
        found = self._found(job)
        return self._record(job, version, found[version]) if version in found else None

    def chunks(self, manifest: Manifest) -> Iterator[memoryview]:
        """A version's bytes, in order, unverified; several chunks are under way at once. Raises CheckpointError."""
        key = self._key(manifest.job, manifest.version)
        starts = range(0, manifest.size, manifest.chunk_bytes)
        with self._told(f"read {key}"), ThreadPoolExecutor(self._threads, thread_name_prefix="deepvm-s3") as pool:
            etag, ahead = self._head(key, manifest), deque[Future[bytes]]()
            try:
                for start in starts:
                    end = min(start + manifest.chunk_bytes, manifest.size)
                    ahead.append(pool.submit(self._range, key, etag, start, end))
                    if len(ahead) > self._threads:
                        yield memoryview(ahead.popleft().result())
                while ahead:
                    yield memoryview(ahead.popleft().result())
            finally:
                pool.shutdown(cancel_futures=True)

    def _head(self, key: str, manifest: Manifest) -> str:
        head = self._s3.head_object(Bucket=self._bucket, Key=key)
        if head["ContentLength"] != manifest.size:
            raise DamagedError(f"{self.url}: {key} has {head['ContentLength']} bytes in place of {manifest.size}")
        return str(head["ETag"])

    def _record(self, job: str, version: int, size: int) -> Manifest | None:
        from botocore.exceptions import ClientError

        key = self._key(job, version)
        try:
            with self._told(f"read {key}{SUFFIX}"):
                data = self._s3.get_object(Bucket=self._bucket, Key=key + SUFFIX)["Body"].read()
            manifest = Manifest.from_json(data)
        except RequestError as error:
            log.warning("%s/%s is not complete: %s", self.url, key, error)
            return None
        except CheckpointError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and cause.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None  # it was removed meanwhile
            raise
        if (manifest.job, manifest.version, manifest.size) != (job, version, size):
            log.warning("%s/%s is not complete: its commit record is that of another file", self.url, key)
            return None
        return manifest

    def fetch(self, manifest: Manifest, folder: Path) -> Path:
        """See :meth:`Tier.fetch`."""
        name = file_name(manifest.job, manifest.version)
        target, hidden = folder / name, folder / f".{name}.{secrets.token_hex(4)}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                with self._told(f"read {self._prefix}{name}"):
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
            data = self._range(key, etag, start, end)
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

    def _range(self, key: str, etag: str, start: int, end: int) -> bytes:
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(_READS)):
            try:
                reply = self._s3.get_object(
                    Bucket=self._bucket, Key=key, Range=f"bytes={start}-{end - 1}", IfMatch=etag
                )
                return bytes(reply["Body"].read())
            except BotoCoreError:  # botocore tries a request again, but not a reply that breaks off
                if not left:
                    raise
        raise AssertionError

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Errors of the cloud's library as ours."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            code, text = (error.response.get("Error", {}).get(k, "") for k in ("Code", "Message"))
            raise self._failure(what, code, f"{code}: {text}") from error
        except BotoCoreError as error:
            raise self._failure(what, type(error).__name__, str(error)) from error

    def _failure(self, what: str, name: str, text: str) -> CheckpointError:
        advice = _ADVICE.get(name, "")
        return CheckpointError(f"{self.url}: cannot {what}: {text}" + (f"; {advice}" if advice else ""))


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


def _checksum(crc: int) -> str:
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
