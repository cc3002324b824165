"""Every refusal and failure of AWS becomes one short error with a reason and a next step, and shows
no secret.
"""

from __future__ import annotations

from email.utils import format_datetime

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from support.aws_account import NOW, REGION, Step, account

from deepvm.catalog.clouds.aws.client import clock_skew_s
from deepvm.catalog.clouds.aws.errors import ApiCall, cloud_error, error_code
from deepvm.catalog.clouds.aws.providers import aws_providers
from deepvm.catalog.signals.redaction import redact, secrets_of
from deepvm.catalog.signals.signal import SPECS
from deepvm.errors import CloudError

QUESTION = ApiCall("ec2", "DescribeInstanceTypes", REGION)
WHYS = {
    "credentials",
    "expired",
    "permission",
    "region",
    "clock",
    "throttled",
    "timeout",
    "network",
    "reply",
}


def refusal(code, message="no", status=400, operation="DescribeInstanceTypes"):
    reply = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return boto.ClientError(reply, operation)


def mapped(error, question=QUESTION, **around):
    found = cloud_error(error, question, **around)
    assert isinstance(found, CloudError)
    assert found.why in WHYS
    assert "\n" not in str(found)
    assert len(str(found)) < 700
    assert found.advice
    assert found.what == question.what
    return found


@pytest.mark.parametrize(
    ("code", "status", "why", "advice"),
    [
        ("ExpiredToken", 400, "expired", "sign in again"),
        ("ExpiredTokenException", 400, "expired", "sign in again"),
        ("RequestExpired", 400, "expired", "the clock is right"),
        ("UnauthorizedOperation", 403, "permission", "ec2:DescribeInstanceTypes"),
        ("AccessDenied", 403, "permission", "deepvm doctor --iam"),
        ("AccessDeniedException", 400, "permission", "deepvm doctor --iam"),
        ("Client.UnauthorizedOperation", 403, "permission", "deepvm doctor --iam"),
        ("AuthFailure", 401, "credentials", "get-caller-identity"),
        ("InvalidClientTokenId", 403, "credentials", "get-caller-identity"),
        ("UnrecognizedClientException", 400, "credentials", "get-caller-identity"),
        ("SignatureDoesNotMatch", 403, "credentials", "get-caller-identity"),
        ("RequestTimeTooSkewed", 403, "clock", "set the clock"),
        ("OptInRequired", 401, "region", "enable us-east-1"),
        ("RequestLimitExceeded", 503, "throttled", "wait"),
        ("Throttling", 400, "throttled", "wait"),
        ("ThrottlingException", 400, "throttled", "wait"),
        ("TooManyRequestsException", 429, "throttled", "wait"),
        ("SomethingNew", 429, "throttled", "wait"),
        ("MaxConfigLimitExceeded", 400, "throttled", "the same ones"),
        ("InternalError", 500, "reply", "wait"),
        ("Unavailable", 503, "reply", "wait"),
        ("502", 502, "reply", "wait"),
        ("403", 403, "reply", "AWS itself"),
        ("InvalidParameterValue", 400, "reply", "try again later"),
    ],
)
def test_refusals(code, status, why, advice):
    found = mapped(refusal(code, status=status))
    assert (found.why, error_code(refusal(code))) == (why, code)
    assert advice in found.advice
    assert code in found.detail


