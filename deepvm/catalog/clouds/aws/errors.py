"""Failed requests to AWS as CloudErrors: a reason, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepvm.catalog.signals.redaction import redact
from deepvm.errors import CloudError
from deepvm.io.user_dirs import read_data

MAX_SKEW_S = 300.0
"""AWS refuses requests whose time is further from its own."""

_IAM_PREFIX = {"service-quotas": "servicequotas"}

_TABLE: Any = read_data("aws/errors.json")
_WHY_OF_CODE = {code: why for why, codes in _TABLE["codes"].items() for code in codes}
_WHY_OF_EXCEPTION = {name: why for why, names in _TABLE["exceptions"].items() for name in names}


@dataclass(frozen=True)
class ApiCall:
    """boto3's name of a service (``ec2``), AWS's of an operation (``DescribeInstances``)."""

    service: str
    operation: str
    region: str

    @property
    def what(self) -> str:
        """``ec2 DescribeInstances in us-east-1``."""
        return f"{self.service} {self.operation} in {self.region}"

    @property
    def action(self) -> str:
        """The permission that it needs: ``ec2:DescribeInstances``."""
        return f"{_IAM_PREFIX.get(self.service, self.service)}:{self.operation}"

    def error(self, why: str, detail: str) -> CloudError:
        advice = _TABLE["advice"][why].format(action=self.action, region=self.region)
        return CloudError(self.what, why, redact(detail), advice)

    def timed_out(self, seconds: float) -> CloudError:
        return self.error("timeout", f"the answer was not complete after {seconds:.0f} s")

    def unusable(self, detail: str) -> CloudError:
        """The error for an answer that cannot be used."""
        return self.error("reply", detail)


def cloud_error(error: BaseException, call: ApiCall) -> CloudError:
    """The error for what boto3 raised."""
    code = error_code(error)
    if not code:
        names = (kind.__name__ for kind in type(error).__mro__)
        why = next((_WHY_OF_EXCEPTION[n] for n in names if n in _WHY_OF_EXCEPTION), "reply")
        return call.error(why, str(error) or type(error).__name__)
    why = _WHY_OF_CODE.get(code.removeprefix("Client."), "reply")
    asked = getattr(error, "operation_name", call.operation)
    if why == "permission" and asked != call.operation:  # a role had to be assumed first
        why = "credentials"
    if why in ("credentials", "expired"):
        # AWS repeats what was signed, with the session token in it.
        return call.error(why, f"AWS refused {asked} ({code})")
    message = getattr(error, "response", {})["Error"].get("Message") or "no reason given"
    return call.error(why, f"AWS says {code}: {message}")


def error_code(error: BaseException) -> str:
    """The code of a refusal by AWS, empty for any other exception."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
