"""Preemption notices from the metadata services of AWS, GCP and Azure, polled every second.

- https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html: two
  minutes ahead; a rebalance recommendation says only that the risk is higher
- https://cloud.google.com/compute/docs/instances/spot: 30 s; maintenance that ends a machine with
  GPUs, an hour ahead, counts as a higher risk
- https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events: at least 30 s
"""

import http.client
import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Protocol

from deepvm.core.json_types import JsonObject
from deepvm.core.spelling import one_of
from deepvm.errors import DeepVMError, RequestError
from deepvm.jobs.loggers import agent_log as log
from deepvm.records import dataclass

# Environment variable of AWS's own tools: where the metadata service of EC2 is
ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
_EC2 = "http://169.254.169.254"
_POLL_S = 1.0
# Failures in a row after which a metadata service is reported as unavailable
_FAILURES_REPORTED = (3, 300)
_TOKEN_S = 21_600
_TIMEOUT_S = 2.0
# The first question starts the service of scheduled events, in up to two minutes
_AZURE_FIRST_S = 125.0
_EC2_GRACE_S = 120.0
_GCP_GRACE_S = 30.0
_AZURE_GRACE_S = 30.0
# Events after which nothing that ran continues; a machine that freezes continues after seconds
_AZURE_ENDS = ("Preempt", "Terminate", "Reboot", "Redeploy")
_LARGEST = 100_000
_HOP_LIMIT = (
    "in a container the hop limit of the instance must be at least 2: aws ec2"
    " modify-instance-metadata-options --instance-id ... --http-put-response-hop-limit 2"
)


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
        """The notice, if any. Raises MetadataError; OSError: the service is not reached."""

    def rebalance(self) -> bool:
        """Whether the cloud reports a raised risk. Raises as poll() does."""
        return False


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
            # What cannot be read is a notice: two minutes from when it was first there
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
            # The answer is dropped on the way, as by a router within the machine
            raise MetadataError(f"{place} does not answer; {_HOP_LIMIT}") from None
        if found.status != 200:
            raise MetadataError(f"{place} gives no token: {found.status} {found.reason}")
        return found.text(place)


class GcpNotices:
    """The metadata server of Compute Engine."""

    def __init__(self, endpoint: str = "http://metadata.google.internal") -> None:
        self._base = f"{endpoint}/computeMetadata/v1/instance/"
        self._notice: Notice | None = None

    def poll(self) -> Notice | None:
        if self._notice is None and self._get("preempted").upper() == "TRUE":
            self._notice = Notice(time.time() + _GCP_GRACE_S, "preempted")
        return self._notice

    def rebalance(self) -> bool:
        return self._get("maintenance-event").upper().startswith("TERMINATE")

    def _get(self, name: str) -> str:
        found = _request(self._base + name, {"Metadata-Flavor": "Google"})
        if found.flavor != "Google":  # anyone who else answers under this name must not be believed
            raise MetadataError(
                f"{self._base}{name} is not answered by Google: it lacks the header Metadata-Flavor"
            )
        return found.text(self._base + name).strip()


class AzureNotices(NoticeSource):
    """Scheduled events of an Azure VM."""

    def __init__(self, endpoint: str = "http://169.254.169.254") -> None:
        base = f"{endpoint}/metadata"
        self._url = f"{base}/scheduledevents?api-version=2020-07-01"
        self._name_url = f"{base}/instance/compute/name?api-version=2021-02-01&format=text"
        self._name: str | None = None
        self._limit_s = _AZURE_FIRST_S
        # Events without a time, by their id: they have started when they were first seen
        self._first_notices: dict[str, Notice] = {}

    def poll(self) -> Notice | None:
        text = _request(self._url, {"Metadata": "true"}, limit_s=self._limit_s).text(self._url)
        self._limit_s = _TIMEOUT_S
        try:
            notices = [
                self._notice(event)
                for event in json.loads(text).get("Events", [])
                if event.get("EventType") in _AZURE_ENDS and self._of_here(event)
            ]
            return min(notices, key=lambda notice: notice.taken_s, default=None)
        except (ValueError, AttributeError, TypeError):
            raise MetadataError(f"{self._url} does not answer as scheduled events do") from None

    def _of_here(self, event: JsonObject) -> bool:
        """Whether an event is for this VM: a scale set shows all its events to each."""
        named = [str(name).lower() for name in event.get("Resources") or ()]
        if not named:
            return True
        if self._name is None:
            answer = _request(self._name_url, {"Metadata": "true"})
            self._name = answer.text(self._name_url).strip().lower()
        return not self._name or self._name in named

    def _notice(self, event: JsonObject) -> Notice:
        action = str(event["EventType"]).lower()
        try:
            return Notice(parsedate_to_datetime(event.get("NotBefore") or "").timestamp(), action)
        except (ValueError, TypeError):
            key = str(event.get("EventId"))
            return self._first_notices.setdefault(key, Notice(time.time() + _AZURE_GRACE_S, action))


class NoNotices(NoticeSource):
    """A machine of no known cloud."""

    def poll(self) -> Notice | None:
        raise MetadataError(
            "this machine is none of AWS, GCP or Azure, by its firmware; --metadata names a service"
        )


_SOURCES: Mapping[str, Callable[[], NoticeSource]] = {
    "aws": Ec2Notices,
    "gcp": GcpNotices,
    "azure": AzureNotices,
}
AUTO = "auto"
_DMI = Path("/sys/class/dmi/id")
# The asset tag of the chassis of each Azure VM. Other machines of Microsoft's hypervisor have none.
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"


def notice_source(metadata: str) -> NoticeSource:
    """The source of a cloud, of ``auto`` (by firmware), or of a URL. Raises RequestError."""
    if metadata.startswith(("http://", "https://")):
        return Ec2Notices(metadata)
    if metadata == AUTO:
        metadata = cloud_here()
        if not metadata:
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
        if self.status != 200:
            raise MetadataError(f"{url} answers {self.status} {self.reason}")
        return self.body


def _request(
    url: str, headers: Mapping[str, str], method: str = "GET", limit_s: float = _TIMEOUT_S
) -> _Answer:
    """Ask without a proxy, which would not know this machine. Raises OSError."""
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
    def http_response(self, request: Any, response: Any) -> Any:
        return response

    https_response = http_response


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _AnyStatus)


def _utc(text: str) -> float:
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()
