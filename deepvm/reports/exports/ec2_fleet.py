"""EC2 Fleet: requests for ``aws ec2 create-fleet --cli-input-json file://...``.

Spot VMs that train are a fleet of type ``maintain``: AWS replaces those that are preempted.
On-demand VMs are a fleet of type ``instant``: the reply names them or says why not, and one that
dies is not silently replaced by an empty one that lost the checkpoints.

``MaxPrice`` of each override holds for as long as a spot VM runs; ``MaxTotalPrice`` ends the
starting of VMs, spot and on-demand. AWS advises against ``MaxPrice``, because VMs are interrupted
more often with it; a cluster without it may cost several times its plan.

User data, with which the VMs start their training themselves, can only stand in a launch template:
one is written for each group, unless the user names their own. ``start.sh`` makes role, templates
and fleets, and takes them back.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import MEMORY, Plan, PlannedGroup
from deepvm.errors import RequestError
from deepvm.reports.exports import user_data
from deepvm.reports.exports.base import (
    Export,
    ExportFile,
    ExportOptions,
    comment,
    device_note,
    header,
    places,
    plan_tags,
    tag_value,
    zone_notes,
)
from deepvm.reports.exports.limits import Limited, amount, on_demand_note, within_limit

_THEIRS = frozenset({"launch_template", "memory_launch_template"})
_OURS = frozenset({"image", "memory_image", "key_name", "security_group"})
OPTIONS = frozenset({"max_price", "subnet", *_THEIRS, *_OURS, *user_data.OPTIONS})
CLOUDS: frozenset[str] = frozenset({"aws"})

# start.sh, and AWS, refuse it until it is replaced by the id of an image.
PLACEHOLDER = "<id of your image>"
_PLAIN = re.compile(r"[a-z0-9-]+")
SCRIPT, POLICY = "start.sh", "role-policy.json"


def render(plan: Plan, options: ExportOptions) -> Export:
    """One CreateFleet request (JSON) for each group of VMs.

    Raises:
        RequestError: a subnet in an unknown zone, memory nodes that need a launch template of their
            own, or a price limit below what the plan costs.
    """
    limited = within_limit(plan, options)
    groups = limited.plan.groups
    scripts = {
        g.role: user_data.user_data(limited.plan, g, options, limited.sentence) for g in groups
    }
    files = [
        ExportFile(f"{g.role}-fleet.json", _json(_request(limited, g, options))) for g in groups
    ]
    for group in groups:
        script = scripts[group.role]
        if _theirs(limited.plan, group, options):
            files.append(ExportFile(f"{group.role}-user-data.sh", script, executable=True))
        else:
            template = _template(limited.plan, group, options, script)
            files.append(ExportFile(f"{group.role}-template.json", _json(template)))
    files.append(ExportFile(POLICY, _json(user_data.policy(options))))
    files.append(ExportFile(SCRIPT, _script(limited, options), executable=True))
    return Export(tuple(files), (*_notes(limited, options), *user_data.notes(plan, options)))


def _notes(limited: Limited, options: ExportOptions) -> Iterator[str]:
    plan = limited.plan
    yield f"start: ./{SCRIPT}, which needs the AWS command line and permission to make roles"
    theirs = [g for g in plan.groups if _theirs(plan, g, options)]
    for group in theirs:
        yield (
            f"to fill in: your launch template of {group} needs {group.role}-user-data.sh as its"
            f" user data, the instance profile {user_data.role(options)}, and a new default version"
        )
    if any(
        not image for image in (_image(plan, g, options) for g in plan.groups if g not in theirs)
    ):
        yield f"to fill in: {PLACEHOLDER} in the templates, or --image, --memory-image"
    yield f"stop: ./{SCRIPT} stop; until then AWS replaces spot VMs that are preempted"
    several = len(plan.training.zones) > 1
    if plan.disk is not None:
        yield device_note(plan.disk, "VMs")
    yield from (
        *limited.notes,
        *on_demand_note(limited),
        *zone_notes(plan, options, several=several),
    )


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def _theirs(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    """The name of the user's own launch template for a group, empty without one."""
    if group.role != MEMORY or not (plan.mixes_cpu_architectures or options.memory_launch_template):
        return options.launch_template
    if not options.memory_launch_template and options.launch_template:
        allowed = (
            f"with --memory-launch-template beside it: {plan.training.instance_type} is"
            f" {plan.training.cpu_architecture} and {group.instance_type} is"
            f" {group.vms.cpu_architecture}, so they need different images"
        )
        raise RequestError("launch_template", options.launch_template, allowed)
    return options.memory_launch_template


