"""AWS's answers as they come over the network, before boto3 reads them, and since when they only say "too much"."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, MutableMapping
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
"""AWS's codes for it."""

NO_WORDS = "no words of AWS's"
"""The message of a refusal that came without one."""

_IN_XML = f"<Response><Errors><Error><Code>Throttling</Code><Message>{NO_WORDS}</Message></Error></Errors></Response>"
_IN_JSON = json.dumps({"__type": "ThrottlingException", "message": NO_WORDS})


def give_words(operation_model: Any, response_dict: MutableMapping[str, Any], **_: object) -> None:
    """Give "too many requests" without AWS's words, such as a proxy's web page, the form that boto3 tries again.

    boto3 has names for refusals by their text; without one it gives up, or calls the answer unreadable.

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


class Busy:
    """Since when one client has heard nothing but that it asks too much. May be used by several threads at once."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._since: float | None = None

    def hear(self, parsed_response: Mapping[str, Any] | None = None, **_: object) -> None:
        """Take notice of an answer, as boto3's event ``response-received`` has it; None is no answer at all."""
        if parsed_response is None:
            return
        status = (parsed_response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
        code = (parsed_response.get("Error") or {}).get("Code")
        if status == 429 or code in THROTTLED or (status == 503 and str(code).isdigit()):
            self._since = self._since or time.monotonic()
        else:
            self._since = None

    def for_s(self, start: float) -> float:
        """For how many seconds that has been so, counted from ``start`` at the earliest, by the monotonic clock."""
        since = self._since
        return 0.0 if since is None else time.monotonic() - max(since, start)
