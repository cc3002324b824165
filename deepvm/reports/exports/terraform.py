"""Terraform: one ``main.tf.json`` (HCL's JSON form); for Google Cloud see :mod:`.terraform_gcp`.

Spot VMs are an ``aws_ec2_fleet`` of type ``maintain``, on-demand VMs are ``aws_instance``: they
have addresses that outputs can name. Zones are looked up by their ids, because their names differ
between accounts. What only the user knows is a variable; one without a default is asked for by
Terraform.

``max_price`` of each override limits what a spot VM may cost for as long as it runs. The provider
sends no total of a spot fleet, and instances that are bought on demand have a fixed price, for
which it has no limit.

User data starts the training. The role of the VMs, which this configuration makes, lets them meet;
what they keep there is no resource of it, so that the state holds no token.
"""

from __future__ import annotations

import json
from typing import Any

from deepvm.catalog.clouds import cloud_of
from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import MEMORY, Plan, PlannedDisk, PlannedGroup, PlannedVms
from deepvm.core.spelling import joined
from deepvm.errors import RequestError
from deepvm.reports.exports import user_data
from deepvm.reports.exports.base import (
    Export,
    ExportFile,
    ExportOptions,
    device_note,
    header,
    places,
    plan_tags,
    zone_notes,
)
from deepvm.reports.exports.hcl import expression, literal
from deepvm.reports.exports.limits import Limited, amount, within_limit

OPTIONS = frozenset(
    {
        "image",
        "memory_image",
        "key_name",
        "max_price",
        "subnet",
        "security_group",
        *user_data.OPTIONS,
    }
)
CLOUDS: frozenset[str] = frozenset({"aws", "gcp"})

Block = dict[str, Any]
_PROFILE = "${aws_iam_instance_profile.vms.name}"


def render(plan: Plan, options: ExportOptions) -> Export:
    """``main.tf.json``: a configuration with variables, launch template, fleet, instances and outputs.

    Raises:
        RequestError: a subnet in an unknown zone, or a price limit below what the plan costs or
            without a spot VM to hold to it; or an option that another cloud than AWS has no use
            for.
    """
    if cloud_of(plan.source.catalog).name == "gcp":
        from deepvm.reports.exports import terraform_gcp

        return terraform_gcp.render(plan, options)
    limited = _limited(plan, options)
    configuration = _configuration(limited, options)
    asked = [name for name, block in configuration["variable"].items() if "default" not in block]
    notes = ["start: terraform init && terraform apply; stop: terraform destroy"]
    if asked:
        notes.append(f"Terraform asks for {joined(asked)}, unless terraform.tfvars sets them")
    if plan.disk is not None and plan.training.spot_count:
        notes.append(device_note(plan.disk, "spot VMs"))
    notes += limited.notes
    if any(g.market is Market.ON_DEMAND for g in plan.groups):
        notes.append("on-demand prices are fixed, and Terraform has no limit for them")
    several = len(limited.plan.training.zones) > 1 and not options.subnet
    notes += zone_notes(limited.plan, options, several=several)
    notes += user_data.notes(limited.plan, options)
    notes.append(_left(user_data.job(options)))
    text = json.dumps(configuration, indent=2, ensure_ascii=False) + "\n"
    return Export((ExportFile("main.tf.json", text),), tuple(notes))


def _left(job: str) -> str:
    """What the VMs have made, and Terraform does not know."""
    names = (
        f"aws ssm get-parameters-by-path --recursive --path /deepvm/{job} --query"
        " 'Parameters[].Name' --output text"
    )
    remove = f"{names} | xargs -rn 10 aws ssm delete-parameters --names"
    return f"terraform destroy leaves the parameters below /deepvm/{job}/; to remove them: {remove}"


def _limited(plan: Plan, options: ExportOptions) -> Limited:
    if plan.training.spot_count:
        return within_limit(plan, options)
    if options.max_price is not None:
        allowed = (
            f"no such option: {plan} has no spot VMs, and Terraform has no limit for others; --to"
            " ec2-fleet has"
        )
        raise RequestError("max_price", f"{options.max_price:f}", allowed)
    return Limited(plan, None, ())


def _configuration(limited: Limited, options: ExportOptions) -> Block:
    plan = limited.plan
    # Zones are numbered, so that nothing in a zone's id can be taken for syntax.
    lookups: Block = {}
    where: list[Block] = []  # arguments that a fleet's override and an instance share
    for index, (zone, subnet) in enumerate(places(plan, options)):
        if subnet:
            where.append({"subnet_id": expression(f"var.subnet_ids[{index}]")})
        elif zone is not None:
            name = f"zone_{index + 1}"
            lookups[name] = {"zone_id": literal(zone.zone)}
            where.append(
                {"availability_zone": expression(f"data.aws_availability_zone.{name}.name")}
            )
    resources: Block = _role(options)
    outputs: Block = {}
    scripts: Block = {}
    for group in plan.groups:
        role = group.role
        scripts[f"{role}_user_data"] = literal(
            user_data.user_data(plan, group, options, limited.sentence)
        )
        if group.market is Market.SPOT:
            resources.setdefault("aws_launch_template", {})[role] = {
                "name_prefix": f"deepvm-{role}-",
                **_vm(group, "image_id"),
                "iam_instance_profile": [{"name": _PROFILE}],
                "user_data": expression(f"base64encode(local.{role}_user_data)"),
                "tag_specifications": [{"resource_type": "instance", "tags": _tags(plan, group)}],
            }
            resources.setdefault("aws_ec2_fleet", {})[role] = _fleet(limited, group, where or [{}])
            name, value, text = (
                f"{role}_fleet_id",
                f"aws_ec2_fleet.{role}.id",
                f"The fleet of {group}.",
            )
        else:
            resources.setdefault("aws_instance", {})[role] = {
                "count": group.count,
                **_vm(group, "ami"),
                **({"root_block_device": [_root(plan.disk)]} if plan.disk else {}),
                "iam_instance_profile": _PROFILE,
                "user_data": expression(f"local.{role}_user_data"),
                # Newer prices change a comment there: the provider would stop the VM, which holds
                # versions in memory.
                "lifecycle": {"ignore_changes": ["user_data"]},
                **(where[0] if where else {}),
                "tags": _tags(plan, group),
            }
            name, value = f"{role}_private_ips", f"aws_instance.{role}[*].private_ip"
            text = f"Private addresses of {group}."
        outputs[name] = {"description": text, "value": expression(value)}
    return {
        # Terraform reads "//" as a comment.
        "//": list(header(plan, limited.sentence)),
        "terraform": {
            "required_version": ">= 1.3",
            "required_providers": {"aws": {"source": "hashicorp/aws", "version": ">= 5.0"}},
        },
        "provider": {"aws": {"region": expression("var.region")}},
        "variable": _variables(plan, options),
        "locals": scripts,
        **({"data": {"aws_availability_zone": lookups}} if lookups else {}),
        "resource": resources,
        "output": outputs,
    }


