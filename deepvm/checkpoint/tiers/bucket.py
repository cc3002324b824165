"""A prefix of an S3 bucket: single requests."""

from __future__ import annotations

import base64
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

from deepvm.checkpoint.format.checksums import crc32
from deepvm.checkpoint.format.layout import CHUNK_BYTES
from deepvm.checkpoint.tiers.object_store import ObjectStore, submit
from deepvm.errors import CheckpointError, DamagedError

log = logging.getLogger("deepvm.checkpoint")
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


class Bucket(ObjectStore):
    """The objects whose names start with a prefix; requests raise boto3's errors."""

    def __init__(
        self, name: str, prefix: str, *, threads: int = 8, attempts: int = 5, endpoint: str = ""
    ) -> None:
        """Remember where; nothing is sent yet.

        ``threads``: requests at once. ``attempts``: tries of each. ``endpoint``: empty for the
        environment's or AWS's.
        """
        self.name = name
        if prefix.strip("/"):
            self.prefix = prefix.strip("/") + "/"
        else:
            self.prefix = ""
        super().__init__(f"s3://{name}/{self.prefix}".rstrip("/"), threads)
        self._attempts = attempts
        self._endpoint = endpoint or None

    @cached_property
    def s3(self) -> Any:
        """The client, for what has no method here; made when it is first used."""
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
        """See :class:`ObjectStore`: starts an upload and aborts it."""
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

    def _list(self, operation: str, rows: str, prefix: str) -> Iterator[Mapping[str, Any]]:
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
        """An object's bytes; ``options`` are those of GetObject."""
        return self._object(key, **options)[0]

    def rows(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """What S3 lists of each object whose name begins so: ``Key``, ``Size``, ``ETag``."""
        return self._list("list_objects_v2", "Contents", prefix)

    def reader(self, key: str, size: int) -> Callable[[int, int], bytes]:
        """See :class:`ObjectStore`: all ranges are of the object that is there now."""
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
        if found is None:
            return None
        return found[0]

    def write(self, key: str, data: bytes, **condition: str) -> None:
        """See :class:`ObjectStore`; the store verifies its checksum."""
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

        if etag is None:
            condition = {"IfNoneMatch": "*"}
        else:
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

    def unfinished(self, prefix: str) -> list[tuple[str, str]]:
        with self.errors("list its unfinished uploads"):
            return [
                (row["Key"], row["UploadId"])
                for row in self._list("list_multipart_uploads", "Uploads", prefix)
            ]

    def abort_unfinished(self, prefix: str, wanted: Callable[[str], bool]) -> None:
        for key, upload in self.unfinished(prefix):
            if wanted(key):
                log.info("%s: an upload of %s that was never completed is given up", self.url, key)
                self.abort({"Bucket": self.name, "Key": key, "UploadId": upload})


def checksum(crc: int) -> str:
    """A CRC-32 in S3's encoding."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
