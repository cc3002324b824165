"""Checks of ``deepvm doctor``: credentials, clock, each permission, quotas, the Spot Advisor feed.

Every check is one small read-only request; nothing is started or changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deepvm.catalog.clouds.aws.client import Aws, clock_skew_s
from deepvm.catalog.clouds.aws.errors import MOST_SKEW_S, Question
from deepvm.catalog.clouds.aws.providers import PRICING_REGION, QuotasProvider
from deepvm.catalog.clouds.aws.quota_codes import FAMILIES
from deepvm.catalog.clouds.aws.spot_advisor import AdvisorProvider
from deepvm.catalog.signals.cloud import Check
from deepvm.catalog.signals.signal import Signal
from deepvm.core.cluster.instances import Market
from deepvm.errors import CloudError, DeepVMError

WARNING_SKEW_S = 60.0
"""A clock that is off by so much soon will be off by too much."""

_FAMILIES = ("Standard", "G and VT", "P")
_ALLOWED = "DryRunOperation"
_NO_QUOTA = "NoSuchResourceException"
_A_QUOTA = FAMILIES["G and VT"].spot_code


@dataclass(frozen=True)
class _Probe:
    """The smallest request that needs a permission; ``dry``: AWS can be asked without doing it."""

    service: str
    operation: str
    parameters: Mapping[str, Any]
    dry: bool = True


_PROBES = (
    _Probe("ec2", "DescribeInstanceTypes", {"InstanceTypes": ["t3.micro"]}),
    _Probe("ec2", "DescribeInstanceTypeOfferings", {"MaxResults": 5}),
    _Probe("ec2", "DescribeAvailabilityZones", {}),
    _Probe("ec2", "DescribeRegions", {}),
    _Probe("ec2", "DescribeSpotPriceHistory", {"InstanceTypes": ["t3.micro"], "MaxResults": 1}),
    _Probe(
        *("ec2", "GetSpotPlacementScores"),
        {"InstanceTypes": ["t3.micro", "t3.small", "t3.medium"], "TargetCapacity": 1, "SingleAvailabilityZone": True},
    ),
    _Probe("ec2", "DescribeInstances", {"MaxResults": 5}),
    _Probe("pricing", "GetProducts", {"ServiceCode": "AmazonEC2", "MaxResults": 1}, dry=False),
    _Probe("service-quotas", "GetServiceQuota", {"ServiceCode": "ec2", "QuotaCode": _A_QUOTA}, dry=False),
    _Probe("service-quotas", "GetAWSDefaultServiceQuota", {"ServiceCode": "ec2", "QuotaCode": _A_QUOTA}, dry=False),
)


def check_aws(aws: Aws, region: str, now: datetime) -> tuple[Check, ...]:
    """Check everything that live data needs. Blocks for at most a few minutes; what fails is no exception.

    Args:
        aws: the account.
        region: where to look.
        now: the time, UTC.
    """
    question = Question("sts", "GetCallerIdentity", region)
    try:
        identity = aws.call(question)
    except CloudError as error:
        checks = _failed_identity(error)
    else:
        account = Check("credentials", True, f"account {identity.get('Account')} as {identity.get('Arn')}")
        permissions = aws.each(lambda probe: _permission(aws, region, probe), _PROBES)
        checks = (account, _clock(identity), *permissions, *_quotas(aws, region, now))
    return (*checks, _advisor(region, now))


def _failed_identity(error: CloudError) -> tuple[Check, ...]:
    if error.why == "clock":
        unknown = Check("credentials", None, "not checked: AWS refuses requests from another time", "")
        return (unknown, Check("clock", False, error.detail, error.advice), *_unchecked("the clock is wrong"))
    missing = {"credentials": "no usable credentials", "expired": "the credentials have expired"}
    reason = missing.get(error.why, "AWS could not be asked")
    return (Check("credentials", False, error.detail, error.advice), *_unchecked(reason))


def _unchecked(reason: str) -> tuple[Check, ...]:
    return tuple(Check(name, None, f"not checked: {reason}") for name in ("permissions", "quotas"))


def _clock(reply: Mapping[str, Any]) -> Check:
    skew = clock_skew_s(reply)
    if skew is None:
        return Check("clock", None, "AWS's answer had no date to compare with")
    found = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} AWS"
    # The date has whole seconds, and the answer was under way for a while.
    if abs(skew) <= WARNING_SKEW_S:
        return Check("clock", True, found if abs(skew) >= 5 else "agrees with AWS")
    refused = f"; AWS refuses requests that are more than {MOST_SKEW_S:.0f} s off"
    advice = "set the clock, for example with 'sudo timedatectl set-ntp true'"
    return Check("clock", False if abs(skew) > MOST_SKEW_S else None, found + refused, advice)


def _permission(aws: Aws, region: str, probe: _Probe) -> Check:
    question = Question(probe.service, probe.operation, PRICING_REGION if probe.service == "pricing" else region)
    name = f"permission {question.action}"
    extra = {"DryRun": True} if probe.dry else {}
    try:
        try:
            aws.call_or_code(question, (_ALLOWED, _NO_QUOTA), **probe.parameters, **extra)
        except CloudError as error:
            # Some places do not know dry runs; scores are then left alone, because the real call is rationed.
            if not probe.dry or error.why != "reply" or probe.operation == "GetSpotPlacementScores":
                raise
            aws.call_or_code(question, (), **probe.parameters)
    except CloudError as error:
        return Check(name, False if error.why == "permission" else None, error.detail, error.advice)
    return Check(name, True, "allowed")


def _quotas(aws: Aws, region: str, now: datetime) -> tuple[Check, ...]:
    try:
        signal = QuotasProvider(aws).fetch(region, now)
    except CloudError as error:
        return (Check("quotas", None, error.detail, error.advice),)
    return tuple(_quota(signal, family, market) for family in _FAMILIES for market in (Market.SPOT, Market.ON_DEMAND))


def _quota(signal: Signal, name: str, market: Market) -> Check:
    family = FAMILIES[name]
    title, code = f"quota {name}, {market.value}", family.code(market)
    row = next((r for r in signal.data if r["code"] == code), None)
    if row is None:
        return Check(title, None, f"AWS knows no quota {family.title(market)} ({code}) in {signal.region}")
    found = f"{row['vcpus']} vCPUs, {row['in_use']} in use"
    if row["in_use"] < row["vcpus"]:
        return Check(title, True, found)
    advice = f"request more of {family.title(market)} ({code}) in the Service Quotas console, service Amazon EC2"
    return Check(title, None, found, advice)


def _advisor(region: str, now: datetime) -> Check:
    name = "Spot Advisor feed"
    try:
        signal = AdvisorProvider().fetch(region, now)
    except CloudError as error:
        return Check(name, None, error.detail, error.advice)
    except DeepVMError as error:
        return Check(name, False, str(error), "unset it, or correct it")
    return Check(name, True, f"{len(signal.data)} types in {region}")
