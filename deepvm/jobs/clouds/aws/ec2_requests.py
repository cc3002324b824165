"""What is sent to EC2 for a machine, what its refusals mean, and what EC2 says of instances."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from decimal import ROUND_FLOOR, Decimal

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.units import MICRO
from deepvm.jobs.decisions.world import Pool

_MEANT = {
    "InsufficientInstanceCapacity": "no capacity now",
    "InsufficientHostCapacity": "no capacity now",
    "InsufficientCapacity": "no capacity now",
    "InsufficientReservedInstanceCapacity": "no capacity now",
    "UnfulfillableCapacity": "no capacity now",
    "SpotMaxPriceTooLow": (
        "the spot price is above the limit of the job (budget.max_price), or that on demand"
    ),
    "MaxSpotInstanceCountExceeded": (
        "the quota of spot vCPUs is used up; request more in the Service Quotas console"
    ),
    "VcpuLimitExceeded": (
        "the quota of vCPUs is used up; request more in the Service Quotas console"
    ),
    "InstanceLimitExceeded": (
        "the quota of instances is used up; request more in the Service Quotas console"
    ),
    "InsufficientFreeAddressesInSubnet": (
        "the subnet has no free address; name another in DEEPVM_AWS_SUBNETS"
    ),
    "InsufficientAddressCapacity": (
        "the subnet has no free address; name another in DEEPVM_AWS_SUBNETS"
    ),
    "Unsupported": "the type does not exist there",
    "UnsupportedOperation": "the type does not exist there",
    "PendingVerification": "AWS is verifying the account; it writes an e-mail when it is done",
    "InvalidFleetConfiguration": "the type does not go with the image; see DEEPVM_AWS_AMI",
    "InvalidAMIID.NotFound": "there is no such image; see DEEPVM_AWS_AMI",
    "InvalidAMIID.Malformed": "there is no such image; see DEEPVM_AWS_AMI",
    "InvalidSubnetID.NotFound": "there is no such subnet; see DEEPVM_AWS_SUBNETS",
    "InvalidGroup.NotFound": "there is no such security group; see DEEPVM_AWS_SECURITY_GROUP",
    "InvalidSecurityGroupID.NotFound": (
        "there is no such security group; see DEEPVM_AWS_SECURITY_GROUP"
    ),
    "InvalidIamInstanceProfile": (
        "there is no such instance profile; see DEEPVM_AWS_INSTANCE_PROFILE"
    ),
    "InvalidParameterValue": "a setting does not fit; see DEEPVM_AWS_*",
    "InvalidParameterCombination": "settings do not go together; see DEEPVM_AWS_*",
    "InvalidLaunchTemplateName.NotFoundException": "the launch template was removed",
    "InvalidLaunchTemplateId.NotFound": "the launch template was removed",
    "UnauthorizedOperation": (
        "not allowed; 'deepvm doctor --iam --for run' prints the policy that jobs need"
    ),
}
"""Refusals after which no machine was made, and what they mean."""
REFUSALS = tuple(_MEANT)
_HOPS = 2
"""A container's packets to the metadata service need one more than the machine's own."""


def template_data(script: str, image: str, profile: str, security_group: str) -> JsonDict:
    """A launch template: all that machines of a job have in common."""
    data: JsonDict = {
        "ImageId": image,
        "UserData": base64.b64encode(script.encode()).decode("ascii"),
        "IamInstanceProfile": {"Name": profile},
        "InstanceInitiatedShutdownBehavior": "terminate",
        # A machine that boots again is of no use
        "MaintenanceOptions": {"AutoRecovery": "disabled"},
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": _HOPS,
            "InstanceMetadataTags": "enabled",
        },
    }
    if security_group:
        data["SecurityGroupIds"] = [security_group]
    return data


LEAST_MAX_PRICE = Decimal("0.001")
"""AWS takes no maximum price that is not above this, $/h."""


def fleet_request(
    pool: Pool,
    template: str,
    subnets: Mapping[str, str],
    token: str,
    tags: Mapping[str, str],
    most_usd_per_hour: float | None = None,
) -> JsonDict:
    """One machine of a pool, now or not at all.

    ``subnets``: of each zone that will do, the preferred first.

    ``most_usd_per_hour``: no more for it, and for a spot machine at no time.
    """
    spot = pool.market == "spot"
    limit = _limit(most_usd_per_hour)
    each = {"MaxPrice": limit} if limit and spot else {}
    total = {"MaxTotalPrice": limit} if limit else {}
    overrides = [
        {"InstanceType": pool.instance_type, "SubnetId": subnet, "Priority": float(place), **each}
        for place, subnet in enumerate(subnets.values())
    ]
    request: JsonDict = {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": template,
                    "Version": "$Latest",
                },
                "Overrides": overrides,
            }
        ],
        "TargetCapacitySpecification": {
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": "spot" if spot else "on-demand",
        },
        "TagSpecifications": [
            {"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}
        ],
    }
    if spot:
        request["SpotOptions"] = {
            "AllocationStrategy": "price-capacity-optimized",
            "InstanceInterruptionBehavior": "terminate",
            **total,
        }
    else:
        request["OnDemandOptions"] = {"AllocationStrategy": "prioritized", **total}
    return request


def _limit(most_usd_per_hour: float | None) -> str:
    """A limit as AWS writes it; empty for none, or one that AWS would refuse."""
    if most_usd_per_hour is None:
        return ""
    exact = Decimal(str(most_usd_per_hour)).quantize(MICRO, rounding=ROUND_FLOOR)
    if exact > LEAST_MAX_PRICE:
        return f"{exact.normalize():f}"
    return ""


def refusal(pool: Pool, codes: Iterable[str], most_usd_per_hour: float | None = None) -> str:
    """One line for a machine that was not made; ``most_usd_per_hour``: what it was to cost at most.

    For an on-demand machine above that AWS gives no reason of its own.
    """
    none = "no reason given"
    if limit := _limit(most_usd_per_hour):
        none += (
            "; perhaps it costs more than the limit of the job (budget.max_price) leaves it,"
            f" {limit} $/h"
        )
    found = dict.fromkeys(code for code in codes if code) or {none: None}
    reasons = "; ".join(f"{_MEANT[code]} ({code})" if code in _MEANT else code for code in found)
    return f"{pool.instance_type} in {pool.zone}, {pool.market}: {reasons}"


ALIVE = ("pending", "running", "stopping", "stopped")
"""A stopped one still costs its disk and may restart; from shutting-down on, none is billed."""
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


@dataclass(frozen=True)
class Instance:
    """An instance; ``machine``: the name of its request.

    Times in seconds since the epoch, None if unknown.

    ``taken``: AWS has ended it, or could not start it.
    """

    id: str
    machine: str
    zone: str
    launched_s: float
    alive: bool = True
    ended_s: float | None = None
    taken: bool = False


def instance_of_row(row: JsonObject, machine_tag: str) -> Instance:
    """An instance of the answer of DescribeInstances."""
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags") or ()}
    launched_s = row["LaunchTime"].timestamp()
    alive = row["State"]["Name"] in ALIVE
    reasons = [
        str((row.get("StateReason") or {}).get("Code", "")),
        str(row.get("StateTransitionReason") or ""),
    ]
    ended_s = None if alive else ended_of(reasons[-1])
    return Instance(
        row["InstanceId"],
        tags.get(machine_tag, ""),
        str((row.get("Placement") or {}).get("AvailabilityZone", "")),
        launched_s,
        alive,
        None if ended_s is None else max(ended_s, launched_s),
        # Such as Server.SpotInstanceTermination; else Client.InstanceInitiatedShutdown, or who has
        # asked for its end.
        any(reason.startswith("Server.") for reason in reasons),
    )


def ended_of(reason: str) -> float | None:
    """The time in a reason such as ``User initiated (2026-11-21 09:00:00 GMT)``, if any."""
    found = _WHEN.search(reason)
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc).timestamp()


def kept(instances: Iterable[Instance]) -> dict[str, Instance]:
    """The instance that counts of each machine: the oldest that lives, else the oldest."""
    found: dict[str, Instance] = {}
    for instance in sorted(instances, key=lambda i: (not i.alive, i.launched_s, i.id)):
        found.setdefault(instance.machine, instance)
    return found
