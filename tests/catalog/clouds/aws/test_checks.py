"""The doctor finds what is missing, says what to do, and needs no more than the policy that it
prints.
"""

from __future__ import annotations

import json
from dataclasses import replace
from email.utils import format_datetime

import pytest
from support.aws_account import FOLDER, NOW, REGION, Step, account

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.clouds.aws import checks as aws_checks
from deepvm.catalog.clouds.aws.checks import check_aws
from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.providers import URL_VARIABLE
from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES
from deepvm.catalog.signals.cloud import Check
from deepvm.errors import CloudError

DRY = {"DryRun": True}
CODES = [name.code for name in QUOTA_NAMES.values()]
EC2_PROBES = (
    "describe_instance_types",
    "describe_instance_type_offerings",
    "describe_availability_zones",
    "describe_regions",
    "describe_spot_price_history",
    "get_spot_placement_scores",
    "describe_instances",
)


def iam_actions():
    """The actions of the policy, in its order."""
    statements = json.loads(DEFAULT_CLOUD.policy())["Statement"]
    return tuple(action for statement in statements for action in statement["Action"])


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """The feed is nowhere, and the clock is that of the replies."""
    monkeypatch.setenv(URL_VARIABLE, "http://127.0.0.1:9/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("time.time", NOW.timestamp)


def identity(skew_s=0):
    from datetime import timedelta

    date = format_datetime(NOW - timedelta(seconds=skew_s), usegmt=True)
    return Step(
        "sts",
        "get_caller_identity",
        {},
        {
            "Account": "123456789012",
            "Arn": "arn:aws:iam::123456789012:user/kim",
            "UserId": "AIDAEXAMPLE",
            "ResponseMetadata": {"HTTPHeaders": {"date": date}, "HTTPStatusCode": 200},
        },
    )


def allowed(operation):
    return Step("ec2", operation, None, code="DryRunOperation", status=412)


def quota(operation, code, value):
    return Step(
        "service-quotas",
        operation,
        {"ServiceCode": "ec2", "QuotaCode": code},
        {"Quota": {"Value": value}},
    )


def steps(skew_s=0, values=None, **instead):
    """All questions of a check of a healthy account, with some replaced."""
    values = values or {}
    yield identity(skew_s)
    for operation in EC2_PROBES:
        yield from instead.get(operation, [allowed(operation)])
    price = Step(
        "pricing",
        "get_products",
        {"ServiceCode": "AmazonEC2", "MaxResults": 1},
        {"PriceList": ["{}"]},
    )
    yield from instead.get("get_products", [price])
    for operation in ("get_service_quota", "get_aws_default_service_quota"):
        yield quota(operation, "L-3819A6DF", 64.0)
    for code in CODES:
        yield quota("get_service_quota", code, values.get(code, 64.0))
    yield Step("ec2", "describe_instances", None, {"Reservations": []})


def checked(*script):
    found = account(*script)
    checks = {check.name: check for check in check_aws(found.aws, REGION, NOW)}
    found.done()
    assert not [c for c in checks.values() if c.ok is False and not c.advice]
    return checks


def test_a_healthy_account():
    checks = checked(*steps())
    assert checks["credentials"] == Check(
        "credentials", True, "account 123456789012 as arn:aws:iam::123456789012:user/kim"
    )
    assert checks["clock"] == Check("clock", True, "agrees with AWS")
    assert {name for name in checks if name.startswith("permission ")} == {
        f"permission {a}" for a in iam_actions()
    }
    assert checks["quota G and VT, spot"] == Check(
        "quota G and VT, spot", True, "64 vCPUs, 0 in use"
    )
    assert [c.name for c in checks.values() if c.ok is not True] == ["Spot Advisor feed"]
    assert checks["Spot Advisor feed"].ok is None


def test_dry_runs_are_asked_for():
    """A question without DryRun would do more than look."""
    asked = {}

    class Recorder(Aws):
        def call(self, question, answers=(), **parameters):
            asked[question.action] = parameters
            raise CloudError("x", "network", "y", "z")

    for probe in aws_checks._PROBES:
        aws_checks._permission(Recorder(), REGION, *probe)
    assert all(
        ("DryRun" in parameters) == action.startswith("ec2:")
        for action, parameters in asked.items()
    )
    assert len(asked) == len(aws_checks._PROBES)
    strict = Step("ec2", "describe_regions", DRY, code="DryRunOperation", status=412)
    assert checked(*steps(describe_regions=[strict]))["permission ec2:DescribeRegions"].ok


def test_a_missing_permission_is_named():
    refused = Step(
        "ec2", "describe_spot_price_history", None, code="UnauthorizedOperation", status=403
    )
    check = checked(*steps(describe_spot_price_history=[refused]))[
        "permission ec2:DescribeSpotPriceHistory"
    ]
    assert check.ok is False
    assert "allow ec2:DescribeSpotPriceHistory" in check.advice


def test_placement_scores_are_rationed_so_they_are_never_really_asked_for():
    no = Step("ec2", "get_spot_placement_scores", None, code="InvalidParameterValue")
    check = checked(*steps(get_spot_placement_scores=[no]))["permission ec2:GetSpotPlacementScores"]
    assert check.ok is None
    assert "InvalidParameterValue" in check.detail  # not what the script says to a second question


def test_throttling_says_nothing_about_a_permission():
    busy = Step("pricing", "get_products", None, code="ThrottlingException")
    assert checked(*steps(get_products=[busy]))["permission pricing:GetProducts"].ok is None


@pytest.mark.parametrize(
    ("skew_s", "ok", "said"),
    [
        (4, True, "agrees"),
        (-59, True, "agrees"),
        (61, None, "61 s ahead of"),
        (-300, None, "300 s behind"),
        (301, False, "301 s ahead of"),
    ],
)
def test_the_clock(skew_s, ok, said):
    check = checked(*steps(skew_s))["clock"]
    assert check.ok is ok
    assert said in check.detail
    assert bool(check.advice) == (ok is not True)


def test_a_quota_of_nothing_is_named():
    check = checked(*steps(values={"L-DB2E81BA": 0.0}))["quota G and VT, on-demand"]
    assert check.ok is None
    assert check.detail == "0 vCPUs, 0 in use"
    assert "Running On-Demand G and VT instances (L-DB2E81BA)" in check.advice


def test_a_quota_that_the_region_does_not_have():
    def without(code):
        for step in steps():
            if step.expected == {"ServiceCode": "ec2", "QuotaCode": code}:
                yield replace(step, reply={}, code="NoSuchResourceException")
                if step.operation == "get_service_quota":
                    yield replace(
                        step,
                        operation="get_aws_default_service_quota",
                        reply={},
                        code="NoSuchResourceException",
                    )
            else:
                yield step

    check = checked(*without("L-417A185B"))["quota P, on-demand"]
    assert check.ok is None
    assert "no quota Running On-Demand P instances (L-417A185B) in us-east-1" in check.detail


def test_quotas_that_cannot_be_had_are_one_warning():
    def failing():
        for step in steps():
            last = step.operation == "get_service_quota" and step.expected["QuotaCode"] == CODES[0]
            yield replace(step, reply={}, code="ServiceException", status=500) if last else step
            if last:
                return

    found = account(*failing())
    checks = {check.name: check for check in check_aws(found.aws, REGION, NOW)}
    assert checks["quotas"].ok is None
    assert "ServiceException" in checks["quotas"].detail


def test_an_answer_without_a_date_says_nothing_about_the_clock():
    assert aws_checks._clock({}) == Check("clock", None, "AWS's answer had no date to compare with")


class TestWithoutAnAccount:
    def test_expired(self):
        checks = checked(Step("sts", "get_caller_identity", {}, code="ExpiredToken", status=403))
        assert checks["credentials"].ok is False
        assert "sign in again" in checks["credentials"].advice
        assert checks["permissions"] == Check("permissions", None, "not checked: see credentials")
        assert "Spot Advisor feed" in checks

    def test_the_clock_is_so_wrong_that_nobody_can_tell(self):
        checks = checked(Step("sts", "get_caller_identity", {}, code="RequestTimeTooSkewed"))
        assert checks["clock"].ok is False
        assert checks["credentials"].ok is None

    def test_none(self, monkeypatch, tmp_path):
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AWS_PROFILE",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        first, *_ = check_aws(Aws(), REGION, NOW)
        assert (first.name, first.ok) == ("credentials", False)
        assert "aws configure" in first.advice


class TestFeed:
    def test_a_copy(self, monkeypatch):
        from support.spot_advisor import FILE, say, serving

        with serving(say(FILE)) as url:
            monkeypatch.setenv(URL_VARIABLE, url)
            assert aws_checks._advisor(REGION, NOW) == Check(
                "Spot Advisor feed", True, "3 types in us-east-1"
            )

    def test_a_wrong_setting(self, monkeypatch):
        monkeypatch.setenv(URL_VARIABLE, "file:///etc/passwd")
        check = aws_checks._advisor(REGION, NOW)
        assert check.ok is False
        assert URL_VARIABLE in check.detail


class TestPolicy:
    def test_it_is_a_policy_that_only_reads(self):
        document = json.loads(DEFAULT_CLOUD.policy())
        assert document["Version"] == "2012-10-17"
        assert all(s["Effect"] == "Allow" for s in document["Statement"])
        assert all(
            action.partition(":")[2].startswith(("Describe", "Get")) for action in iam_actions()
        )
        assert len(set(iam_actions())) == len(iam_actions()) == 10

    def test_its_actions_exist(self):
        import botocore.session

        session = botocore.session.get_session()
        services = {"servicequotas": "service-quotas"}
        for action in iam_actions():
            service, _, operation = action.partition(":")
            assert (
                operation
                in session.get_service_model(services.get(service, service)).operation_names
            )

    def test_each_action_has_its_check_in_the_same_order(self):
        prefix = {"service-quotas": "servicequotas"}
        probes = [
            f"{prefix.get(service, service)}:{operation}"
            for service, operation, _ in aws_checks._PROBES
        ]
        assert probes == list(iam_actions())

    def test_nothing_else_is_asked_by_the_providers(self):
        """The policy is enough: every operation that the code names is in it."""
        import re
        from pathlib import Path

        code = "".join(file.read_text() for file in Path(aws_checks.__file__).parent.glob("*.py"))
        named = set(re.findall(r'"((?:Describe|Get)[A-Z]\w+)"', code)) - {"GetCallerIdentity"}
        assert named == {action.partition(":")[2] for action in iam_actions()}

    def test_the_recorded_replies_hold_no_secrets(self):
        text = "".join(path.read_text() for path in FOLDER.glob("*.json"))
        assert "AKIA" not in text
        assert "123456789012" in text


def test_a_check_that_fails_never_raises(monkeypatch):
    def broken(*_, **__):
        raise CloudError("x", "network", "y", "z")

    aws = Aws()
    monkeypatch.setattr(aws, "call", broken)
    assert check_aws(aws, REGION, NOW)[0] == Check("credentials", False, "y", "z")
