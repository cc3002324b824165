"""Throttling: make wordless refusals retryable for boto3, and measure how long AWS has only refused."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

BUSY = frozenset({429, 503})
"""HTTP: too many requests, and service unavailable, with which AWS and proxies in front of it refuse those."""

THROTTLED = frozenset(
    {
        "BandwidthLimitExceeded",
        "EC2ThrottledException",
        "LimitExceededException",
        "MaxConfigLimitExceeded",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
"""AWS's codes for too many requests."""

_QUOTAS = frozenset({"LimitExceededException", "MaxConfigLimitExceeded"})
"""Those of them that limit the total, not the rate: they do not mean that AWS is busy."""

NO_WORDS = "no words of AWS's"
"""The message of a refusal that came without one."""

_IN_XML = f"<Response><Errors><Error><Code>Throttling</Code><Message>{NO_WORDS}</Message></Error></Errors></Response>"
_IN_JSON = json.dumps({"__type": "ThrottlingException", "message": NO_WORDS})


def give_words(operation_model: Any, response_dict: MutableMapping[str, Any], **_: object) -> None:
    """Replace a 429 or 503 without AWS's words, such as a proxy's web page, by one that boto3 retries.

    boto3 recognizes throttling by its error code; without one it gives up, or calls the answer unreadable.

    Args:
        operation_model: what was asked, as boto3's event ``before-parse`` has it.
        response_dict: the answer; its ``body`` is replaced.
    """
    if response_dict.get("status_code") not in BUSY:
        return
    is_json = "json" in str(operation_model.service_model.metadata.get("protocol", ""))
    if not (_is_json if is_json else _is_xml)(response_dict.get("body")):
        response_dict["body"] = (_IN_JSON if is_json else _IN_XML).encode()


def _is_json(body: Any) -> bool:
    try:
        said = json.loads(body)
    except (ValueError, TypeError, RecursionError):
        return False
    return isinstance(said, dict) and isinstance(said.get("__type") or said.get("code"), str)


def _is_xml(body: Any) -> bool:
    try:
        return bool(ElementTree.fromstring(body).findtext(".//Error/Code"))
    except (ElementTree.ParseError, TypeError, ValueError):
        return False


@dataclass
class Refusals:
    """How one call has been throttled so far.

    Attributes:
        since: when its requests began to be refused, by the monotonic clock; None where the last one was not.
        waits: whether a request is under way, which may still be answered.
    """

    since: float | None = None
    waits: bool = False


class _Here(threading.local):
    """The call that this thread makes: boto3 calls the handlers of its events in the thread that asks."""

    def __init__(self) -> None:
        self.call = Refusals()


class Busy:
    """For how long each call of one client has only been throttled. Thread-safe."""

    def __init__(self) -> None:
        """Start without any answer."""
        self._here, self._lock = _Here(), threading.Lock()
        self._answered = -math.inf

    def start(self, call: Refusals) -> None:
        """From now on, this thread makes ``call``."""
        self._here.call = call

    def send(self, **_: object) -> None:
        """Handle boto3's event ``before-send``: a request is sent."""
        with self._lock:
            self._here.call.waits = True

    def hear(self, parsed_response: Mapping[str, Any] | None = None, **_: object) -> None:
        """Handle boto3's event ``response-received``; None is no answer at all."""
        with self._lock:
            now, call = time.monotonic(), self._here.call
            call.waits = False
            if parsed_response is not None and _refused(parsed_response):
                call.since = now if call.since is None else call.since
                return
            call.since = None
            if parsed_response is not None:
                self._answered = now

    def for_s(self, call: Refusals) -> float:
        """For how many seconds ``call`` was refused and nothing else was answered; 0 while a request is under way."""
        with self._lock:
            if call.since is None or call.waits:
                return 0.0
            # After one refusal boto3 holds back all requests of a client, long enough to be mistaken for silence.
            return time.monotonic() - max(call.since, self._answered)


def _refused(parsed_response: Mapping[str, Any]) -> bool:
    status = (parsed_response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    code = (parsed_response.get("Error") or {}).get("Code")
    if code in _QUOTAS:
        return False
    return status == 429 or code in THROTTLED or (status == 503 and str(code).isdigit())
