"""Single objects of the jobs' bucket: read, written, and replaced by compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

from deepvm.jobs.cloud import ChangedError, Object, UnknownError
from deepvm.jobs.clouds.aws.ec2_account import Ec2Account

_MISSING = ("NoSuchKey", "404")
_CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409", "404")
_AT_ONCE = 1000
"""How many objects S3 removes at once."""


class S3Objects:
    """See :class:`deepvm.jobs.cloud.Objects`; all are encrypted at rest."""

    def __init__(self, account: Ec2Account, prefix: str) -> None:
        """``prefix``: of all names, without the last ``/``."""
        self._account = account
        self._prefix = f"{prefix}/"

    def _ask(self, operation: str, answers: tuple[str, ...], **parameters: Any) -> Any:
        return self._account.ask(
            "s3", operation, answers, Bucket=self._account.bucket, **parameters
        )

    def get(self, key: str, unlike: str = "") -> Object | None:
        found = self._ask("GetObject", _MISSING, Key=self._prefix + key)
        if found in _MISSING:
            return None
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        age_s = max((now - found["LastModified"]).total_seconds(), 0.0)
        tag = str(found["ETag"])
        try:
            with found["Body"] as body:
                return Object(b"" if tag == unlike else bytes(body.read()), tag, age_s)
        except Exception as error:  # botocore's, of a connection that breaks off
            raise UnknownError(f"s3 GetObject: {key}: {error}") from None

    def put(self, key: str, data: bytes) -> None:
        self._ask("PutObject", (), Key=self._prefix + key, Body=data, ServerSideEncryption="AES256")

    def replace(self, key: str, data: bytes, tag: str | None) -> str:
        if tag is None:
            condition = {"IfNoneMatch": "*"}
        else:
            condition = {"IfMatch": tag}
        found = self._ask(
            "PutObject",
            _CHANGED,
            Key=self._prefix + key,
            Body=data,
            ServerSideEncryption="AES256",
            **condition,
        )
        if found in _CHANGED:
            raise ChangedError(f"{self._prefix}{key} was written by another process")
        return str(found["ETag"])

    def keys(self, prefix: str, after: str = "") -> list[str]:
        found: list[str] = []
        while True:
            start = self._prefix + (found[-1] if found else after)
            page = self._ask("ListObjectsV2", (), Prefix=self._prefix + prefix, StartAfter=start)
            found += [row["Key"].removeprefix(self._prefix) for row in page.get("Contents") or ()]
            if not page.get("IsTruncated"):
                return found

    def remove(self, keys: Iterable[str]) -> None:
        names = [self._prefix + key for key in keys]
        for start in range(0, len(names), _AT_ONCE):
            rows = [{"Key": name} for name in names[start : start + _AT_ONCE]]
            found = self._ask("DeleteObjects", (), Delete={"Objects": rows, "Quiet": True})
            if found.get("Errors"):
                raise UnknownError(f"s3 DeleteObjects: {found['Errors'][0]}")
