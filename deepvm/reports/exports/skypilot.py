"""SkyPilot: a task file for each kind of VM.

All nodes of a SkyPilot cluster are alike, so a plan of spot and on-demand VMs becomes two tasks,
which are started one after the other: first the on-demand one, then the spot one, which is told the
addresses of the first. What it must be told stands as ``null`` under ``envs``: SkyPilot refuses to
start a task with such a variable until it is given. The token of the memory nodes is such a
variable under ``secrets``. ``start.sh`` makes the token and gives both.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from deepvm.catalog.clouds import cloud_of
from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import ANCHOR, MEMORY, TRAINING, Plan, PlannedGroup, PlannedVms
from deepvm.errors import RequestError
from deepvm.reports.exports import survival
from deepvm.reports.exports.base import (
    JOIN_TIMEOUT_S,
    RENDEZVOUS_PORT,
    Export,
    ExportFile,
    ExportOptions,
    comment,
    header,
)

OPTIONS = frozenset({"image", "memory_image", "command", "code", *survival.OPTIONS})
CLOUDS: frozenset[str] = frozenset()

SCRIPT = "start.sh"

# GPU models that SkyPilot's AWS catalog calls as AWS and deepvm do. Under another name the instance
# type would not match, and the type alone says which GPUs it has.
_SAME_NAMES = frozenset({"T4", "T4g", "A10G", "M60", "V100", "K80", "L4", "L40S", "H100", "H200"})
_ODD_BREAKS = re.compile("[\r\x85\u2028\u2029\ufeff]")
# resources.max_hourly_cost (from 0.13 on) sorts out types while the optimizer looks for one, by the
# prices of SkyPilot's own catalog; a VM gets no bid and nothing watches its price. Written here it
# would look like a limit.
_NO_LIMIT = (
    "Spot prices move, and SkyPilot holds no VM to a price: its max_hourly_cost filters types by"
    " the prices in its own catalog before it starts one. A spot VM costs at most its on-demand"
    " price."
)
SECRET, TOKEN = "DEEPVM_TOKEN", "$HOME/.deepvm-token"
_GIT = re.compile(r"(https://\S+?\.git)(?:@([\w./-]+))?")
_RUNPOD = re.compile(r"[0-9]+x_.+_(SECURE|COMMUNITY)")
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")


def render(plan: Plan, options: ExportOptions) -> Export:
    """A task file (YAML) for each group of VMs, and a script that starts them.

    Raises:
        RequestError: code from where SkyPilot fetches none; VMs cannot have deepvm; or it has other
            names.
    """
    name = plan.training.instance_type
    if cloud_of(plan.source.catalog).name == "runpod" and not _RUNPOD.fullmatch(name):
        allowed = (
            f"a plan whose types SkyPilot knows, which {name!r} is not: recommend --source skypilot"
        )
        raise RequestError("to", "skypilot", allowed)
    files = [ExportFile(f"{g.role}.yaml", _text(plan, g, options)) for g in plan.groups]
    files += [
        ExportFile(SCRIPT, _script(plan, options), executable=True),
        *survival.carried(options),
    ]
    return Export(tuple(files), tuple(_notes(plan, options)))


def _text(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    environment = _environment(plan, group, options)
    mounts = {f"~/{f.name}": f"./{f.name}" for f in survival.carried(options)}
    task: dict[str, Any] = {
        "name": _cluster(group, options),
        "num_nodes": group.count,
        "resources": {"any_of": _resources(plan, group, options)},
        **({"workdir": _workdir(options.code)} if options.code and group.role != MEMORY else {}),
        **({"envs": environment} if environment else {}),
        **({"secrets": {SECRET: None}} if survival.keepers(plan) else {}),
        **({"file_mounts": mounts} if mounts else {}),
        "setup": survival.install(options, trains=group.role != MEMORY, folder="$HOME"),
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
            f"SkyPilot knows zones by name only, and the plan has no names of {', '.join(unnamed)}:"
            " any zone of the region may be used."
        )
    return lines


def _resources(plan: Plan, group: PlannedGroup, options: ExportOptions) -> list[dict[str, Any]]:
    entry: dict[str, Any] = {
        "instance_type": group.instance_type,
        "use_spot": group.market is Market.SPOT,
    }
    vms, image, cloud = group.vms, options.image, cloud_of(plan.source.catalog).name
    if plan.disk is not None:
        entry["disk_size"] = plan.disk.gb
    if accelerators := _accelerators(cloud, vms):
        entry["accelerators"] = accelerators
    if group.role == MEMORY:
        # A GPU image for another CPU cannot start; SkyPilot's own image for the type can.
        image = options.memory_image or ("" if plan.mixes_cpu_architectures else image)
    if image:
        entry["image_id"] = image
    # RunPod's regions are countries to SkyPilot, and data centres here.
    region, zones = (
        f"{cloud}/{plan.region}" if plan.region and cloud != "runpod" else cloud,
        plan.training.zones,
    )
    if not plan.region or not zones or not all(z.name for z in zones):
        return [{"infra": region, **entry}]
    return [{"infra": f"{region}/{z.name}", **entry} for z in zones]


def _accelerators(cloud: str, vms: PlannedVms) -> dict[str, int]:
    """The GPUs of a type as SkyPilot calls them, where it may want them beside the type.

    Empty where it does not.
    """
    if cloud == "gcp":
        # Only plans of Google Cloud read its names
        from deepvm.catalog.public.skypilot import gcp_gpus

        name, count = gcp_gpus(vms.instance_type)
        return {name: count} if name else {}
    return (
        {vms.gpu_name: vms.gpus_per_vm}
        if cloud == "aws" and vms.gpu_name in _SAME_NAMES and vms.gpus_per_vm
        else {}
    )


def _environment(plan: Plan, group: PlannedGroup, options: ExportOptions) -> dict[str, None]:
    """Variables that must be given at the start."""
    needed = []
    if group.role != MEMORY and not options.command:
        needed.append("TRAINING_COMMAND")
    needed += [_addresses(g) for g in _first(plan, group)]
    return dict.fromkeys(needed)


def _first(plan: Plan, group: PlannedGroup) -> list[PlannedGroup]:
    """The groups whose addresses a group must be told, which are started before it."""
    order = (MEMORY, ANCHOR, TRAINING)
    return [g for g in plan.groups if order.index(g.role) < order.index(group.role)]


def _addresses(group: PlannedGroup) -> str:
    return f"{_NOT_IN_A_NAME.sub('_', group.role).upper()}_ADDRESSES"


def _workdir(code: str) -> str | dict[str, str]:
    if found := _GIT.fullmatch(code):
        return {"url": found[1], **({"ref": found[2]} if found[2] else {})}
    if "://" in code:
        raise RequestError(
            "code", code, "with --to skypilot a folder here, or https://HOST/NAME.git@REF"
        )
    if not Path(code).is_dir():
        raise RequestError("code", code, "a folder that is here, or https://HOST/NAME.git@REF")
    return code


def _run(plan: Plan, group: PlannedGroup, options: ExportOptions) -> str:
    keepers = survival.keepers(plan)
    told = f'echo "{_addresses(group)}=$(echo "$SKYPILOT_NODE_IPS" | paste -sd, -)"'
    lines = ["set -eu"] if group.role == TRAINING else ["set -eu", told]
    if keepers is not None:
        # deepvm takes no token from the environment, which every process started here would
        # inherit.
        lines.append(f'(umask 077; printf %s "${SECRET}" > "{TOKEN}")\nunset {SECRET}')
    if group.role == MEMORY:
        return "\n".join([*lines, "exec " + survival.serve(plan, options, TOKEN)]) + "\n"
    if group == keepers:
        lines.append(survival.serving(plan, options, TOKEN) + "serve")
    hosts = 'echo "$SKYPILOT_NODE_IPS"'
    if keepers is not None and group != keepers:
        hosts = f'echo "${_addresses(keepers)}" | tr , "\\n"'
    lines.append(survival.environment(plan, options, TOKEN, hosts).rstrip())
    arguments = shlex.join(options.words)
    if not options.command:
        # Quotes inside the variable count, as they do where the command is typed.
        lines.append('eval "set -- $TRAINING_COMMAND"')
        arguments = '"$@"'
    start = "deepvm agent --metadata auto -- torchrun"
    words = [
        start,
        *_rendezvous_flags(plan, group),
        '--nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE"',
        arguments,
    ]
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


def _cluster(group: PlannedGroup, options: ExportOptions) -> str:
    return f"{_NOT_IN_A_NAME.sub('-', options.job).strip('-') or 'deepvm'}-{group.role}"


def _script(plan: Plan, options: ExportOptions) -> str:
    """Bash that makes the token, starts what stays, reads its addresses, and starts the rest."""
    usage = "" if options.command else " 'train.py ARGUMENTS'"
    remarks = [
        f"./{SCRIPT}{usage} starts everything; ./{SCRIPT} stop ends it, but keeps checkpoints in"
        " buckets."
    ]
    groups = sorted(plan.groups, key=lambda g: len(_first(plan, g)))
    starts, stops = "", ""
    for group in groups:
        spot, name = group.market is Market.SPOT, _cluster(group, options)
        words = [
            f"sky {'jobs launch' if spot else 'launch'} -y {'-n' if spot else '-c'} {name}"
            " --detach-run"
        ]
        words += [f"--secret {SECRET}"] if survival.keepers(plan) else []
        for variable in _environment(plan, group, options):
            value = "$command" if variable == "TRAINING_COMMAND" else f"${variable}"
            words.append(f'--env "{variable}={value}"')
        starts += f'{" ".join(words)} "$here/{group.role}.yaml"\n'
        stops = (
            f"  sky jobs cancel -y -n {name} || true\n"
            if spot
            else f"  sky down -y {name} || true\n"
        ) + stops
        if group != groups[-1]:
            starts += _ADDRESSES.format(name=name, variable=_addresses(group))
    token = _TOKEN.format(secret=SECRET) if survival.keepers(plan) else ""
    command = "" if options.command else _COMMAND
    top = "#!/usr/bin/env bash\n" + comment([*header(plan, _NO_LIMIT), *remarks])
    return top + _TOP.format(stops=stops) + command + token + starts


def _notes(plan: Plan, options: ExportOptions) -> list[str]:
    usage = "" if options.command else " 'train.py ARGUMENTS'"
    notes = [f"start: ./{SCRIPT}{usage}", f"stop: ./{SCRIPT} stop"]
    if not options.code:
        notes.append(
            "the training script must be on the VMs: --code FOLDER or --code"
            " https://HOST/NAME.git@REF sends it"
        )
    if len(plan.groups) > 1:
        notes.append(
            "the nodes of a SkyPilot cluster are alike, so on-demand and spot VMs are two clusters,"
            " which must be able to reach each other"
        )
    if any(g.market is Market.SPOT for g in plan.groups):
        elsewhere = (
            "; --to ec2-fleet and --to terraform write one"
            if cloud_of(plan.source.catalog).has_api
            else ""
        )
        notes.append(f"SkyPilot enforces no price limit{elsewhere}")
    if plan.disk is not None and plan.disk.kind:
        notes.append(
            f"SkyPilot chooses the kind of disk; the plan counts {plan.disk}: see its disk_tier"
        )
    return [*notes, *survival.notes(plan, options, carries=True)]


_TOP = """set -euo pipefail

here="$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)"
cd "$here"
if [ "${{1:-}}" = stop ]; then
{stops}  exit 0
fi
"""

_COMMAND = """if [ $# -eq 0 ]; then
  echo "usage: $0 'train.py ARGUMENTS'" >&2
  exit 2
fi
command="$*"
"""

_TOKEN = """[ -s "$here/token" ] || (umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > "$here/token")
{secret}="$(cat "$here/token")"
export {secret}
"""

# The cluster's log has them; it is read without following, because the job does not end.
_ADDRESSES = """{variable}=""
for _ in $(seq 60); do
  log="$(sky logs --no-follow {name} 2> /dev/null || true)"
  {variable}="$(sed -n '/{variable}=[0-9]/{{s/.*{variable}=\\([0-9.,]*\\).*/\\1/p;q}}' <<< "$log")"
  [ -z "${variable}" ] || break
  sleep "${{LOOK_S:-10}}"
done
if [ -z "${variable}" ]; then
  echo "the log of {name} does not tell its addresses: sky logs {name}" >&2
  exit 1
fi
"""


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
        document,
        Dumper=Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
        width=1_000_000,
    )
    return written
