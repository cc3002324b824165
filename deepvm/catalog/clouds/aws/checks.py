"""Checks of ``deepvm doctor``, each one small read-only request."""

from datetime import datetime
from itertools import product

from deepvm.catalog.clouds.aws.client import MAX_SKEW_S, ApiCall, Aws, clock_skew_s
from deepvm.catalog.clouds.aws.providers import PRICING_REGION, AdvisorProvider, aws_providers
from deepvm.catalog.clouds.aws.quota_codes import QUOTA_NAMES
from deepvm.catalog.signals.cloud import Check
from deepvm.catalog.signals.signal import QUOTAS
from deepvm.core.cluster.instances import Market
from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.errors import CloudError, DeepVMError
from deepvm.io.user_dirs import read_data

WARNING_SKEW_S = 60.0  # A larger difference of the clock is a warning

_FAMILIES = ("Standard", "G and VT", "P")
_ALLOWED = "DryRunOperation"
_NO_QUOTA = "NoSuchResourceException"
_PROBES: list[tuple[str, str, JsonDict]] = read_data("aws/probes.json")["probes"]


def check_aws(aws: Aws, region: str, now: datetime) -> tuple[Check, ...]:
    """Check all that live data of a region needs, for minutes at most; failures are results."""
    try:
        identity = aws.call(ApiCall("sts", "GetCallerIdentity", region))
    except CloudError as error:
        checks = _failed_identity(error)
    else:
        who = f"account {identity.get('Account')} as {identity.get('Arn')}"
        account = Check("credentials", True, who)
        permissions = aws.each(lambda probe: _permission(aws, region, *probe), _PROBES)
        checks = (account, _clock(identity), *permissions, *_quotas(aws, region, now))
    return (*checks, _advisor(region, now))


def _failed_identity(error: CloudError) -> tuple[Check, ...]:
    name = "credentials"
    if error.why == "clock":
        name = "clock"
    failed = Check(name, False, error.detail, error.advice)
    skipped = [n for n in ("credentials", "permissions", "quotas") if n != name]
    return (failed, *(Check(n, None, f"not checked: see {name}") for n in skipped))


def _clock(reply: JsonObject) -> Check:
    skew = clock_skew_s(reply)
    if skew is None:
        return Check("clock", None, "AWS's answer had no date to compare with")
    # Small differences prove nothing: the date has whole seconds, and the reply took time.
    if abs(skew) <= WARNING_SKEW_S:
        return Check("clock", True, "agrees with AWS")
    return Check(
        "clock",
        False if abs(skew) > MAX_SKEW_S else None,
        f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} AWS, which refuses requests"
        f" that are more than {MAX_SKEW_S:.0f} s off",
        "set the clock, for example with 'sudo timedatectl set-ntp true'",
    )


def _permission(
    aws: Aws, region: str, service: str, operation: str, parameters: JsonObject
) -> Check:
    call = ApiCall(service, operation, PRICING_REGION if service == "pricing" else region)
    name = f"permission {call.action}"
    parameters = dict(parameters)
    if service == "ec2":
        parameters["DryRun"] = True
    try:
        aws.call(call, (_ALLOWED, _NO_QUOTA), **parameters)
    except CloudError as error:
        return Check(name, False if error.why == "permission" else None, error.detail, error.advice)
    return Check(name, True, "allowed")


def _quotas(aws: Aws, region: str, now: datetime) -> list[Check]:
    try:
        rows = {row["code"]: row for row in aws_providers(aws)[QUOTAS].fetch(region, now).data}
    except CloudError as error:
        return [Check("quotas", None, error.detail, error.advice)]
    checks = []
    for family, market in product(_FAMILIES, (Market.SPOT, Market.ON_DEMAND)):
        code, title = QUOTA_NAMES[family, market]
        name = f"quota {family}, {market.value}"
        row = rows.get(code)
        if row is None:
            checks.append(Check(name, None, f"AWS knows no quota {title} ({code}) in {region}"))
            continue
        detail = f"{row['vcpus']} vCPUs, {row['in_use']} in use"
        more = f"request more of {title} ({code}) in the Service Quotas console, service Amazon EC2"
        if row["in_use"] < row["vcpus"]:
            checks.append(Check(name, True, detail))
        else:
            checks.append(Check(name, None, detail, more))
    return checks


def _advisor(region: str, now: datetime) -> Check:
    name = "Spot Advisor feed"
    try:
        signal = AdvisorProvider().fetch(region, now)
    except CloudError as error:
        return Check(name, None, error.detail, error.advice)
    except DeepVMError as error:
        return Check(name, False, str(error), "unset it, or correct it")
    return Check(name, True, f"{len(signal.data)} types in {region}")
