"""What a cloud says of its machine's end: the metadata services of AWS, GCP and Azure, asked each second.

- AWS: `instance-action <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>`_,
  two minutes ahead, by IMDSv2; a rebalance recommendation may come earlier, and says only that the risk is higher.
- GCP: `preempted <https://cloud.google.com/compute/docs/instances/spot>`_, 30 s ahead.
- Azure: `scheduled events <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events>`_, at least 30 s.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError

ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Environment variable of AWS's own tools: where the metadata service of EC2 is."""
_EC2, _GCP, _AZURE = "http://169.254.169.254", "http://metadata.google.internal", "http://169.254.169.254"
_TOKEN_S = 21_600
_TIMEOUT_S = 2.0
_GCP_GRACE_S, _AZURE_GRACE_S = 30.0, 30.0
_LARGEST = 100_000
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class MetadataError(DeepVMError):
    """The metadata service cannot be used; without it nobody hears of preemptions."""


@dataclass(frozen=True)
class Notice:
    """The cloud takes the machine back at ``taken_s``, seconds since the epoch; ``action``: in the cloud's words."""

    taken_s: float
    action: str


class NoticeSource(Protocol):
    """A metadata service."""

    def poll(self) -> Notice | None:
        """The notice, if there is one. Raises MetadataError if the service refuses, OSError if it is not reached."""

    def rebalance(self) -> bool:
        """Whether the cloud says that the risk is higher than usual."""


class Ec2Notices:
    """IMDSv2 of an EC2 instance."""

    def __init__(self, endpoint: str = "") -> None:
        """Use the usual address, the one of ``AWS_EC2_METADATA_SERVICE_ENDPOINT``, or this one."""
        self._base = (endpoint or os.environ.get(ENDPOINT) or _EC2).rstrip("/") + "/latest/"
        self._token, self._until_s = "", 0.0

    def poll(self) -> Notice | None:
        """See :class:`NoticeSource`."""
        found = self._get("meta-data/spot/instance-action")
        if found is None:
            return None
        try:
            row = json.loads(found)
            return Notice(_utc(row["time"]), str(row["action"]))
        except (ValueError, KeyError, TypeError):
            # A notice that cannot be read is a notice: AWS promises two minutes.
            return Notice(time.time() + 120.0, "unreadable")

    def rebalance(self) -> bool:
        """See :class:`NoticeSource`."""
        return self._get("meta-data/events/recommendations/rebalance") is not None

    def _get(self, path: str) -> str | None:
        for _ in range(2):
            if time.monotonic() >= self._until_s:
                self._token = self._ask("api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
                self._until_s = time.monotonic() + _TOKEN_S / 2
            try:
                return self._ask(path, "GET", {"X-aws-ec2-metadata-token": self._token})
            except urllib.error.HTTPError as error:
                if error.code == 404:
                    return None
                if error.code != 401:
                    raise
                self._until_s = 0.0  # the token has expired
        raise MetadataError(
            f"{self._base} answers 401 Unauthorized: IMDSv2 gives no token here. In a container the hop limit of the "
            "instance must be at least 2: aws ec2 modify-instance-metadata-options --http-put-response-hop-limit 2"
        )

    def _ask(self, path: str, method: str, headers: Mapping[str, str]) -> str:
        try:
            return _request(self._base + path, headers, method)
        except urllib.error.HTTPError as error:
            if method == "PUT":
                raise MetadataError(f"{self._base}{path} gives no token: {error.code} {error.reason}") from None
            raise


class GcpNotices:
    """The metadata server of Compute Engine."""

    def __init__(self, endpoint: str = "") -> None:
        """Use the usual address, or this one."""
        self._url = f"{(endpoint or _GCP).rstrip('/')}/computeMetadata/v1/instance/preempted"
        self._notice: Notice | None = None

    def poll(self) -> Notice | None:
        """See :class:`NoticeSource`."""
        if self._notice is None and _request(self._url, {"Metadata-Flavor": "Google"}).strip().upper() == "TRUE":
            self._notice = Notice(time.time() + _GCP_GRACE_S, "preempted")
        return self._notice

    def rebalance(self) -> bool:
        """Nothing of the kind is published."""
        return False


class AzureNotices:
    """Scheduled events of an Azure VM."""

    def __init__(self, endpoint: str = "") -> None:
        """Use the usual address, or this one."""
        self._url = f"{(endpoint or _AZURE).rstrip('/')}/metadata/scheduledevents?api-version=2020-07-01"

    def poll(self) -> Notice | None:
        """See :class:`NoticeSource`."""
        try:
            events: Any = json.loads(_request(self._url, {"Metadata": "true"})).get("Events", [])
        except (ValueError, AttributeError):
            raise MetadataError(f"{self._url} does not answer as scheduled events do") from None
        ends = [event for event in events if event.get("EventType") in ("Preempt", "Terminate")]
        if not ends:
            return None
        before = ends[0].get("NotBefore") or ""
        try:
            taken_s = parsedate_to_datetime(before).timestamp()
        except (ValueError, TypeError):
            taken_s = time.time() + _AZURE_GRACE_S
        return Notice(taken_s, str(ends[0]["EventType"]).lower())

    def rebalance(self) -> bool:
        """Nothing of the kind is published."""
        return False


_SOURCES: Mapping[str, Callable[[], NoticeSource]] = {"aws": Ec2Notices, "gcp": GcpNotices, "azure": AzureNotices}


def notice_source(metadata: str) -> NoticeSource:
    """The source of this name, ``aws``, ``gcp`` or ``azure``, or an EC2-like one at a URL. Raises RequestError."""
    if metadata.startswith(("http://", "https://")):
        return Ec2Notices(metadata)
    if metadata not in _SOURCES:
        raise RequestError("metadata", metadata, f"{one_of(metadata, _SOURCES)}, or a URL")
    return _SOURCES[metadata]()


def _request(url: str, headers: Mapping[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    # A proxy for the internet does not know this machine.
    with _NO_PROXY.open(request, timeout=_TIMEOUT_S) as answer:
        return str(answer.read(_LARGEST).decode("utf-8", "replace"))


def _utc(text: str) -> float:
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
