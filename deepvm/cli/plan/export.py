"""``deepvm export``: a plan as the files of another tool."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from deepvm.cli.output import note, say
from deepvm.cli.parameters import arg, flag, opt
from deepvm.core.units import format_usd, to_decimal
from deepvm.errors import RequestError
from deepvm.reports.exports.registry import REGISTRY

if TYPE_CHECKING:
    Engine = str
    from deepvm.core.cluster.plan import Plan
    from deepvm.reports.exports.base import Subnet
else:
    Engine = Literal[tuple(REGISTRY)]


def export(
    file: Annotated[
        str, arg("PLAN", "Output of `deepvm recommend -o json`; - reads standard input.")
    ],
    to: Annotated[Engine, opt("The tool to write for.")],
    rank: Annotated[str, opt("Which configuration; 1 is the best.", "N")] = "1",
    output_dir: Annotated[
        str, opt("Output folder; without it a single file goes to stdout.", "DIR")
    ] = "",
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    zone: Annotated[list[str], opt("Only this zone of the plan; repeatable.", "ZONE")] = [],  # noqa: B006  typer copies
    command: Annotated[
        str, opt("Training script and its arguments, as after torchrun.", "TEXT")
    ] = "",
    code: Annotated[
        str, opt("Archive or git URL from which the VMs fetch the script (not torchrun).", "URL")
    ] = "",
    image: Annotated[str, opt("Image of the training VMs.", "AMI")] = "",
    memory_image: Annotated[str, opt("Image of the memory nodes; default: --image.", "AMI")] = "",
    launch_template: Annotated[
        str, opt("Launch template of the training VMs (ec2-fleet).", "NAME")
    ] = "",
    memory_launch_template: Annotated[
        str, opt("As --launch-template, of memory nodes.", "NAME")
    ] = "",
    key_name: Annotated[str, opt("SSH key pair.", "NAME")] = "",
    subnet: Annotated[list[str], opt("Only in these subnets; repeatable.", "[ZONE=]ID")] = [],  # noqa: B006
    security_group: Annotated[list[str], opt("Security group of all VMs; repeatable.", "ID")] = [],  # noqa: B006
    job: Annotated[
        str, opt("Name of the training, for its checkpoints; default: training.", "NAME")
    ] = "",
    persist: Annotated[str, opt("Bucket or folder that keeps checkpoints for good.", "URL")] = "",
    package: Annotated[
        str, opt("What pip installs on the VMs; default: this deepvm.", "TEXT")
    ] = "",
    max_price: Annotated[
        str | None,
        opt(
            "Price limit of all VMs, $/h (ec2-fleet, terraform); default: the plan's price + 20 %.",
            "USD",
        ),
    ] = None,
) -> None:
    """Write a plan for SkyPilot, EC2 Fleet, Terraform or torchrun.

    Example: deepvm recommend --pw 3 -o json > plan.json; deepvm export plan.json --to skypilot
    --output-dir job
    """
    from deepvm.catalog.documents.plan_file import decode_plan, load_plan
    from deepvm.io.own_package import own_package
    from deepvm.io.safe_read import MAX_BYTES
    from deepvm.reports.exports.base import ExportOptions, write_export
    from deepvm.reports.exports.registry import render

    subnets = tuple(_subnet(text) for text in subnet)
    if to == "skypilot" and code and "://" not in code:
        code = str(Path(code).resolve())  # SkyPilot would take it as relative to where it is called
    options = ExportOptions(
        image=image,
        memory_image=memory_image,
        key_name=key_name,
        subnet=subnets,
        security_group=tuple(security_group),
        launch_template=launch_template,
        memory_launch_template=memory_launch_template,
        command=command,
        code=code,
        job=job,
        persist=persist,
        package=package,
        own=own_package(),
        max_price=None if max_price is None else to_decimal(max_price, "max_price", unit="$/h"),
    )
    if not rank.isascii() or not rank.isdigit() or len(rank) > 9 or int(rank) < 1:
        raise RequestError("rank", rank, "a whole number >= 1")
    plan = (
        decode_plan(sys.stdin.buffer.read(MAX_BYTES + 1), int(rank))
        if file == "-"
        else load_plan(file, int(rank))
    )
    plan = _placed(plan, zone, subnets, limited=max_price is not None)
    found = render(plan, to, options)
    if output_dir:
        for path in write_export(found, Path(output_dir), force=force):
            say(f"{path}: written")
    elif len(found.files) > 1:
        names = ", ".join(f.name for f in found.files)
        raise RequestError("output_dir", "", f"a folder for the files of this export: {names}")
    else:
        sys.stdout.write(found.files[0].text)
    for text in found.notes:
        start = text.removeprefix("start: ")
        note(
            f"start: cd {shlex.quote(output_dir)} && {start}"
            if output_dir and start != text
            else text
        )


def _placed(plan: Plan, zones: list[str], subnets: tuple[Subnet, ...], *, limited: bool) -> Plan:
    """The plan in the named zones, else in all within its budget, which a price limit replaces (``limited``)."""
    if zones:
        chosen = plan.in_zones(zones)
        _left_out(plan, chosen, subnets, "--zone leaves {zones} out")
        return chosen
    sound = plan.sound()
    if plan.memory and sound != plan:
        why = f"{plan.memory.instance_type} is not offered"
        lost = _left_out(plan, sound, subnets, f"{why} in {{zones}}")
        note(f"left out: {lost}, because {why} there")
    if limited or sound.budget is None:
        return sound
    cheap = sound.within_budget()
    if cheap != sound:
        asked = f"the {format_usd(sound.budget)} $/h that was asked for"
        lost = _left_out(
            sound,
            cheap,
            subnets,
            f"it would cost more than {asked} in {{zones}}; --max-price takes more",
        )
        note(
            f"left out: {lost}, because there it would cost more than {asked}; --zone takes one"
            " anyway"
        )
    return cheap


def _left_out(before: Plan, after: Plan, subnets: tuple[Subnet, ...], why: str) -> str:
    """The zones of the first plan that the second lacks, in words.

    Raises RequestError: a subnet is in one of them.
    """
    from deepvm.reports.exports.base import refuse_subnets_in

    left = ", ".join(map(str, after.training.zones))
    lost = [z for z in before.training.zones if z not in after.training.zones]
    for zone in lost:
        refuse_subnets_in(zone, subnets, f"{left}: {why.format(zones=zone)}")
    return ", ".join(map(str, lost))


def _subnet(text: str) -> Subnet:
    from deepvm.reports.exports.base import Subnet

    zone, separator, name = text.rpartition("=")
    if not name or (separator and not zone):
        raise RequestError("subnet", text, "ZONE=SUBNET or SUBNET, such as use1-az4=subnet-0abc")
    return Subnet(name, zone)
