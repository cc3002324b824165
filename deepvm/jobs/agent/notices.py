"""Preemption notices from the metadata services of AWS, GCP and Azure, polled every second.

- AWS: `instance-action
  <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html>`_,
  two minutes ahead, by IMDSv2; a rebalance recommendation may come earlier, and says only that the
  risk is higher.
- GCP: `preempted <https://cloud.google.com/compute/docs/instances/spot>`_, 30 s ahead; maintenance
  that ends a machine with GPUs an hour ahead, which is taken as a higher risk.
- Azure: `scheduled events
  <https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events>`_, at least 30 s.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

from deepvm.core.json_types import JsonObject
from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError

ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Environment variable of AWS's own tools: where the metadata service of EC2 is."""
_EC2 = "http://169.254.169.254"
_GCP = "http://metadata.google.internal"
_AZURE = "http://169.254.169.254"
_POLL_S = 1.0
_FAILURES_REPORTED = (3, 300)
"""Failures in a row after which a metadata service is reported as unavailable."""
_TOKEN_S = 21_600
_TIMEOUT_S = 2.0
_AZURE_FIRST_S = 125.0
"""The first question starts the service of scheduled events, in up to two minutes."""
_EC2_GRACE_S = 120.0
_GCP_GRACE_S = 30.0
_AZURE_GRACE_S = 30.0
_AZURE_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")
"""Events after which nothing that ran continues; a machine that freezes continues after seconds."""
_LARGEST = 100_000
_HOP_LIMIT = (
    "in a container the hop limit of the instance must be at least 2: aws ec2"
    " modify-instance-metadata-options --instance-id ... --http-put-response-hop-limit 2"
)


log = logging.getLogger("deepvm.agent")


class MetadataError(DeepVMError):
    """The metadata service cannot be used; preemption notices cannot be received."""


@dataclass(frozen=True)
class Notice:
    """The cloud preempts the machine at ``taken_s`` (epoch seconds); ``action``: its word."""

    taken_s: float
    action: str


class NoticeSource(Protocol):
    """A metadata service."""

    def poll(self) -> Notice | None:
        """The notice, if there is one.

        Raises MetadataError if the service refuses, OSError if it is not reached.
        """

    def rebalance(self) -> bool:
        """Whether the cloud says that the risk is higher than usual. Raises as poll() does."""


def watch(
    source: NoticeSource,
    over: threading.Event,
    noticed: Callable[[Notice], None],
    rebalanced: Callable[[], None],
    unavailable: Callable[[Exception], None],
) -> None:
    """Ask a metadata service each second until ``over``; what it says is passed on once."""
    taken_s = 0.0
    rebalance = False
    failures = 0
    while not over.is_set():
        try:
            notice = source.poll()
            failures = 0
            if notice is not None and abs(notice.taken_s - taken_s) > _POLL_S:
                taken_s = notice.taken_s
                noticed(notice)
            if not (rebalance or taken_s) and source.rebalance():
                rebalance = True
                rebalanced()
        except (OSError, ValueError, http.client.HTTPException, MetadataError) as error:
            failures += 1
            if failures in _FAILURES_REPORTED:
                log.warning(
                    "the metadata service cannot be used: %s; preemptions come unannounced", error
                )
                unavailable(error)
        over.wait(_POLL_S)