def _image(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    if group.role != MEMORY:
        return options.image
    return options.memory_image or ("" if plan.mixes_cpu_architectures else options.image)


def _name(group: PlannedGroup, options: ExportOptions) -> str:
    return f"{user_data.role(options)}-{group.role}"


def _template(
    plan: Plan, group: PlannedGroup, options: ExportOptions, script: str
) -> dict[str, Any]:
    """A CreateLaunchTemplate request."""
    tags = [{"Key": key, "Value": value} for key, value in plan_tags(plan, group).items()]
    data: dict[str, Any] = {
        "ImageId": _image(plan, group, options) or PLACEHOLDER,
        "IamInstanceProfile": {"Name": user_data.role(options)},
        "MetadataOptions": {"HttpTokens": "required"},
        "UserData": b64encode(script.encode()).decode(),
    }
    if options.key_name:
        data["KeyName"] = options.key_name
    if options.security_group:
        data["SecurityGroupIds"] = list(options.security_group)
    if group.market is Market.SPOT:  # a fleet of type maintain cannot tag its instances
        data["TagSpecifications"] = [{"ResourceType": "instance", "Tags": tags}]
    return {"LaunchTemplateName": _name(group, options), "LaunchTemplateData": data}


def _script(limited: Limited, options: ExportOptions) -> str:
    plan = limited.plan
    # The memory nodes first: those that train wait for them.
    groups = sorted(plan.groups, key=lambda g: g.market is Market.SPOT)
    ours = [g for g in groups if not _theirs(plan, g, options)]
    region = (
        f"export AWS_REGION={plan.region} AWS_DEFAULT_REGION={plan.region}\n"
        if _PLAIN.fullmatch(plan.region)
        else ""
    )
    remarks = [
        f"./{SCRIPT} starts the VMs; ./{SCRIPT} stop ends them and removes all that was made, but"
        " no checkpoints."
    ]
    return (
        "#!/usr/bin/env bash\n"
        + comment([*header(plan, limited.sentence), *remarks])
        + _SCRIPT.format(
            region=region,
            role=user_data.role(options),
            job=user_data.job(options),
            trust=json.dumps(user_data.TRUST),
            policy=POLICY,
            roles=" ".join(g.role for g in groups),
            templates=" ".join(g.role for g in ours),
        )
    )


def _request(limited: Limited, group: PlannedGroup, options: ExportOptions) -> dict[str, Any]:
    plan, limit, spot = limited.plan, limited.of(group), group.market is Market.SPOT
    total = {"MaxTotalPrice": amount(limit.usd_per_hour)} if limit else {}
    request: dict[str, Any] = {"Type": "maintain" if spot else "instant"}
    if spot:
        request["SpotOptions"] = {"AllocationStrategy": "price-capacity-optimized", **total}
        request["ExcessCapacityTerminationPolicy"] = "termination"
    else:
        # The price is the same everywhere: stay near the VMs that train, and take another zone only
        # when that is full.
        request["OnDemandOptions"] = {"AllocationStrategy": "prioritized", **total}
    overrides = []
    for priority, (zone, subnet) in enumerate(places(plan, options)):
        override: dict[str, Any] = {"InstanceType": group.instance_type}
        if subnet:
            # A subnet is in one zone, which must not be named a second time
            override["SubnetId"] = subnet
        elif zone is not None:
            # Not its name: names mean other zones in other accounts, and a plan may be carried from
            # one to another.
            override["AvailabilityZoneId"] = zone.zone
        if not spot:
            override["Priority"] = float(priority)
        elif limit:
            override["MaxPrice"] = amount(limit.vm_usd_per_hour)
        overrides.append(override)
    name = _theirs(plan, group, options) or _name(group, options)
    template = {"LaunchTemplateName": name, "Version": "$Default"}
    request["LaunchTemplateConfigs"] = [
        {"LaunchTemplateSpecification": template, "Overrides": overrides}
    ]
    request["TargetCapacitySpecification"] = {
        "TotalTargetCapacity": group.count,
        "SpotTargetCapacity": group.count if spot else 0,
        "OnDemandTargetCapacity": 0 if spot else group.count,
        "DefaultTargetCapacityType": group.market.value,
    }
    tags = [{"Key": key, "Value": value} for key, value in plan_tags(plan, group).items()]
    # JSON has no comments: what the header says elsewhere stands in tags.
    source = (
        [{"Key": "deepvm:source", "Value": tag_value(plan.source.source)}]
        if plan.source.source
        else []
    )
    request["TagSpecifications"] = [{"ResourceType": "fleet", "Tags": tags + source}]
    if not spot:  # AWS takes tags of instances only for fleets of type instant
        request["TagSpecifications"].append({"ResourceType": "instance", "Tags": tags})
    return request


# EC2 knows a new instance profile only some seconds after IAM does. Fleets of type instant name
# their VMs in describe-fleets, the others in describe-fleet-instances. The role stays until all VMs
# have ended: they still save.
_SCRIPT = r"""set -euo pipefail

cd "$(dirname "${{BASH_SOURCE[0]}}")"
{region}export AWS_PAGER=""
role={role}

if [ "${{1:-}}" = stop ]; then
  if [ -s fleets ]; then
    for fleet in $(cat fleets); do
      aws ec2 describe-fleets --fleet-ids "$fleet" --query "Fleets[].Instances[].InstanceIds[]" --output text || true
      aws ec2 describe-fleet-instances --fleet-id "$fleet" --query "ActiveInstances[].InstanceId" --output text || true
    done 2> /dev/null | grep -o "i-[0-9a-f]*" >> vms || true
    left="$(aws ec2 delete-fleets --terminate-instances --fleet-ids $(cat fleets) \
      --query "UnsuccessfulFleetDeletions[].[FleetId,Error.Code,Error.Message]" --output text)"
    printf '%s\n' "$left" | grep -o "^fleet-[0-9a-f-]*" > fleets || true
    if [ -s fleets ]; then
      printf '%s\n' "not deleted: run ./start.sh stop again, or take those that are gone out of fleets:" "$left" >&2
      exit 5
    fi
    rm fleets
  fi
  if [ -s vms ]; then
    echo "waiting until all VMs have saved and ended"
    vms="$(sort -u vms | paste -sd , -)"
    while true; do
      left="$(aws ec2 describe-instances --output text --query "Reservations[].Instances[].InstanceId" \
        --filters "Name=instance-id,Values=$vms" \
        Name=instance-state-name,Values=pending,running,stopping,stopped,shutting-down)"
      [ -n "$left" ] || break
      sleep "${{LOOK_S:-5}}"
    done
    rm vms
  fi
  for group in {templates}; do
    aws ec2 delete-launch-template --launch-template-name "$role-$group" > /dev/null || true
  done
  names="$(aws ssm get-parameters-by-path --recursive --path "/deepvm/{job}" --query "Parameters[].Name" --output text)"
  for name in $names; do
    aws ssm delete-parameter --name "$name"
  done
  aws iam remove-role-from-instance-profile --instance-profile-name "$role" --role-name "$role" || true
  aws iam delete-instance-profile --instance-profile-name "$role" || true
  aws iam delete-role-policy --role-name "$role" --policy-name deepvm || true
  aws iam delete-role --role-name "$role" || true
  exit 0
fi

if grep -l '"<' ./*.json; then
  echo "fill in what stands between < and > in the files above" >&2
  exit 2
fi
if [ -s fleets ]; then
  echo "fleets: these run already: $(cat fleets); ./start.sh stop ends them" >&2
  exit 2
fi
if ! aws iam get-instance-profile --instance-profile-name "$role" > /dev/null 2>&1; then
  aws iam create-role --role-name "$role" --assume-role-policy-document '{trust}' > /dev/null
  aws iam put-role-policy --role-name "$role" --policy-name deepvm --policy-document file://{policy}
  aws iam create-instance-profile --instance-profile-name "$role" > /dev/null
  aws iam add-role-to-instance-profile --instance-profile-name "$role" --role-name "$role"
  sleep "${{PROFILE_S:-15}}"
fi
for group in {templates}; do
  aws ec2 create-launch-template --cli-input-json "file://$group-template.json" > /dev/null
done
for group in {roles}; do
  fleet="$(aws ec2 create-fleet --cli-input-json "file://$group-fleet.json" --output json)"
  printf '%s\n' "$fleet"
  printf '%s\n' "$fleet" | sed -n 's/.*"FleetId": "\([^"]*\)".*/\1/p' >> fleets
  if printf '%s' "$fleet" | grep -q '"ErrorMessage"' && ! printf '%s' "$fleet" | grep -q '"InstanceIds"'; then
    echo "$group: no VM started, see above; ./start.sh stop takes back what did" >&2
    exit 5
  fi
done
"""
