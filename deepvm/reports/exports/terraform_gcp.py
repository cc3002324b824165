"""Terraform for Google Cloud: one ``main.tf.json`` that starts the VMs of a plan in one zone.

Spot VMs are a managed instance group, which starts another where one is taken back. On-demand VMs
are
``google_compute_instance``: they have addresses that outputs can name. GPUs come with the machine
types.

The VMs run nothing by themselves. (On AWS they meet by a parameter store, which keeps the token out
of the state.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import MEMORY, Plan, PlannedDisk, PlannedGroup
from deepvm.core.spelling import joined
from deepvm.errors import RequestError
from deepvm.reports.exports.base import Export, ExportFile, ExportOptions, header
from deepvm.reports.exports.hcl import expression, literal

OPTIONS = frozenset({"image", "memory_image", "subnet"})

Block = dict[str, Any]
_NO_BIDS = "Google Cloud takes no maximum price."
# These boot from no Persistent Disk:
# https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026; n4 and c4:
# nextflow-io/nextflow issue 6614.
_HYPERDISK = re.compile(r"(a3-ultragpu|a4x?|g4|n4[ad]?|c4[ad]?)-.*")


def render(plan: Plan, options: ExportOptions) -> Export:
    """``main.tf.json``: a configuration with variables, template, group, instances and outputs.

    Raises:
        RequestError: an option that means nothing here, or more than one subnet.
    """
    for option, value in options.given.items():
        if option not in OPTIONS:
            flags = joined([f"--{name.replace('_', '-')}" for name in sorted(OPTIONS)])
            why = (
                _NO_BIDS
                if option == "max_price"
                else "its VMs start no training; --to skypilot does"
            )
            raise RequestError(
                option, value, f"for Google Cloud with --to terraform only {flags}: {why}"
            )
    if len(options.subnet) > 1:
        raise RequestError(
            "subnet", joined([str(s) for s in options.subnet]), "one: the VMs are in one zone"
        )
    configuration = _configuration(plan, options)
    asked = [name for name, block in configuration["variable"].items() if "default" not in block]
    notes = [
        "start: terraform init && terraform apply; stop: terraform destroy",
        f"Terraform asks for {joined(asked)}, unless terraform.tfvars sets them",
        (
            "the VMs start no training: --to torchrun writes what does, for the addresses that"
            " terraform output names; --to skypilot does all of it"
        ),
        (
            "the network's firewall must let the VMs reach each other, as that of a project's"
            " default network does"
        ),
    ]
    notes += [
        f"{group.instance_type} boots from no {plan.disk.kind}, which the plan counts: {kind} is in"
        " its place"
        for group in plan.groups
        if plan.disk is not None
        and plan.disk.kind
        and (kind := _kind(group, plan.disk)) != plan.disk.kind
    ]
    if plan.training.spot_count:
        notes.append(f"no price limit is set: {_NO_BIDS.rstrip('.')}")
        notes.append(
            "when a spot VM is taken back, its group starts another as soon as there is one"
        )
    text = json.dumps(configuration, indent=2, ensure_ascii=False) + "\n"
    return Export((ExportFile("main.tf.json", text),), tuple(notes))


def _configuration(plan: Plan, options: ExportOptions) -> Block:
    resources: Block = {}
    outputs: Block = {}
    for group in plan.groups:
        role, template = group.role, f"google_compute_instance_template.{group.role}"
        if group.market is Market.SPOT:
            resources.setdefault("google_compute_instance_template", {})[role] = _template(
                group, plan.disk
            )
            resources.setdefault("google_compute_instance_group_manager", {})[role] = {
                "name": f"deepvm-{role}",
                "base_instance_name": f"deepvm-{role}",
                "zone": expression("var.zone"),
                "target_size": group.count,
                "version": [{"instance_template": expression(f"{template}.self_link_unique")}],
            }
            name, value = (
                f"{role}_group",
                f"google_compute_instance_group_manager.{role}.instance_group",
            )
            listing = f"gcloud compute instance-groups managed list-instances deepvm-{role}"
            text = f"The group of {group}, which '{listing}' lists."
        else:
            resources.setdefault("google_compute_instance", {})[role] = _instance(group, plan.disk)
            name, value = (
                f"{role}_private_ips",
                f"google_compute_instance.{role}[*].network_interface[0].network_ip",
            )
            text = f"Private addresses of {group}."
        outputs[name] = {"description": text, "value": expression(value)}
    return {
        # Terraform reads "//" as a comment.
        "//": list(header(plan, _NO_BIDS)),
        "terraform": {
            "required_version": ">= 1.3",
            "required_providers": {"google": {"source": "hashicorp/google", "version": ">= 5.0"}},
        },
        "provider": {
            "google": {"project": expression("var.project"), "zone": expression("var.zone")}
        },
        "variable": _variables(plan, options),
        "resource": resources,
        "output": outputs,
    }


def _template(group: PlannedGroup, disk: PlannedDisk | None) -> Block:
    size = {"disk_size_gb": disk.gb} if disk else {}
    boot = {
        "boot": True,
        "auto_delete": True,
        "disk_type": _kind(group, disk),
        **size,
        "source_image": _image(group),
    }
    return {
        "name_prefix": f"deepvm-{group.role}-",
        "machine_type": literal(group.instance_type),
        "disk": [boot],
        "network_interface": _network(),
        "scheduling": [
            {
                "provisioning_model": "SPOT",
                "preemptible": True,
                "automatic_restart": False,
                "on_host_maintenance": "TERMINATE",
                "instance_termination_action": "STOP",
            }
        ],
        "labels": _labels(group),
        # A template cannot change while a group uses it.
        "lifecycle": {"create_before_destroy": True},
    }


def _instance(group: PlannedGroup, disk: PlannedDisk | None) -> Block:
    boot = {
        "image": _image(group),
        "type": _kind(group, disk),
        **({"size": disk.gb} if disk else {}),
    }
    # VMs with GPUs cannot be moved to another host while they run.
    maintained = "TERMINATE" if group.role != MEMORY else "MIGRATE"
    return {
        "count": group.count,
        "name": f"deepvm-{group.role}-" + expression("count.index + 1"),
        "machine_type": literal(group.instance_type),
        "zone": expression("var.zone"),
        "boot_disk": [{"initialize_params": [boot]}],
        "network_interface": _network(),
        "scheduling": [{"automatic_restart": True, "on_host_maintenance": maintained}],
        "labels": _labels(group),
    }


def _network() -> list[Block]:
    # Without an address of its own a VM reaches nothing outside, such as what pip installs, unless
    # there is a NAT.
    default = expression('var.subnetwork == null ? "default" : null')
    return [{"network": default, "subnetwork": expression("var.subnetwork"), "access_config": [{}]}]


def _image(group: PlannedGroup) -> str:
    return expression("var.memory_image" if group.role == MEMORY else "var.image")


def _kind(group: PlannedGroup, disk: PlannedDisk | None) -> str:
    kind = disk.kind if disk is not None else ""
    if _HYPERDISK.fullmatch(group.instance_type):
        return kind if kind.startswith("hyperdisk") else "hyperdisk-balanced"
    return kind or "pd-balanced"


def _labels(group: PlannedGroup) -> dict[str, str]:
    return {"made-by": "deepvm", "role": group.role}


def _variables(plan: Plan, options: ExportOptions) -> Block:
    """What only the user knows.

    Terraform takes defaults and descriptions literally: they hold no templates.
    """
    zones = _zones(plan)
    where = f"The plan may start in {', '.join(zones)}." if zones else "The plan names none."
    variables = {
        "project": {"type": "string", "description": "Project to start the VMs in."},
        "zone": _variable(f"Zone to start the VMs in. {where}", zones[0] if zones else ""),
        "image": _variable(
            f"Image of the VMs that train ({plan.training.instance_type}), with NVIDIA's driver.",
            options.image,
        ),
        "subnetwork": {
            "type": "string",
            "description": "Subnetwork; null for that of the network named default.",
            "default": options.subnet[0].subnet if options.subnet else None,
        },
    }
    if plan.memory is not None:
        # The training image cannot boot on another CPU architecture; Terraform asks for one then.
        shared = "" if plan.mixes_cpu_architectures else options.image
        text = f"Image of the memory nodes, {plan.memory.instance_type}."
        variables["memory_image"] = _variable(text, options.memory_image or shared)
    return variables


def _zones(plan: Plan) -> Sequence[str]:
    """The zones in which all of the plan may start, the one to start in first."""
    offered = [
        vms.offered_in for vms in (plan.training, plan.memory) if vms is not None and vms.offered_in
    ]
    priced = [z.zone for z in sorted(plan.training.zones, key=lambda z: z.zone != plan.zone)]
    named = priced or ([plan.zone] if plan.zone else list(plan.training.offered_in))
    return [zone for zone in named if all(zone in zones for zones in offered)] or named


def _variable(description: str, default: str) -> Block:
    """A variable; without a default, so that Terraform asks for it, when that is empty."""
    return {"type": "string", "description": description} | (
        {"default": default} if default else {}
    )
