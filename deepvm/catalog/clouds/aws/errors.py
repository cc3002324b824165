"""Failed requests to AWS as CloudErrors: a reason, a next step, and no secrets.

botocore's exceptions are told apart by name, so this module loads no botocore and works with
versions that lack some.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deepvm.catalog.signals.redaction import redact
from deepvm.core.spelling import nearest
from deepvm.errors import CloudError

MOST_SKEW_S = 300.0
"""AWS refuses requests whose time is further from its own."""

NO_WORDS = "no words of AWS's"
"""The message of a refusal that had none, see :func:`deepvm.catalog.clouds.aws.client.add_error_code`."""

_IAM_PREFIX = {"service-quotas": "servicequotas"}

# Every other region must be enabled by the account first.
_ALWAYS_ENABLED = {
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1", "sa-east-1"),
    *("eu-central-1", "eu-west-1", "eu-west-2", "eu-west-3", "eu-north-1", "ap-south-1"),
    *("ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-southeast-1", "ap-southeast-2"),
}

_CODES = {
    # why: AWS's error codes; all others mean "reply"
    "clock": "RequestTimeTooSkewed|RequestInTheFuture",
    "expired": (
        "ExpiredToken|ExpiredTokenException|RequestExpired|TokenRefreshRequired|ExpiredTokenError"
    ),
    "permission": (
        "UnauthorizedOperation|UnauthorizedException|AuthorizationError|NotAuthorized|AccessDenied.*"
    ),
    "region": "OptInRequired|RegionDisabledException|SubscriptionRequiredException",
    "credentials": (
        "AuthFailure|IncompleteSignature|InvalidAccessKeyId|InvalidClientTokenId|InvalidSignatureException"
        "|InvalidToken|MissingAuthenticationToken|MissingAuthenticationTokenException|NotSignedUp|SignatureDoesNotMatch"
        "|UnrecognizedClientException"
    ),
    "throttled": (
        "BandwidthLimitExceeded|EC2ThrottledException|LimitExceededException|MaxConfigLimitExceeded"
        "|PriorRequestNotComplete|RequestLimitExceeded|RequestThrottled|RequestThrottledException|SlowDown|Throttling"
        "|ThrottlingException|ThrottledException|TooManyRequestsException"
    ),
}

_CHECK_KEYS = (
    "check which keys are used with 'aws sts get-caller-identity', or set them with 'aws configure'"
)
_GIVE_KEYS = (
    "run 'aws configure', or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
)
_CHECK_ROLE = "check role_arn and source_profile of the profile, and whom the role trusts"
_SET_CLOCK = "set the clock of this machine, for example with 'sudo timedatectl set-ntp true'"
_WAIT = "wait a minute and try again"
_LATER = "wait a minute, then 'deepvm catalog refresh' asks again"
_RATIONED = (
    "placement scores may be asked for few configurations a day; ask for the same ones, or tomorrow"
)
_CHECK_NETWORK = (
    "check the network, the proxy settings (HTTPS_PROXY) and AWS_ENDPOINT_URL, then try again"
)
_NOT_AWS = (
    "see that AWS itself answers: check the proxy settings (HTTPS_PROXY) and AWS_ENDPOINT_URL"
)

_EXCEPTIONS = (
    # names of exceptions or their bases, why, detail (empty: the exception's text), advice; the
    # first match counts
    (
        "LoginError|LoginRefreshRequired|SSOError|SSOTokenLoadError|TokenRetrievalError|UnauthorizedSSOTokenError",
        *("expired", "", "sign in again: aws sso login{profile} (or aws login{profile})"),
    ),
    # A credential process may write anything, secrets too, so its words are not repeated.
    (
        "CredentialRetrievalError",
        "credentials",
        "the credentials could not be read from {provider}",
        _CHECK_KEYS,
    ),
    (
        "BaseEndpointResolverError|EndpointProviderError|InvalidRegionError|NoRegionError|UnknownRegionError",
        *("region", "", "check --region and AWS_REGION{near}"),
    ),
    (
        (
            "ConfigNotFound|ConfigParseError|InvalidConfigError|MetadataRetrievalError|MissingDependencyException"
            "|NoAuthTokenError|NoCredentialsError|PartialCredentialsError|RefreshWithMFAUnsupportedError"
            "|UnknownCredentialError"
        ),
        *("credentials", "", _GIVE_KEYS),
    ),
    (
        "ReadTimeoutError|ConnectTimeoutError|TimeoutError",
        "timeout",
        "no answer in time",
        _CHECK_NETWORK,
    ),
    (
        "SSLError",
        "network",
        "",
        "if a proxy opens TLS connections, name its certificate in AWS_CA_BUNDLE",
    ),
    ("ProxyConnectionError", "network", "", "check the proxy settings (HTTPS_PROXY, NO_PROXY)"),
    (
        "HTTPClientError|ConnectionError|IncompleteReadError|ResponseStreamingError|OSError",
        *("network", "", _CHECK_NETWORK),
    ),
    (
        "ResponseParserError|PaginationError|UnicodeDecodeError|JSONDecodeError",
        *("reply", "the answer cannot be read ({name})", _NOT_AWS),
    ),
    # boto3 trusts replies: a list or a string in place of an object breaks it anywhere.
    (
        "AttributeError|LookupError|RecursionError|TypeError|ValueError",
        *("reply", "the answer does not have the form of AWS's", _NOT_AWS),
    ),
)


@dataclass(frozen=True)
class ApiCall:
    """What is asked where: boto3's name of a service (``ec2``), AWS's of an operation (``DescribeInstances``)."""

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

    def timed_out(self, seconds: float) -> CloudError:
        """The error for an answer that takes too long."""
        return CloudError(
            self.what, "timeout", f"the answer was not complete after {seconds:.0f} s", _WAIT
        )

    def unusable(self, detail: str) -> CloudError:
        """The error for an answer that cannot be used."""
        return CloudError(self.what, "reply", detail, "check --region, then try again later")


def cloud_error(
    error: BaseException,
    question: ApiCall,
    *,
    profile: str = "",
    secrets: Iterable[str] = (),
    skew_s: float | None = None,
    regions: Collection[str] = (),
) -> CloudError:
    """The error for what boto3 raised: short, on one line, free of ``secrets``.

    ``skew_s`` is by how much the local clock is ahead of AWS's; ``regions`` are those that boto3,
    if loaded, knows.
    """
    if error_code(error):
        why, detail, advice = _refusal(error, question, skew_s or 0.0)
    else:
        why, detail, advice = _exception(error, question, profile, regions)
    return CloudError(question.what, why, redact(detail, secrets), redact(advice, secrets))


def error_code(error: BaseException) -> str:
    """The code of a refusal by AWS, empty for any other exception."""
    return str(_said(error).get("Code", ""))


def _said(error: BaseException, part: str = "Error") -> Mapping[str, Any]:
    response = getattr(error, "response", None)
    found = response.get(part) if isinstance(response, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _refusal(error: BaseException, question: ApiCall, skew_s: float) -> tuple[str, str, str]:
    """Why, detail and advice for an error that AWS itself sent."""
    code, message = error_code(error), str(_said(error).get("Message") or "no reason given")
    status = _said(error, "ResponseMetadata").get("HTTPStatusCode", 0)
    # A number is not AWS's code but the status of a web page, whose text helps nobody.
    said = (
        f"the answer was an HTTP error, {code}" if code.isdigit() else f"AWS says {code}: {message}"
    )
    why = next(
        (w for w, codes in _CODES.items() if re.fullmatch(codes, code.removeprefix("Client."))),
        "reply",
    )
    asked = getattr(error, "operation_name", question.operation)
    if asked != question.operation and why not in ("clock", "expired"):
        # The question itself was never asked: a role had to be assumed first.
        return "credentials", f"no credentials, because {asked} was refused ({said})", _CHECK_ROLE
    if why in ("expired", "credentials"):
        if abs(skew_s) > MOST_SKEW_S:
            behind = "ahead of" if skew_s > 0 else "behind"
            return (
                "clock",
                f"the clock of this machine is {abs(skew_s):.0f} s {behind} AWS's ({code})",
                _SET_CLOCK,
            )
        if "Signature expired" in message:
            return "clock", said, _SET_CLOCK
    if why == "expired":
        advice = (
            "sign in again ('aws sso login', 'aws login', or new temporary keys), and see that the"
            " clock is right"
        )
        return why, f"the credentials have expired ({code})", advice
    if why == "region" or (why == "credentials" and question.region not in _ALWAYS_ENABLED):
        name = question.region
        advice = (
            f"enable {name} in the AWS console (Account, AWS Regions), use another --region, or"
            " check the keys"
        )
        return "region", f"the account may not use {name} ({said})", advice
    if why == "throttled" or status == 429 or (status == 503 and code.isdigit()):
        wordless = f"the answer was an HTTP error, {status}" if message == NO_WORDS else said
        return "throttled", wordless, _RATIONED if code == "MaxConfigLimitExceeded" else _LATER
    advice = {
        "clock": _SET_CLOCK,
        "permission": (
            f"allow {question.action}; 'deepvm doctor --iam' prints the whole read-only policy"
        ),
        "credentials": _CHECK_KEYS,
        "reply": (
            _NOT_AWS
            if code.isdigit()
            else "if the region and the settings are right, try again later"
        ),
    }[why]
    return why, said, _WAIT if why == "reply" and status >= 500 else advice


def _exception(
    error: BaseException, question: ApiCall, profile: str, regions: Collection[str]
) -> tuple[str, str, str]:
    """Why, detail and advice for an error of boto3 or of the network."""
    names = {kind.__name__ for kind in type(error).__mro__}
    given = getattr(error, "kwargs", {})
    near = ", ".join(nearest(question.region, sorted(regions), 3))
    about = {
        "name": type(error).__name__,
        "provider": given.get("provider", "the provider"),
        "profile": f" --profile {profile}" if profile else "",
        "near": f"; near: {near}" if near else "",
    }
    if "ProfileNotFound" in names:
        from botocore.session import get_session

        known = ", ".join(sorted(get_session().available_profiles)[:8])
        known = f"profiles that exist: {known}" if known else "there are no profiles"
        found = f"AWS profile {given.get('profile') or profile} does not exist"
        return "credentials", found, f"{known}; 'aws configure{about['profile']}' makes it"
    if "EndpointConnectionError" in names and regions and question.region not in regions:
        return (
            "region",
            f"no region {question.region} is known",
            f"check --region and AWS_REGION{about['near']}",
        )
    if "ValueError" in names and "endpoint" in str(error).lower():
        return "network", str(error), "give AWS_ENDPOINT_URL as https://host[:port], or unset it"
    for pattern, why, detail, advice in _EXCEPTIONS:
        if any(re.fullmatch(pattern, name) for name in names):
            return (
                why,
                detail.format(**about) or str(error) or about["name"],
                advice.format(**about),
            )
    return "reply", f"{about['name']}: {error}", "try again; if it stays, report it with this line"