@pytest.mark.parametrize(
    ("error", "why", "said"),
    [
        (boto.NoCredentialsError(), "credentials", "aws configure"),
        (
            boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            "credentials",
            "missing: AWS_SECRET_ACCESS_KEY",
        ),
        (boto.ProfileNotFound(profile="work"), "credentials", "AWS profile work does not exist"),
        (boto.ConfigParseError(path="/home/x/.aws/config"), "credentials", "/home/x/.aws/config"),
        (boto.InvalidConfigError(error_msg="bad"), "credentials", "bad"),
        (boto.RefreshWithMFAUnsupportedError(), "credentials", "MFA"),
        (boto.SSOTokenLoadError(error_msg="gone"), "expired", "aws sso login"),
        (boto.UnauthorizedSSOTokenError(), "expired", "aws sso login"),
        (
            boto.TokenRetrievalError(provider="sso", error_msg="Token has expired"),
            "expired",
            "aws sso login",
        ),
        (boto.ReadTimeoutError(endpoint_url="https://ec2"), "timeout", "no answer in time"),
        (boto.ConnectTimeoutError(endpoint_url="https://ec2"), "timeout", "no answer in time"),
        (boto.EndpointConnectionError(endpoint_url="https://ec2"), "network", "Could not connect"),
        (boto.ConnectionClosedError(endpoint_url="https://ec2"), "network", "closed"),
        (boto.ProxyConnectionError(proxy_url="http://proxy"), "network", "HTTPS_PROXY"),
        (
            boto.SSLError(endpoint_url="https://ec2", error="self-signed"),
            "network",
            "AWS_CA_BUNDLE",
        ),
        (boto.HTTPClientError(error="odd"), "network", "odd"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=9), "network", "1 read"),
        (OSError(28, "No space left on device"), "network", "No space"),
        (ValueError("Invalid endpoint: localhost"), "network", "AWS_ENDPOINT_URL"),
        (boto.NoRegionError(), "region", "--region"),
        (boto.InvalidRegionError(region_name="x y"), "region", "x y"),
        (ResponseParserError("Unable to parse\n<html>"), "reply", "cannot be read"),
        (
            boto.PaginationError(message="The same next token was received twice"),
            "reply",
            "cannot be read",
        ),
        (RuntimeError("surprise"), "reply", "RuntimeError: surprise"),
    ],
)
def test_failures(error, why, said):
    found = mapped(error)
    assert found.why == why
    assert said in str(found)


