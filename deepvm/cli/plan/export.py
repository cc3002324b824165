"""``deepvm export``: a plan as the files of another tool."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deepvm.cli.output import note, say
from deepvm.reports.exports.registry import REGISTRY

if TYPE_CHECKING:
    Engine = str
    from deepvm.core.cluster.plan import Plan
    from deepvm.reports.exports.base import Subnet
else:
    Engine = Literal[tuple(REGISTRY)]


def export(
    file: Annotated[
        str, typer.Argument(metavar="PLAN", help="What `deepvm recommend -o json` wrote; - reads standard input.")
    ],
    to: Annotated[Engine, typer.Option("--to", help="The tool to write for.")],
    rank: Annotated[str, typer.Option("--rank", metavar="N", help="Which configuration; 1 is the best.")] = "1",
    output_dir: Annotated[
        str,
        typer.Option("--output-dir", metavar="DIR", help="Where to write; without it a single file goes to stdout."),
    ] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    zone: Annotated[
        list[str], typer.Option("--zone", metavar="ZONE", help="Only in this zone of the plan; may be repeated.")
    ] = [],  # noqa: B006  typer copies defaults, and None would hide the list type
    command: Annotated[
        str,
        typer.Option(
            "--command",
            metavar="TEXT",
            help="Training script and its arguments, as behind torchrun.",
        ),
    ] = "",
    image: Annotated[str, typer.Option("--image", metavar="AMI", help="Image of the VMs that train.")] = "",
    memory_image: Annotated[
        str, typer.Option("--memory-image", metavar="AMI", help="Image of the memory nodes, if another.")
    ] = "",
    launch_template: Annotated[
        str, typer.Option("--launch-template", metavar="NAME", help="Your launch template (ec2-fleet).")
    ] = "",
    memory_launch_template: Annotated[
        str, typer.Option("--memory-launch-template", metavar="NAME", help="That of the memory nodes, if another.")
    ] = "",
    key_name: Annotated[str, typer.Option("--key-name", metavar="NAME", help="Key pair for SSH.")] = "",
    subnet: Annotated[
        list[str],
        typer.Option("--subnet", metavar="[ZONE=]ID", help="Start VMs in these subnets only; may be repeated."),
    ] = [],  # noqa: B006
    security_group: Annotated[
        list[str], typer.Option("--security-group", metavar="ID", help="Security group of all VMs; may be repeated.")
    ] = [],  # noqa: B006
    max_price: Annotated[
        str | None,
        typer.Option(
            "--max-price",
            metavar="USD",
            help="The most that all VMs together may cost, $/h (ec2-fleet, terraform); the plan's price + 20 % unless "
            "given.",
        ),
    ] = None,
) -> None:
    """Write a plan for SkyPilot, EC2 Fleet, Terraform or torchrun.

    Example: deepvm recommend --pw 3 -o json > plan.json; deepvm export plan.json --to skypilot --output-dir job
    """
    from pathlib import Path

    from deepvm.core.units import to_decimal
    from deepvm.errors import RequestError
    from deepvm.reports.exports.base import ExportOptions
    from deepvm.reports.exports.registry import render
    from deepvm.reports.exports.writing import write_export

    subnets = tuple(_subnet(text) for text in subnet)
    plan = _placed(_read(file, rank), zone, subnets, limited=max_price is not None)
    found = render(
        plan,
        to,
        ExportOptions(
            image=image,
            memory_image=memory_image,
            key_name=key_name,
            subnet=subnets,
            security_group=tuple(security_group),
            launch_template=launch_template,
            memory_launch_template=memory_launch_template,
            command=command,
            max_price=None if max_price is None else to_decimal(max_price, "max_price", unit="$/h"),
        ),
    )
    if output_dir:
        for path in write_export(found, Path(output_dir), force=force):
            say(f"{path}: written")
    elif len(found.files) > 1:
        names = ", ".join(f.name for f in found.files)
        raise RequestError("output_dir", "", f"a folder for the files of this export: {names}")
    else:
        sys.stdout.write(found.files[0].text)
    for text in found.notes:
        note(text)


def _read(file: str, rank: str) -> Plan:
    from deepvm.catalog.documents.plan_file import decode_plan, load_plan
    from deepvm.errors import RequestError
    from deepvm.io.safe_read import MAX_BYTES

    if not rank.isascii() or not rank.isdigit() or len(rank) > 9 or int(rank) < 1:
        raise RequestError("rank", rank, "a whole number >= 1")
    if file != "-":
        return load_plan(file, int(rank))
    return decode_plan(sys.stdin.buffer.read(MAX_BYTES + 1), int(rank))


def _placed(plan: Plan, zones: list[str], subnets: tuple[Subnet, ...], *, limited: bool) -> Plan:
    """The plan in the zones where it may start.

    Args:
        plan: what to start.
        zones: those that the user names, empty for all that are within what the plan was asked for.
        subnets: where its VMs would be; one in a zone that is left out is refused.
        limited: whether a price limit, and not what was asked for, says which zones are too dear.
    """
    from deepvm.core.units import format_usd

    if zones:
        chosen = plan.in_zones(zones)
        _lost(plan, chosen, subnets, "--zone leaves {zones} out")
        return chosen
    sound = plan.sound()
    if plan.memory and sound != plan:
        why = f"{plan.memory.instance_type} is not offered"
        lost = _lost(plan, sound, subnets, f"{why} in {{zones}}")
        note(f"left out: {lost}, because {why} there")
    if limited or sound.budget is None:
        return sound
    cheap = sound.within_budget()
    if cheap != sound:
        asked = f"the {format_usd(sound.budget)} $/h that was asked for"
        lost = _lost(sound, cheap, subnets, f"it would cost more than {asked} in {{zones}}; --max-price takes more")
        note(f"left out: {lost}, because there it would cost more than {asked}; --zone takes one all the same")
    return cheap


def _lost(before: Plan, after: Plan, subnets: tuple[Subnet, ...], why: str) -> str:
    """The zones of the first plan that the second does not have, in words; a subnet in one of them is refused."""
    from deepvm.reports.exports.base import refuse_subnets_in

    left = ", ".join(map(str, after.training.zones))
    lost = [z for z in before.training.zones if z not in after.training.zones]
    for zone in lost:
        refuse_subnets_in(zone, subnets, f"{left}: {why.format(zones=zone)}")
    return ", ".join(map(str, lost))


def _subnet(text: str) -> Subnet:
    from deepvm.errors import RequestError
    from deepvm.reports.exports.base import Subnet

    zone, separator, name = text.rpartition("=")
    if not name or (separator and not zone):
        raise RequestError("subnet", text, "ZONE=SUBNET or SUBNET, such as use1-az4=subnet-0abc")
    return Subnet(name, zone)
