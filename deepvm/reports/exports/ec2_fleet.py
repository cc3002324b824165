"""EC2 Fleet: requests for ``aws ec2 create-fleet --cli-input-json file://...``.

Spot VMs that train are a fleet of type ``maintain``: AWS replaces those that are preempted. On-demand VMs are a fleet
of type ``instant``: the reply names them or says why not, and one that dies is not silently replaced by an empty one
that lost the checkpoints.

``MaxPrice`` of each override holds for as long as a spot VM runs; ``MaxTotalPrice`` ends the starting of VMs, spot and
on-demand. AWS advises against ``MaxPrice``, because VMs are interrupted more often with it; a cluster without it may
cost several times its plan.
"""

from __future__ import annotations

import json
from typing import Any

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import MEMORY, Plan, PlannedGroup
from deepvm.errors import RequestError
from deepvm.reports.exports.base import Export, ExportFile, ExportOptions, places, plan_tags, tag_value, zone_notes
from deepvm.reports.exports.limits import Limited, amount, on_demand_note, within_limit

OPTIONS = frozenset({"launch_template", "max_price", "memory_launch_template", "subnet"})
# Not a name that a launch template can have: AWS refuses the request until it is replaced.
PLACEHOLDER = "<name of your launch template>"
MEMORY_PLACEHOLDER = "<name of your launch template for memory nodes>"


def render(plan: Plan, options: ExportOptions) -> Export:
    """One CreateFleet request (JSON) for each group of VMs.

    Raises:
        RequestError: a subnet in an unknown zone, memory nodes that need a launch template of their own, or a price
            limit below what the plan costs.
    """
    limited = within_limit(plan, options)
    requests = {f"{g.role}-fleet.json": _request(limited, g, options) for g in limited.plan.groups}
    files = (ExportFile(name, json.dumps(request, indent=2) + "\n") for name, request in requests.items())
    region = f" --region {plan.region}" if plan.region else ""
    notes = [f"start: aws ec2 create-fleet{region} --cli-input-json file://{name}" for name in requests]
    if not options.launch_template:
        notes.append(
            "to fill in: the name of your launch template (image, key pair, security groups) in each file, "
            "or --launch-template NAME"
        )
    notes.append(
        "stop: aws ec2 delete-fleets --terminate-instances; until then AWS replaces spot VMs that are preempted"
    )
    several = len(limited.plan.training.zones) > 1
    notes += [*limited.notes, *on_demand_note(limited), *zone_notes(limited.plan, options, several=several)]
    return Export(tuple(files), tuple(notes))


def _template(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    if group.role != MEMORY or not (plan.mixes_cpu_architectures or options.memory_launch_template):
        return options.launch_template or PLACEHOLDER
    if not options.memory_launch_template and options.launch_template:
        allowed = (
            f"with --memory-launch-template beside it: {plan.training.instance_type} is "
            f"{plan.training.cpu_architecture} and {group.instance_type} is {group.vms.cpu_architecture}, "
            "so they need different images"
        )
        raise RequestError("launch_template", options.launch_template, allowed)
    return options.memory_launch_template or MEMORY_PLACEHOLDER


def _request(limited: Limited, group: PlannedGroup, options: ExportOptions) -> dict[str, Any]:
    plan, limit, spot = limited.plan, limited.of(group), group.market is Market.SPOT
    total = {"MaxTotalPrice": amount(limit.usd_per_hour)} if limit else {}
    request: dict[str, Any] = {"Type": "maintain" if spot else "instant"}
    if spot:
        request["SpotOptions"] = {"AllocationStrategy": "price-capacity-optimized", **total}
        request["ExcessCapacityTerminationPolicy"] = "termination"
    else:
        # The price is the same everywhere: stay near the VMs that train, and take another zone only when that is full.
        request["OnDemandOptions"] = {"AllocationStrategy": "prioritized", **total}
    overrides = []
    for priority, (zone, subnet) in enumerate(places(plan, options)):
        override: dict[str, Any] = {"InstanceType": group.instance_type}
        if subnet:
            override["SubnetId"] = subnet  # a subnet is in one zone, which must not be named a second time
        elif zone is not None:
            # Not its name: names mean other zones in other accounts, and a plan may be carried from one to another.
            override["AvailabilityZoneId"] = zone.zone
        if not spot:
            override["Priority"] = float(priority)
        elif limit:
            override["MaxPrice"] = amount(limit.vm_usd_per_hour)
        overrides.append(override)
    template = {"LaunchTemplateName": _template(plan, group, options), "Version": "$Default"}
    request["LaunchTemplateConfigs"] = [{"LaunchTemplateSpecification": template, "Overrides": overrides}]
    request["TargetCapacitySpecification"] = {
        "TotalTargetCapacity": group.count,
        "SpotTargetCapacity": group.count if spot else 0,
        "OnDemandTargetCapacity": 0 if spot else group.count,
        "DefaultTargetCapacityType": group.market.value,
    }
    tags = [{"Key": key, "Value": value} for key, value in plan_tags(plan, group).items()]
    # JSON has no comments: what the header says elsewhere stands in tags.
    source = [{"Key": "deepvm:source", "Value": tag_value(plan.source.source)}] if plan.source.source else []
    request["TagSpecifications"] = [{"ResourceType": "fleet", "Tags": tags + source}]
    if not spot:  # AWS takes tags of instances only for fleets of type instant
        request["TagSpecifications"].append({"ResourceType": "instance", "Tags": tags})
    return request