def test_profiles_that_exist_are_named(monkeypatch, tmp_path):
    (tmp_path / "config").write_text(
        '[profile work]\n[profile "a b"]\n[sso-session x]\n[default]\n'
    )
    (tmp_path / "keys").write_text("[default]\n[old]\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    found = mapped(boto.ProfileNotFound(profile="wrok"))
    assert "profiles that exist: a b, default, old, work" in found.advice


def test_the_profile_is_named_in_the_next_step():
    found = mapped(boto.UnauthorizedSSOTokenError(), profile="work")
    assert "aws sso login --profile work" in found.advice


def test_a_role_that_cannot_be_assumed_is_not_a_missing_permission_of_the_question():
    reply = {
        "Error": {"Code": "AccessDenied", "Message": "not authorized to perform: sts:AssumeRole"}
    }
    found = mapped(boto.ClientError(reply, "AssumeRole"))
    assert found.why == "credentials"
    assert "AssumeRole was refused" in found.detail
    assert "role_arn" in found.advice


def test_other_services_have_other_actions():
    question = ApiCall("service-quotas", "GetAWSDefaultServiceQuota", REGION)
    assert (
        "servicequotas:GetAWSDefaultServiceQuota"
        in mapped(refusal("AccessDeniedException", operation=question.operation), question).advice
    )


class TestClock:
    @pytest.mark.parametrize(
        "code", ["RequestExpired", "SignatureDoesNotMatch", "AuthFailure", "ExpiredToken"]
    )
    def test_a_clock_that_is_far_off_explains_refusals(self, code):
        found = mapped(refusal(code), skew_s=-900.0)
        assert (found.why, found.detail) == (
            "clock",
            f"the clock of this machine is 900 s behind AWS's ({code})",
        )
        assert "timedatectl" in found.advice
        assert "ahead of" in mapped(refusal(code), skew_s=900.0).detail

    def test_a_clock_that_is_a_little_off_does_not(self):
        assert mapped(refusal("ExpiredToken"), skew_s=30.0).why == "expired"

    def test_a_permission_has_nothing_to_do_with_the_clock(self):
        assert mapped(refusal("UnauthorizedOperation"), skew_s=900.0).why == "permission"

    def test_what_aws_says_itself(self):
        message = (
            "Signature expired: 20261121T080000Z is now earlier than 20261121T085500Z"
            " (20261121T090000Z - 5 min.)"
        )
        assert mapped(refusal("SignatureDoesNotMatch", message)).why == "clock"

    def test_the_date_of_a_reply(self, monkeypatch):
        monkeypatch.setattr("time.time", lambda: NOW.timestamp() + 400)
        reply = {"ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(NOW, usegmt=True)}}}
        assert clock_skew_s(reply) == 400

    @pytest.mark.parametrize(
        "reply",
        [
            None,
            {},
            {"ResponseMetadata": None},
            {"ResponseMetadata": {"HTTPHeaders": {"date": "yesterday"}}},
        ],
    )
    def test_no_date(self, reply):
        assert clock_skew_s(reply) is None

    def test_end_to_end(self):
        date = format_datetime(NOW.replace(year=2020), usegmt=True)
        step = Step(
            "ec2", "describe_instance_types", None, code="RequestExpired", headers={"date": date}
        )
        with pytest.raises(CloudError) as caught:
            aws_providers(account(step).aws)[SPECS].fetch(REGION, NOW)
        assert caught.value.why == "clock"


class TestRegions:
    def test_keys_are_fine_but_the_region_must_be_enabled(self):
        found = mapped(refusal("AuthFailure"), ApiCall("ec2", "DescribeInstanceTypes", "ap-east-1"))
        assert found.why == "region"
        assert "enable ap-east-1" in found.advice

    def test_a_region_that_nobody_knows(self):
        error = boto.EndpointConnectionError(endpoint_url="https://ec2.us-esat-1.amazonaws.com/")
        question = ApiCall("ec2", "DescribeRegions", "us-esat-1")
        found = mapped(error, question, regions={"us-east-1", "us-east-2", "eu-west-1"})
        assert found.why == "region"
        assert "us-east-1" in found.advice

    def test_a_known_region_that_cannot_be_reached(self):
        error = boto.EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com/")
        assert mapped(error, regions={"us-east-1"}).why == "network"


class TestRedaction:
    SECRETS = (
        "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        "IQoJb3JpZ2luX2VjEXAMPLE//token==",
        "AKIAIOSFODNN7EXAMPLE",
    )

    def test_given_values(self):
        for secret in self.SECRETS:
            assert redact(f"the <b>{secret}</b> was\n used", self.SECRETS) == "the *** was used"

    def test_values_in_a_url(self):
        from urllib.parse import quote

        for secret in self.SECRETS:
            assert quote(secret, safe="") not in redact(
                f"https://x/?t={quote(secret, safe='')}&a=1", self.SECRETS
            )

    def test_ids_of_keys_that_nobody_gave(self):
        assert "ASIA" not in redact("Credential=ASIAIOSFODNN7EXAMPLE/20261121/us-east-1")

    def test_user_and_password_of_a_proxy(self):
        assert (
            redact('Failed to connect to proxy URL: "http://joe:s3cr3t@proxy:3128"')
            == 'Failed to connect to proxy URL: "http://***@proxy:3128"'
        )

    def test_the_encoded_part_of_a_refusal(self):
        message = "You are not authorized. Encoded authorization failure message: " + "Zm9v" * 300
        assert redact(message) == "You are not authorized"

    def test_length_and_control_characters(self):
        assert len(redact("x" * 5000)) == 240
        assert redact("a\x1b[31m\tb\r\nc\u2028d") == "a [31m b c d"

    def test_blank_and_tiny_values_are_no_secrets(self):
        assert redact("an answer", ("", " ", "a", "n a")) == "an answer"

    def test_what_a_credential_process_wrote_is_not_repeated(self):
        error = boto.CredentialRetrievalError(
            provider="custom-process", error_msg="key is s3cr3t-s3cr3t"
        )
        found = mapped(error)
        assert found.why == "credentials"
        assert "s3cr3t" not in str(found)
        assert "custom-process" in str(found)


def test_secrets_of_the_environment():
    environ = {
        "AWS_SECRET_ACCESS_KEY": "abc",
        "AWS_SESSION_TOKEN": "",
        "AWS_REGION": "us-east-1",
        "HTTPS_PROXY": "http://joe:pass@word@proxy:1",
        "HTTP_PROXY": "http://proxy:1",
    }
    assert secrets_of(environ) == ("abc", "pass@word")