class Ec2Notices:
    """IMDSv2 of an EC2 instance."""

    def __init__(self, endpoint: str = "") -> None:
        """Use the usual address, the one of ``AWS_EC2_METADATA_SERVICE_ENDPOINT``, or this one."""
        self._base = (endpoint or os.environ.get(ENDPOINT) or _EC2).rstrip("/") + "/latest/"
        self._token = ""
        self._until_s = 0.0
        self._unreadable: Notice | None = None

    def poll(self) -> Notice | None:
        found = self._get("meta-data/spot/instance-action")
        if found is None:
            return None
        try:
            row = json.loads(found)
            return Notice(_utc(row["time"]), str(row["action"]))
        except (ValueError, KeyError, TypeError):
            # A notice that cannot be read is a notice: AWS promises two minutes, from the first
            # time that it was there.
            self._unreadable = self._unreadable or Notice(time.time() + _EC2_GRACE_S, "unreadable")
            return self._unreadable

    def rebalance(self) -> bool:
        return self._get("meta-data/events/recommendations/rebalance") is not None

    def _get(self, path: str) -> str | None:
        for _ in range(2):
            if time.monotonic() >= self._until_s:
                self._token = self._new_token()
                self._until_s = time.monotonic() + _TOKEN_S / 2
            found = _request(self._base + path, {"X-aws-ec2-metadata-token": self._token})
            if found.status == 404:
                return None
            if found.status != 401:
                return found.text(self._base + path)
            self._until_s = 0.0  # the token has expired
        raise MetadataError(
            f"{self._base} answers 401 Unauthorized: IMDSv2 gives no token here; {_HOP_LIMIT}"
        )

    def _new_token(self) -> str:
        place = self._base + "api/token"
        try:
            found = _request(place, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)}, "PUT")
        except _NoAnswer:
            # The service is there: its answer is dropped on the way, as by a router within the
            # machine
            raise MetadataError(f"{place} does not answer; {_HOP_LIMIT}") from None
        if found.status != 200:
            raise MetadataError(f"{place} gives no token: {found.status} {found.reason}")
        return found.text(place)


class GcpNotices:
    """The metadata server of Compute Engine."""

    def __init__(self, endpoint: str = "") -> None:
        self._base = f"{(endpoint or _GCP).rstrip('/')}/computeMetadata/v1/instance/"
        self._notice: Notice | None = None

    def poll(self) -> Notice | None:
        if self._notice is None and self._get("preempted").upper() == "TRUE":
            self._notice = Notice(time.time() + _GCP_GRACE_S, "preempted")
        return self._notice

    def rebalance(self) -> bool:
        return self._get("maintenance-event").upper().startswith("TERMINATE")

    def _get(self, name: str) -> str:
        found = _request(self._base + name, {"Metadata-Flavor": "Google"})
        if found.flavor != "Google":  # whoever else answers under this name must not be believed
            raise MetadataError(
                f"{self._base}{name} is not answered by Google: it lacks the header Metadata-Flavor"
            )
        return found.text(self._base + name).strip()


class AzureNotices:
    """Scheduled events of an Azure VM."""

    def __init__(self, endpoint: str = "") -> None:
        base = f"{(endpoint or _AZURE).rstrip('/')}/metadata"
        self._url = f"{base}/scheduledevents?api-version=2020-07-01"
        self._name_url = f"{base}/instance/compute/name?api-version=2021-02-01&format=text"
        self._name: str | None = None
        self._limit_s = _AZURE_FIRST_S
        self._first_notices: dict[str, Notice] = {}
        """Events without a time, by their id: they have started when they were first seen."""

    def poll(self) -> Notice | None:
        text = _request(self._url, {"Metadata": "true"}, limit_s=self._limit_s).text(self._url)
        self._limit_s = _TIMEOUT_S
        try:
            events: Any = json.loads(text).get("Events", [])
            ends = [
                event
                for event in events
                if event.get("EventType") in _AZURE_ENDS and self._of_here(event)
            ]
            return min(
                (self._notice(event) for event in ends),
                key=lambda notice: notice.taken_s,
                default=None,
            )
        except (ValueError, AttributeError, TypeError):
            raise MetadataError(f"{self._url} does not answer as scheduled events do") from None

    def rebalance(self) -> bool:
        return False

    def _of_here(self, event: JsonObject) -> bool:
        """Whether an event is for this machine: a scale set shows all its events to each VM."""
        named = [str(name).lower() for name in event.get("Resources") or ()]
        if not named:
            return True
        if self._name is None:
            self._name = (
                _request(self._name_url, {"Metadata": "true"}).text(self._name_url).strip().lower()
            )
        return not self._name or self._name in named

    def _notice(self, event: JsonObject) -> Notice:
        action = str(event["EventType"]).lower()
        try:
            return Notice(parsedate_to_datetime(event.get("NotBefore") or "").timestamp(), action)
        except (ValueError, TypeError):
            key = str(event.get("EventId"))
            return self._first_notices.setdefault(key, Notice(time.time() + _AZURE_GRACE_S, action))


