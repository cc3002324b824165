"""Failed requests to AWS as CloudErrors: a reason, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from deepvm.catalog.signals.redaction import redact
from deepvm.errors import CloudError

MAX_SKEW_S = 300.0
"""AWS refuses requests whose time is further from its own."""

_IAM_PREFIX = {"service-quotas": "servicequotas"}

_CODES = {
    # why: error codes of AWS; all others mean "reply"
    "clock": "RequestTimeTooSkewed RequestInTheFuture",
    "expired": (
        "ExpiredToken ExpiredTokenException RequestExpired TokenRefreshRequired ExpiredTokenError"
    ),
    "permission": (
        "UnauthorizedOperation UnauthorizedException AuthorizationError NotAuthorized AccessDenied"
        " AccessDeniedException"
    ),
    "region": "OptInRequired RegionDisabledException SubscriptionRequiredException",
    "credentials": (
        "AuthFailure IncompleteSignature InvalidAccessKeyId InvalidClientTokenId InvalidToken"
        " InvalidSignatureException MissingAuthenticationToken MissingAuthenticationTokenException"
        " NotSignedUp SignatureDoesNotMatch UnrecognizedClientException"
    ),
    "throttled": (
        "BandwidthLimitExceeded EC2ThrottledException LimitExceededException MaxConfigLimitExceeded"
        " PriorRequestNotComplete RequestLimitExceeded RequestThrottled RequestThrottledException"
        " SlowDown Throttling ThrottlingException ThrottledException TooManyRequestsException"
        " 429 503"
    ),
}
_WHY_OF_CODE = {code: why for why, codes in _CODES.items() for code in codes.split()}

_EXCEPTIONS = {
    # names of botocore's exceptions, or of their bases; the first that fits counts
    "expired": (
        "LoginError LoginRefreshRequired SSOError SSOTokenLoadError TokenRetrievalError"
        " UnauthorizedSSOTokenError"
    ),
    "region": (
        "BaseEndpointResolverError EndpointProviderError InvalidRegionError NoRegionError"
        " UnknownRegionError"
    ),
    "credentials": (
        "ConfigNotFound ConfigParseError CredentialRetrievalError InvalidConfigError"
        " MetadataRetrievalError MissingDependencyException NoAuthTokenError NoCredentialsError"
        " PartialCredentialsError ProfileNotFound RefreshWithMFAUnsupportedError"
        " UnknownCredentialError"
    ),
    "timeout": "ReadTimeoutError ConnectTimeoutError TimeoutError",
    "network": (
        "HTTPClientError ConnectionError IncompleteReadError ResponseStreamingError OSError"
    ),
}
_WHY_OF_EXCEPTION = {name: why for why, names in _EXCEPTIONS.items() for name in names.split()}

_ADVICE = {
    "clock": "set the clock of this machine, for example with 'sudo timedatectl set-ntp true'",
    "credentials": (
        "check them with 'aws sts get-caller-identity'; else run 'aws configure', or set"
        " AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    ),
    "expired": (
        "sign in again ('aws sso login', 'aws login', or new temporary keys), and check the clock"
    ),
    "permission": "allow {action}; 'deepvm doctor --iam' prints the whole read-only policy",
    "region": (
        "check --region and AWS_REGION, or enable {region} in the AWS console (Account, AWS"
        " Regions)"
    ),
    "throttled": "wait a minute, then 'deepvm catalog refresh' asks again",
    "timeout": "check the network and the proxy settings (HTTPS_PROXY), then try again",
    "network": (
        "check the network, the proxy settings (HTTPS_PROXY, AWS_CA_BUNDLE) and AWS_ENDPOINT_URL"
    ),
    "reply": "if region, proxy (HTTPS_PROXY) and AWS_ENDPOINT_URL are right, try again later",
}


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
        advice = _ADVICE[why].format(action=self.action, region=self.region)
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
