"""SkyPilot: a task file for each kind of VM.

All nodes of a SkyPilot cluster are alike, so a plan of spot and on-demand VMs becomes two tasks, which are started one
after the other: first the on-demand one, then the spot one, which is told the addresses of the first. What it must be
told stands as ``null`` under ``envs``: SkyPilot refuses to start a task with such a variable until it is given.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import ANCHOR, MEMORY, TRAINING, Plan, PlannedGroup
from deepvm.reports.exports.base import (
    JOIN_TIMEOUT_S,
    RENDEZVOUS_PORT,
    Export,
    ExportFile,
    ExportOptions,
    comment,
    header,
)

OPTIONS = frozenset({"image", "memory_image", "command"})

# GPU models that SkyPilot's AWS catalog calls as AWS and deepvm do. Under another name the instance type would not
# match, and the type alone says which GPUs it has.
_SAME_NAMES = frozenset({"T4", "T4g", "A10G", "M60", "V100", "K80", "L4", "L40S", "H100", "H200"})
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")
# resources.max_hourly_cost (from 0.13 on) sorts out types while the optimizer looks for one, by the prices of
# SkyPilot's own catalog; a VM gets no bid and nothing watches its price. Written here it would look like a limit.
_NO_LIMIT = (
    "Spot prices move, and SkyPilot holds no VM to a price: its max_hourly_cost filters types by the prices in its own "
    "catalog before it starts one. A spot VM costs at most its on-demand price."
)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")


def render(plan: Plan, options: ExportOptions) -> Export:
    """A task file (YAML) for each group of VMs."""
    files = [ExportFile(f"{g.role}.yaml", _text(plan, g, options)) for g in plan.groups]
    return Export(tuple(files), tuple(_notes(plan, options)))


def _text(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    environment = _environment(plan, group, options)
    task: dict[str, Any] = {
        "name": f"deepvm-{group.role}",
        "num_nodes": group.count,
        "resources": {"any_of": _resources(plan, group, options)},
        **({"envs": environment} if environment else {}),
        "run": _run(plan, group, options),
    }
    return comment([*header(plan, _NO_LIMIT), *_remarks(plan, group)]) + _yaml(task)


def _remarks(plan: Plan, group: PlannedGroup) -> list[str]:
    others = [g for g in plan.groups if g != group]
    lines = []
    if others:
        lines.append(
            f"This file starts {group}. A SkyPilot cluster has nodes of one kind only: "
            f"{', '.join(f'{g.role}.yaml starts {g}' for g in others)}."
        )
    unnamed = [z.zone for z in plan.training.zones if not z.name]
    if unnamed and group.market is Market.SPOT:
        lines.append(
            f"SkyPilot knows zones by name only, and the plan has no names of {', '.join(unnamed)}: any zone of the "
            "region may be used."
        )
    return lines


def _resources(plan: Plan, group: PlannedGroup, options: ExportOptions) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {"instance_type": group.instance_type, "use_spot": group.market is Market.SPOT}
    vms, image = group.vms, options.image
    if vms.gpu_name in _SAME_NAMES and vms.gpus_per_vm:
        entry["accelerators"] = {vms.gpu_name: vms.gpus_per_vm}
    if group.role == MEMORY:
        # A GPU image for another CPU cannot start; SkyPilot's own image for the type can.
        image = options.memory_image or ("" if plan.mixes_cpu_architectures else image)
    if image:
        entry["image_id"] = image
    region, zones = f"aws/{plan.region}" if plan.region else "aws", plan.training.zones
    if not plan.region or not zones or not all(z.name for z in zones):
        return [{"infra": region, **entry}]
    return [{"infra": f"{region}/{z.name}", **entry} for z in zones]


def _environment(plan: Plan, group: PlannedGroup, options: ExportOptions) -> dict[str, None]:
    """Variables that must be given at the start."""
    needed = []
    if group.role != MEMORY and not options.command:
        needed.append("TRAINING_COMMAND")
    if group.role == TRAINING:
        needed += [_addresses(g) for g in plan.groups if g != group]
    return dict.fromkeys(needed)


def _addresses(group: PlannedGroup) -> str:
    return f"{_NOT_IN_A_NAME.sub('_', group.role).upper()}_ADDRESSES"


def _run(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    told = f'echo "{_addresses(group)}=$(echo "$SKYPILOT_NODE_IPS" | paste -sd, -)"'
    if group.role == MEMORY:
        return f"{told}\n"
    lines = ["set -eu"] if group.role == TRAINING else ["set -eu", told]
    arguments = shlex.join(options.words)
    if not options.command:
        # Quotes inside the variable count, as they do where the command is typed.
        lines.append('eval "set -- $TRAINING_COMMAND"')
        arguments = '"$@"'
    words = ["torchrun", *_rendezvous_flags(plan, group), '--nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE"', arguments]
    return "\n".join([*lines, " \\\n  ".join(words)]) + "\n"


def _rendezvous_flags(plan: Plan, group: PlannedGroup) -> list[str]:
    """Flags of torchrun that say where the VMs meet."""
    first = '"$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"'
    if all(g.role != ANCHOR for g in plan.groups):  # all VMs that train are one cluster
        return [
            '--nnodes "$SKYPILOT_NUM_NODES"',
            '--node-rank "$SKYPILOT_NODE_RANK"',
            f"--master-addr {first}",
            f"--master-port {RENDEZVOUS_PORT}",
        ]
    host, is_host = '"${ANCHOR_ADDRESSES%%,*}"', "false"
    if group.role == ANCHOR:
        # Every VM of the anchor's cluster but its first is a guest, like the spot VMs.
        host, is_host = first, '$([ "$SKYPILOT_NODE_RANK" = 0 ] && echo true || echo false)'
    return [
        f"--nnodes {plan.training_count}",
        "--rdzv-backend c10d",
        "--rdzv-id deepvm",
        f"--rdzv-endpoint {host}:{RENDEZVOUS_PORT}",
        f'--rdzv-conf "join_timeout={JOIN_TIMEOUT_S},is_host={is_host}"',
    ]


def _notes(plan: Plan, options: ExportOptions) -> list[str]:
    notes = []
    groups = sorted(plan.groups, key=lambda g: g.role == TRAINING)
    for group in groups:
        given = "".join(f" --env {name}=..." for name in _environment(plan, group, options))
        if group.market is Market.SPOT:
            notes.append(f"start: sky jobs launch {group.role}.yaml{given}")
        else:
            notes.append(f"start: sky launch -c deepvm-{group.role} --detach-run {group.role}.yaml{given}")
    if len(groups) > 1:
        wanted = " and ".join(_addresses(g) for g in groups if g.role != TRAINING)
        notes.append(
            f"{wanted}: private addresses, separated by commas; the log of the on-demand cluster prints them. "
            "The nodes of a SkyPilot cluster are alike, so on-demand and spot VMs are two clusters, which must be able "
            "to reach each other"
        )
    if any(g.market is Market.SPOT for g in groups):
        notes.append("SkyPilot enforces no price limit; --to ec2-fleet and --to terraform write one")
    return notes


def _yaml(document: dict[str, Any]) -> str:
    """YAML in the order of the document, scripts as blocks."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: object) -> bool:
            return True  # the same GPUs in every zone are written out, for readers

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        # As line breaks, YAML would read the unusual ones as plain ones.
        odd = _ODD_BREAKS.search(value)
        return dumper.represent_scalar(
            "tag:yaml.org,2002:str", value, style='"' if odd else "|" if "\n" in value else None
        )

    Dumper.add_representer(str, text)
    written: str = yaml.dump(
        document, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=1_000_000
    )
    return written