class NoNotices:
    """A machine of no cloud that is known here: it is never preempted."""

    def poll(self) -> Notice | None:
        raise MetadataError(
            "this machine is none of AWS, GCP or Azure, by its firmware; --metadata names a service"
        )

    def rebalance(self) -> bool:
        return False


_SOURCES: Mapping[str, Callable[[], NoticeSource]] = {
    "aws": Ec2Notices,
    "gcp": GcpNotices,
    "azure": AzureNotices,
}
AUTO = "auto"
_DMI = Path("/sys/class/dmi/id")
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"
"""The asset tag of the chassis of each Azure VM.

Other machines of Microsoft's hypervisor have none.
"""


def notice_source(metadata: str) -> NoticeSource:
    """The source of this name: ``aws``, ``gcp``, ``azure``, ``auto``, or a URL like EC2's.

    Raises RequestError.

    ``auto`` goes by what the machine's firmware says.
    """
    if metadata.startswith(("http://", "https://")):
        return Ec2Notices(metadata)
    if metadata == AUTO:
        found = cloud_here()
        if found:
            return _SOURCES[found]()
        return NoNotices()
    if metadata not in _SOURCES:
        raise RequestError("metadata", metadata, f"{one_of(metadata, (*_SOURCES, AUTO))}, or a URL")
    return _SOURCES[metadata]()


def cloud_here(dmi: Path = _DMI) -> str:
    """The cloud that a machine's firmware names, empty if it is none of ours."""

    def fact(name: str) -> str:
        try:
            return (dmi / name).read_text(errors="replace").strip()
        except OSError:
            return ""

    if fact("sys_vendor") == "Amazon EC2" or "amazon" in fact("bios_version").lower():
        return "aws"
    if fact("product_name") == "Google Compute Engine":
        return "gcp"
    if fact("chassis_asset_tag") == _AZURE_TAG:
        return "azure"
    return ""


class _NoAnswer(OSError):
    """A connection was made, and no answer came in time."""


@dataclass(frozen=True)
class _Answer:
    status: int
    reason: str
    flavor: str
    body: str

    def text(self, url: str) -> str:
        """What it says. Raises MetadataError if it refuses."""
        if self.status != 200:
            raise MetadataError(f"{url} answers {self.status} {self.reason}")
        return self.body


def _request(
    url: str, headers: Mapping[str, str], method: str = "GET", limit_s: float = _TIMEOUT_S
) -> _Answer:
    """The answer of a metadata service. Raises OSError.

    No proxy is used, which would not know this machine, and no redirection is followed.
    """
    request = urllib.request.Request(url, headers=dict(headers), method=method)
    try:
        with _OPENER.open(request, timeout=limit_s) as answer:
            body = answer.read(_LARGEST).decode("utf-8", "replace")
            flavor = answer.headers.get("Metadata-Flavor", "")
            return _Answer(answer.status, answer.reason, flavor, body)
    except TimeoutError as error:  # where no connection is made it is another error
        raise _NoAnswer(f"{url} does not answer") from error
    except http.client.HTTPException as error:
        raise OSError(f"{url} does not speak HTTP: {type(error).__name__}") from error


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    """Neither raises errors for answers nor follows redirections."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _AnyStatus)


def _utc(text: str) -> float:
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