def _role(options: ExportOptions) -> Block:
    """The role of the VMs, its policy and its instance profile."""
    name = user_data.role(options)
    role, named = json.dumps(user_data.TRUST), expression("aws_iam_role.vms.name")
    return {
        "aws_iam_role": {"vms": {"name": name, "assume_role_policy": role}},
        "aws_iam_role_policy": {
            "vms": {
                "name": "deepvm",
                "role": named,
                "policy": literal(json.dumps(user_data.policy(options))),
            }
        },
        "aws_iam_instance_profile": {"vms": {"name": name, "role": named}},
    }


def _vm(group: PlannedGroup, image: str) -> Block:
    return {
        image: expression("var.memory_image_id" if group.role == MEMORY else "var.image_id"),
        "instance_type": literal(group.instance_type),
        "key_name": expression("var.key_name"),
        "vpc_security_group_ids": expression("var.security_group_ids"),
        "metadata_options": [{"http_tokens": "required"}],
    }


def _root(disk: PlannedDisk) -> Block:
    return {"volume_size": disk.gb, **({"volume_type": disk.kind} if disk.kind else {})}


def _fleet(limited: Limited, group: PlannedGroup, where: list[Block]) -> Block:
    template, limit = f"aws_launch_template.{group.role}", limited.of(group)
    each = {"max_price": amount(limit.vm_usd_per_hour)} if limit else {}
    return {
        "type": "maintain",
        # Without it the VMs go on running, and costing, after `terraform destroy`.
        "terminate_instances": True,
        "excess_capacity_termination_policy": "termination",
        "spot_options": [{"allocation_strategy": "price-capacity-optimized"}],
        "launch_template_config": [
            {
                "launch_template_specification": [
                    {
                        "launch_template_id": expression(f"{template}.id"),
                        "version": expression(f"{template}.latest_version"),
                    }
                ],
                "override": [
                    {"instance_type": literal(group.instance_type), **place, **each}
                    for place in where
                ],
            }
        ],
        "target_capacity_specification": [
            {
                "default_target_capacity_type": "spot",
                "total_target_capacity": group.count,
                "spot_target_capacity": group.count,
                "on_demand_target_capacity": 0,
            }
        ],
        "tags": _tags(limited.plan, group),
    }


def _tags(plan: Plan, group: PlannedGroup) -> dict[str, str]:
    return {key: literal(value) for key, value in plan_tags(plan, group).items()}


def _variables(plan: Plan, options: ExportOptions) -> Block:
    """What only the user knows.

    Terraform takes defaults and descriptions literally: they hold no templates.
    """
    variables = {
        "region": _variable("string", "Region to start the VMs in.", plan.region),
        "image_id": _variable(
            "string", f"Image (AMI) of the VMs that train, {_cpu(plan.training)}.", options.image
        ),
        "key_name": _variable(
            "string", "Key pair for SSH, null for none.", options.key_name or None, optional=True
        ),
        "security_group_ids": _variable(
            "list(string)",
            "Security groups; empty for the network's default. The VMs must be able to reach each"
            " other.",
            list(options.security_group),
            optional=True,
        ),
    }
    if plan.memory is not None:
        # The training image cannot boot on another CPU architecture; Terraform asks for one then.
        shared = "" if plan.mixes_cpu_architectures else options.image
        text = f"Image (AMI) of the memory nodes, {_cpu(plan.memory)}."
        variables["memory_image_id"] = _variable("string", text, options.memory_image or shared)
    if options.subnet:
        ordered = [subnet for _, subnet in places(plan, options)]
        text = "Subnets, the one to start on-demand VMs in first."
        variables["subnet_ids"] = _variable("list(string)", text, ordered)
    return variables


def _variable(kind: str, description: str, default: object, *, optional: bool = False) -> Block:
    """A variable.

    Without a default, so that Terraform asks for it, when that is empty and it is not optional.
    """
    block: Block = {"type": kind, "description": description}
    if default or optional:
        block["default"] = default
    return block


def _cpu(vms: PlannedVms) -> str:
    return f"for {vms.instance_type}" + (
        f" ({vms.cpu_architecture})" if vms.cpu_architecture else ""
    )
