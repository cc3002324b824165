"""Every way in which a request to AWS fails, as one error with a reason and a next step.

botocore's exceptions are told apart by name, so this module loads no botocore and works with versions that lack some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepvm.catalog.clouds.aws.redaction import redact
from deepvm.catalog.clouds.aws.throttling import NO_WORDS, THROTTLED
from deepvm.core.spelling import nearest
from deepvm.errors import CloudError

MOST_SKEW_S = 300.0
"""AWS refuses requests whose time is further away from its own."""

_IAM_PREFIX = {"service-quotas": "servicequotas"}

# Every other region must be enabled by the account first.
_ALWAYS_ENABLED = {
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "ca-central-1", "sa-east-1"),
    *("eu-central-1", "eu-west-1", "eu-west-2", "eu-west-3", "eu-north-1", "ap-south-1"),
    *("ap-northeast-1", "ap-northeast-2", "ap-northeast-3", "ap-southeast-1", "ap-southeast-2"),
}

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired", "ExpiredTokenError"}
_DENIED = {"UnauthorizedOperation", "UnauthorizedException", "AuthorizationError", "NotAuthorized"}
_CLOCK = {"RequestTimeTooSkewed", "RequestInTheFuture"}
_WRONG_KEY = {
    "AuthFailure",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "InvalidToken",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NotSignedUp",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
_REGION_OFF = {"OptInRequired", "RegionDisabledException", "SubscriptionRequiredException"}

_LOGIN = {
    "LoginError",
    "LoginRefreshRequired",
    "SSOError",
    "SSOTokenLoadError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
_NO_CREDENTIALS = {
    "ConfigNotFound",
    "ConfigParseError",
    "CredentialRetrievalError",
    "InvalidConfigError",
    "MetadataRetrievalError",
    "MissingDependencyException",
    "NoAuthTokenError",
    "NoCredentialsError",
    "PartialCredentialsError",
    "RefreshWithMFAUnsupportedError",
    "UnknownCredentialError",
}
_NO_REGION = {
    "BaseEndpointResolverError",
    "EndpointProviderError",
    "InvalidRegionError",
    "NoRegionError",
    "UnknownRegionError",
}

_NETWORK = {"HTTPClientError", "ConnectionError", "IncompleteReadError", "ResponseStreamingError", "OSError"}
_UNREADABLE = {"ResponseParserError", "PaginationError", "UnicodeDecodeError", "JSONDecodeError"}
# boto3 takes what comes for what AWS sends; a list or a string in the place of an object breaks it anywhere.
_ANOTHER_FORM = {"AttributeError", "LookupError", "RecursionError", "TypeError", "ValueError"}

_SIGN_IN = "sign in again ('aws sso login', 'aws login', or new temporary keys)"
_CHECK_KEYS = "check which keys are used with 'aws sts get-caller-identity', or set them with 'aws configure'"
_GIVE_KEYS = "run 'aws configure', or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
_SET_CLOCK = "set the clock of this machine, for example with 'sudo timedatectl set-ntp true'"
_WAIT = "wait a minute and try again"
_LATER = "wait a minute, then 'deepvm catalog refresh' asks again"
_CHECK_NETWORK = "check the network, the proxy settings (HTTPS_PROXY) and AWS_ENDPOINT_URL, then try again"

_NOT_AWS = "see that AWS itself answers: check the proxy settings (HTTPS_PROXY) and AWS_ENDPOINT_URL"

_BY_EXCEPTION = (
    # names of exceptions, why, what was found (empty: the exception's own words), what to do; the first match counts
    (_NO_CREDENTIALS, "credentials", "", _GIVE_KEYS),
    ({"ReadTimeoutError", "ConnectTimeoutError", "TimeoutError"}, "timeout", "no answer in time", _CHECK_NETWORK),
    ({"SSLError"}, "network", "", "if a proxy opens TLS connections, name its certificate in AWS_CA_BUNDLE"),
    ({"ProxyConnectionError"}, "network", "", "check the proxy settings (HTTPS_PROXY, NO_PROXY)"),
    (_NETWORK, "network", "", _CHECK_NETWORK),
    (_UNREADABLE, "reply", "the answer cannot be read ({name})", _NOT_AWS),
    (_ANOTHER_FORM, "reply", "the answer does not have the form of AWS's", _NOT_AWS),
)


@dataclass(frozen=True)
class Question:
    """What was asked.

    Attributes:
        service: boto3's name of it, ``ec2``. operation: as in AWS's documentation, ``DescribeInstances``.
        region: of the endpoint.
        profile: what the user named, empty when nothing; filled in by whoever asks.
    """

    service: str
    operation: str
    region: str
    profile: str = ""

    @property
    def what(self) -> str:
        """``ec2 DescribeInstances in us-east-1``."""
        return f"{self.service} {self.operation} in {self.region}"

    @property
    def action(self) -> str:
        """The permission that it needs: ``ec2:DescribeInstances``."""
        return f"{_IAM_PREFIX.get(self.service, self.service)}:{self.operation}"


@dataclass(frozen=True)
class Circumstances:
    """What is known beside the exception.

    Attributes:
        secrets: values that must not be shown. skew_s: seconds by which the local clock is ahead of AWS's.
        profiles: the profiles that exist. regions: the regions that boto3 knows, empty when it was not asked.
    """

    secrets: Sequence[str] = ()
    skew_s: float | None = None
    profiles: Sequence[str] = ()
    regions: Collection[str] = ()


def error_code(error: BaseException) -> str:
    """The code of a refusal by AWS, empty for any other exception."""
    return str(_refusal(error).get("Code", ""))


def cloud_error(error: BaseException, question: Question, around: Circumstances) -> CloudError:
    """The error to raise for what boto3 raised: short, on one line, free of secrets.

    Args:
        error: what boto3 raised.
        question: what was asked.
        around: what else is known.
    """
    why, detail, advice = (
        _of_refusal(error, question, around) if error_code(error) else _of_exception(error, question, around)
    )
    return CloudError(question.what, why, redact(detail, around.secrets), redact(advice, around.secrets))


def too_slow(question: Question, seconds: float) -> CloudError:
    """The error for an answer of many pages that goes on and on."""
    return CloudError(question.what, "timeout", f"the answer was not complete after {seconds:.0f} s", _WAIT)


def too_busy(question: Question, seconds: float) -> CloudError:
    """The error for a service that does nothing but ask for fewer requests."""
    return CloudError(question.what, "throttled", f"every request was refused as too many for {seconds:.0f} s", _LATER)


def unusable(question: Question, detail: str) -> CloudError:
    """The error for an answer that came and cannot be used."""
    return CloudError(question.what, "reply", detail, "check --region, then try again later")


def _refusal(error: BaseException) -> Mapping[str, Any]:
    response = getattr(error, "response", None)
    found = response.get("Error") if isinstance(response, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _of_refusal(error: BaseException, question: Question, around: Circumstances) -> tuple[str, str, str]:
    code = error_code(error)
    message = redact(_refusal(error).get("Message") or "no reason given", around.secrets)
    # A number is no code of AWS but the status of a web page, whose words help nobody.
    said = f"the answer was an HTTP error, {code}" if code.isdigit() else f"AWS says {code}: {message}"
    name = code.removeprefix("Client.")
    skew = around.skew_s or 0.0
    off = f"the clock of this machine is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} AWS's"
    if name in _CLOCK:
        return "clock", said, _SET_CLOCK
    asked = getattr(error, "operation_name", question.operation)
    if asked != question.operation and name not in _EXPIRED:
        # The question itself was never asked: a role had to be assumed first.
        said = f"no credentials, because {asked} was refused ({said})"
        return "credentials", said, "check role_arn and source_profile of the profile, and whom the role trusts"
    if name in _EXPIRED | _WRONG_KEY and (abs(skew) > MOST_SKEW_S or "Signature expired" in message):
        return "clock", f"{off} ({code})" if abs(skew) > MOST_SKEW_S else said, _SET_CLOCK
    if name in _EXPIRED:
        return "expired", f"the credentials have expired ({code})", f"{_SIGN_IN}, and see that the clock is right"
    if name in _DENIED or name.startswith("AccessDenied"):
        return "permission", said, f"allow {question.action}; 'deepvm doctor --iam' prints the whole read-only policy"
    if name in _REGION_OFF or (name in _WRONG_KEY and question.region not in _ALWAYS_ENABLED):
        return "region", f"the account may not use {question.region} ({said})", _enable(question.region)
    if name in _WRONG_KEY:
        return "credentials", said, _CHECK_KEYS
    status = _status(error)
    if name in THROTTLED or status == 429 or (status == 503 and code.isdigit()):
        limited = "placement scores may be asked for few configurations a day; ask for the same ones, or tomorrow"
        wordless = f"the answer was an HTTP error, {status}" if message == NO_WORDS else said
        return "throttled", wordless, limited if name == "MaxConfigLimitExceeded" else _LATER
    if status >= 500:
        return "reply", said, _WAIT
    if code.isdigit():
        return "reply", said, _NOT_AWS
    return "reply", said, "if the region and the settings are right, try again later"


def _of_exception(error: BaseException, question: Question, around: Circumstances) -> tuple[str, str, str]:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    profile = f" --profile {question.profile}" if question.profile else ""
    if "ProfileNotFound" in kinds:
        named = getattr(error, "kwargs", {}).get("profile") or question.profile
        known = f"profiles that exist: {', '.join(around.profiles[:8])}" if around.profiles else "there are no profiles"
        return "credentials", f"AWS profile {named} does not exist", f"{known}; 'aws configure{profile}' makes it"
    if kinds & _LOGIN:
        return "expired", str(error), f"sign in again: aws sso login{profile} (or aws login{profile})"
    if "CredentialRetrievalError" in kinds:
        # What a credential process writes may hold anything, so its words are not repeated.
        provider = getattr(error, "kwargs", {}).get("provider", "the provider")
        return "credentials", f"the credentials could not be had from {provider}", _CHECK_KEYS
    if kinds & _NO_REGION:
        return "region", str(error), _other_region(question.region, around.regions)
    if "EndpointConnectionError" in kinds and around.regions and question.region not in around.regions:
        return "region", f"no region {question.region} is known", _other_region(question.region, around.regions)
    if isinstance(error, ValueError) and "endpoint" in str(error).lower():
        return "network", str(error), "give AWS_ENDPOINT_URL as https://host[:port], or unset it"
    name = type(error).__name__
    for names, why, detail, advice in _BY_EXCEPTION:
        if kinds & names:
            return why, detail.format(name=name) or str(error) or name, advice
    return "reply", f"{name}: {error}", "try again; if it stays, report it with this line"


def _status(error: BaseException) -> int:
    response = getattr(error, "response", None) or {}
    try:
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    except (TypeError, ValueError, AttributeError):
        return 0


def _enable(region: str) -> str:
    return f"enable {region} in the AWS console (Account, AWS Regions), use another --region, or check the keys"


def _other_region(region: str, regions: Collection[str]) -> str:
    near = nearest(region, sorted(regions), 3)
    names = f"; near: {', '.join(near)}" if near else ""
    return f"check --region and AWS_REGION{names}"
