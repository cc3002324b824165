"""Single requests to a bucket, with boto3's errors turned into ours."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from deepvm.checkpoint.format.checksums import crc32
from deepvm.errors import CheckpointError

_CONNECT_S, _READ_S = 10, 60
_READS = 3
_ADVICE = {
    "NoSuchBucket": "make the bucket first, or correct its name",
    "AccessDenied": "the credentials need s3:GetObject, PutObject, DeleteObject, AbortMultipartUpload and ListBucket",
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or the VM's role",
}


class Bucket:
    """A bucket. Its methods raise boto3's errors; :meth:`errors` turns them into ours."""

    def __init__(self, name: str, url: str, *, threads: int, attempts: int, endpoint: str, region: str) -> None:
        """Remember where; nothing is sent yet.

        Args:
            name: the bucket's.
            url: what the user calls it.
            threads: requests that are under way at once.
            attempts: how often a request is tried; botocore waits longer before each.
            endpoint: URL of another store with this interface; empty for the environment's or AWS's.
            region: empty for the environment's.
        """
        self.name, self.url = name, url
        self._threads, self._attempts = threads, attempts
        self._endpoint, self._region = endpoint or None, region or None
        self._opening = threading.Lock()

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
    def s3(self) -> Any:
        """The client, for what has no method here."""
        with self._opening:  # it may be used by several threads, but not be made by several
            return self._made

    def sizes(self, prefix: str) -> dict[str, int]:
        """Bytes of each object whose name begins so."""
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {o["Key"]: o["Size"] for page in pages for o in page.get("Contents", ())}

    def uploads(self, prefix: str) -> list[tuple[str, str]]:
        """Name and id of each multipart upload under way whose name begins so."""
        pages = self.s3.get_paginator("list_multipart_uploads").paginate(Bucket=self.name, Prefix=prefix)
        return [(u["Key"], u["UploadId"]) for page in pages for u in page.get("Uploads", ())]

    def rename(self, key: str, to: str) -> None:
        """Copy an object of any size, then remove it."""
        self.s3.copy({"Bucket": self.name, "Key": key}, self.name, to)
        self.remove(key)

    def composite(self, key: str) -> str:
        """The store's checksum of the checksums of an object's parts; some other text where it keeps none."""
        head = self.s3.head_object(Bucket=self.name, Key=key, ChecksumMode="ENABLED")
        return str(head.get("ChecksumCRC32")).partition("-")[0]  # behind it stands mostly their number

    def read(self, key: str, **options: str) -> bytes:
        """An object's bytes; ``options`` are those of GetObject."""
        from botocore.exceptions import BotoCoreError

        for left in reversed(range(_READS)):
            try:
                return bytes(self.s3.get_object(Bucket=self.name, Key=key, **options)["Body"].read())
            except BotoCoreError:  # botocore tries a request again, but not a reply that breaks off
                if not left:
                    raise
        raise AssertionError

    def read_if_there(self, key: str) -> bytes | None:
        """An object's bytes, None where there is none."""
        from botocore.exceptions import ClientError

        try:
            return self.read(key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise

    def write(self, key: str, data: bytes) -> None:
        """Write a small object atomically; the store verifies its checksum."""
        self.s3.put_object(Bucket=self.name, Key=key, Body=data, ChecksumCRC32=checksum(crc32(data)))

    def remove(self, *keys: str) -> None:
        """Remove objects in order; missing ones are ignored."""
        for key in keys:
            self.s3.delete_object(Bucket=self.name, Key=key)

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn boto3's errors into ``CheckpointError``: ``what`` could not be done."""
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


def checksum(crc: int) -> str:
    """A CRC-32 in S3's encoding."""
    return base64.b64encode(crc.to_bytes(4, "big")).decode()
