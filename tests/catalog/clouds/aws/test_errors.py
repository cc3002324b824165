"""Refusals and failures of AWS become one short error with a reason and advice, without secrets."""

from __future__ import annotations

import pytest
from botocore import exceptions as boto
from botocore.parsers import ResponseParserError
from support.aws_account import REGION
from support.environment import in_environment

from deepvm.catalog.clouds.aws.client import ApiCall, cloud_error, error_code
from deepvm.catalog.signals.redaction import redact, secrets
from deepvm.catalog.signals.signal import reason

CALL = ApiCall("ec2", "DescribeInstanceTypes", REGION)


def refusal(code, message="no", operation="DescribeInstanceTypes"):
    return boto.ClientError({"Error": {"Code": code, "Message": message}}, operation)


def mapped(error, call=CALL):
    result = cloud_error(error, call)
    assert reason(result.why) != result.why
    assert result.advice and result.what == call.what
    assert len(str(result)) < 700 and "\n" not in str(result)
    return result


@pytest.mark.parametrize(
    ("code", "why", "advice"),
    [
        ("ExpiredToken", "expired", "sign in again"),
        ("Client.UnauthorizedOperation", "permission", "allow ec2:DescribeInstanceTypes"),
        ("AuthFailure", "credentials", "get-caller-identity"),
        ("RequestTimeTooSkewed", "clock", "set the clock"),
        ("OptInRequired", "region", "enable us-east-1"),
        ("Throttling", "throttled", "wait"),
        ("503", "throttled", "wait"),  # a page without AWS's words
        ("InternalError", "reply", "try again later"),
    ],
)
def test_refusals(code, why, advice):
    result = mapped(refusal(code))
    assert (result.why, error_code(refusal(code))) == (why, code)
    assert advice in result.advice and code in result.detail


@pytest.mark.parametrize(
    ("error", "why", "detail"),
    [
        (boto.NoCredentialsError(), "credentials", "Unable to locate"),
        (boto.ProfileNotFound(profile="work"), "credentials", "work"),
        (boto.SSOTokenLoadError(error_msg="gone"), "expired", "gone"),
        (boto.ReadTimeoutError(endpoint_url="https://ec2"), "timeout", "ec2"),
        (boto.EndpointConnectionError(endpoint_url="https://ec2"), "network", "Could not connect"),
        (boto.SSLError(endpoint_url="https://ec2", error="self-signed"), "network", "self-signed"),
        (OSError(28, "No space left on device"), "network", "No space"),
        (boto.NoRegionError(), "region", "region"),
        (ResponseParserError("Unable to parse\n<html>"), "reply", "Unable to parse"),
        (AttributeError(), "reply", "AttributeError"),
    ],
)
def test_failures(error, why, detail):
    result = mapped(error)
    assert result.why == why
    assert detail in result.detail


def test_a_role_that_cannot_be_assumed_is_not_a_missing_permission_of_the_call():
    result = mapped(refusal("AccessDenied", operation="AssumeRole"))
    assert (result.why, result.detail) == ("credentials", "AWS refused AssumeRole (AccessDenied)")


def test_other_services_have_other_actions():
    call = ApiCall("service-quotas", "GetAWSDefaultServiceQuota", REGION)
    error = refusal("AccessDeniedException", operation=call.operation)
    assert "servicequotas:GetAWSDefaultServiceQuota" in mapped(error, call).advice


class TestRedaction:
    def test_values_of_the_environment(self, monkeypatch):
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG")
        monkeypatch.setenv("AWS_SESSION_TOKEN", "a")  # too short for a secret
        assert redact("<b>a wJalrXUtnFEMI/K7MDENG</b>\n is") == "a *** is"

    @pytest.mark.parametrize(
        ("message", "line"),
        [
            ("Credential=ASIAIOSFODNN7EXAMPLE/20261121", "Credential=***/20261121"),
            ('URL: "http://joe:s3cr3t@proxy:3128"', 'URL: "http://***@proxy:3128"'),
            ("not allowed. Encoded authorization failure message: Zm9v", "not allowed"),
            ("a\x1b[31m\tb\r\nc\u2028d", "a [31m b c d"),
        ],
    )
    def test_patterns(self, message, line):
        assert redact(message) == line

    def test_length(self):
        assert len(redact("x" * 5000)) == 240

    def test_secrets_of_the_environment(self):
        environ = {
            "AWS_SECRET_ACCESS_KEY": "abcd",
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": "us-east-1",
            "HTTPS_PROXY": "http://joe:pass@word@proxy:1",
            "HTTP_PROXY": "http://proxy:1",
        }
        assert in_environment(environ, secrets) == ("abcd", "pass@word")
