"""What is sent to EC2 for a machine, what its refusals mean, and what EC2 says of instances."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.units import MICRO
from deepvm.io.user_dirs import read_data
from deepvm.jobs.decisions.world import Pool
from deepvm.records import dataclass

MACHINE_TAG = "deepvm:machine"
SPOT = "spot"
_TABLE: Any = read_data("aws/jobs.json")
# On demand in us-east-1, of types that are too small for the catalog
HEAD_USD_PER_HOUR: Mapping[str, float] = _TABLE["head_usd_per_hour"]
# Refusals after which no machine was made, and what they mean
_MEANT = {code: text for text, codes in _TABLE["refusals"].items() for code in codes}
REFUSALS = tuple(_MEANT)
_HOPS = 2  # A container's packets to the metadata service need one more than the machine's own
LEAST_MAX_PRICE = Decimal("0.001")  # AWS takes no maximum price that is not above this, $/h
# A stopped one still costs its disk and may restart; from shutting-down on, none is billed
ALIVE = ("pending", "running", "stopping", "stopped")
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")


def tagged(kind: str, tags: Mapping[str, str]) -> list[JsonDict]:
    """The tags of what a request makes."""
    return [{"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]


def tag_is(name: str, value: str) -> JsonDict:
    """The filter for what has a tag."""
    return {"Name": f"tag:{name}", "Values": [value]}


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


def fleet_request(
    pool: Pool,
    template: str,
    subnets: Sequence[str],
    token: str,
    tags: Mapping[str, str],
    most_usd_per_hour: float | None,
) -> JsonDict:
    """One machine of a pool, now or not at all, in one of ``subnets``, the preferred first."""
    limit = _limit(most_usd_per_hour)
    each = {"MaxPrice": limit} if limit and pool.market == SPOT else {}
    overrides = [
        {"InstanceType": pool.instance_type, "SubnetId": subnet, "Priority": float(place), **each}
        for place, subnet in enumerate(subnets)
    ]
    if pool.market == SPOT:
        kind, strategy = "SpotOptions", "price-capacity-optimized"
        options = {"InstanceInterruptionBehavior": "terminate"}
    else:
        kind, strategy, options = "OnDemandOptions", "prioritized", {}
    if limit:
        options["MaxTotalPrice"] = limit
    return {
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
            "DefaultTargetCapacityType": pool.market,
        },
        "TagSpecifications": tagged("instance", tags),
        kind: {"AllocationStrategy": strategy, **options},
    }


def _limit(most_usd_per_hour: float | None) -> str:
    """A limit as AWS writes it; empty for none, or one that AWS would refuse."""
    if most_usd_per_hour is None:
        return ""
    exact = Decimal(str(most_usd_per_hour)).quantize(MICRO, rounding=ROUND_FLOOR)
    if exact > LEAST_MAX_PRICE:
        return f"{exact.normalize():f}"
    return ""


def refusal(pool: Pool, codes: Iterable[str], most_usd_per_hour: float | None = None) -> str:
    """One line for a machine that was not made, for this limit of its price."""
    reasons = "; ".join(
        f"{_MEANT[code]} ({code})" if code in _MEANT else code
        for code in dict.fromkeys(codes)
        if code
    )
    if not reasons:
        reasons = "no reason given"
        if limit := _limit(most_usd_per_hour):
            reasons += (
                "; perhaps it costs more than the limit of the job (budget.max_price) leaves it,"
                f" ${limit}/h"
            )
    return f"{pool.instance_type} in {pool.zone}, {pool.market}: {reasons}"


@dataclass(frozen=True)
class Instance:
    """An instance; times in seconds since the epoch, None if unknown."""

    id: str
    machine: str  # The name of its request
    zone: str
    launched_s: float
    alive: bool = True
    ended_s: float | None = None
    taken: bool = False  # AWS has ended it, or could not start it


def instance_of_row(row: JsonObject) -> Instance:
    """An instance of the answer of DescribeInstances."""
    tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags") or ()}
    launched_s = row["LaunchTime"].timestamp()
    alive = row["State"]["Name"] in ALIVE
    code = str((row.get("StateReason") or {}).get("Code", ""))
    reason = str(row.get("StateTransitionReason") or "")
    ended_s = ended_of(reason)
    if alive:
        ended_s = None
    elif ended_s is not None:
        ended_s = max(ended_s, launched_s)
    # Such as Server.SpotInstanceTermination; else Client.InstanceInitiatedShutdown
    taken = any(text.startswith("Server.") for text in (code, reason))
    zone = str((row.get("Placement") or {}).get("AvailabilityZone", ""))
    return Instance(
        row["InstanceId"], tags.get(MACHINE_TAG, ""), zone, launched_s, alive, ended_s, taken
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
