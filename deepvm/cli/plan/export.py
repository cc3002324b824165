"""``deepvm export``: a plan as the files of another tool."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from deepvm.cli.output import note, say
from deepvm.cli.parameters import arg, flag, opt, takes_flags
from deepvm.core.units import to_decimal
from deepvm.errors import RequestError
from deepvm.exporters.registry import REGISTRY, summary

if TYPE_CHECKING:
    Tool = str
    from deepvm.core.cluster.plan import Plan
    from deepvm.exporters.options import ExportOptions
else:
    Tool = Literal[tuple(REGISTRY)]


@dataclass(frozen=True)
class ExportFlags:
    """The fields of ``ExportOptions``, as typed."""

    command: Annotated[
        str, opt("Training script and its arguments, as after torchrun.", "TEXT")
    ] = ""
    code: Annotated[
        str, opt("Archive or git URL from which the VMs fetch the script (not torchrun).", "URL")
    ] = ""
    image: Annotated[str, opt("Image of the training VMs.", "AMI")] = ""
    memory_image: Annotated[str, opt("Image of the memory nodes; default: --image.", "AMI")] = ""
    launch_template: Annotated[
        str, opt("Launch template of the training VMs (ec2-fleet).", "NAME")
    ] = ""
    memory_launch_template: Annotated[
        str, opt("As --launch-template, of memory nodes.", "NAME")
    ] = ""
    key_name: Annotated[str, opt("SSH key pair.", "NAME")] = ""
    subnet: Annotated[list[str], opt("Only in these subnets; repeatable.", "[ZONE=]ID")] = field(
        default_factory=list
    )
    security_group: Annotated[list[str], opt("Security group of all VMs; repeatable.", "ID")] = (
        field(default_factory=list)
    )
    job: Annotated[
        str, opt("Name of the training, for its checkpoints; default: training.", "NAME")
    ] = ""
    persist: Annotated[str, opt("Bucket or folder that keeps checkpoints for good.", "URL")] = ""
    package: Annotated[str, opt("What pip installs on the VMs; default: this deepvm.", "TEXT")] = ""
    max_price: Annotated[
        str | None,
        opt(
            "Price limit of all VMs, $/h (ec2-fleet, terraform); default: the plan's price + 20 %.",
            "USD",
        ),
    ] = None

    def options(self) -> ExportOptions:
        from deepvm.exporters.options import ExportOptions, Subnet
        from deepvm.io.own_package import own_package

        parsed: dict[str, Any] = {
            "subnet": tuple(map(Subnet.parse, self.subnet)),
            "security_group": tuple(self.security_group),
        }
        if self.max_price is not None:
            parsed["max_price"] = to_decimal(self.max_price, "max_price", unit="$/h")
        return ExportOptions(**{**vars(self), **parsed}, own=own_package())


@takes_flags
def export(
    file: Annotated[
        str, arg("PLAN", "Output of `deepvm recommend -o json`; - reads standard input.")
    ],
    to: Annotated[Tool, opt("The tool to write for.")],
    rank: Annotated[str, opt("Which configuration; 1 is the best.", "N")] = "1",
    output_dir: Annotated[
        str, opt("Output folder; without it a single file goes to stdout.", "DIR")
    ] = "",
    force: Annotated[bool, flag("--force", "Overwrite existing files.")] = False,
    zone: Annotated[list[str], opt("Only this zone of the plan; repeatable.", "ZONE")] = [],  # noqa: B006  typer copies
    *,
    flags: ExportFlags,
) -> None:
    """Write a plan for other tools."""
    from deepvm.exporters.files import write_export
    from deepvm.exporters.registry import render
    from deepvm.exporters.zones import choose_zones

    options = flags.options()
    if not rank.isascii() or not rank.isdigit() or len(rank) > 9 or int(rank) < 1:
        raise RequestError("rank", rank, "a whole number >= 1")
    plan = _read(file, int(rank))
    plan, notes = choose_zones(plan, zone, limited=flags.max_price is not None)
    for text in notes:
        note(text)
    result = render(plan, to, options)
    if output_dir:
        for path in write_export(result, Path(output_dir), force=force):
            say(f"{path}: written")
    elif len(result.files) > 1:
        names = ", ".join(f.name for f in result.files)
        raise RequestError("output_dir", "", f"a folder for the files of this export: {names}")
    else:
        sys.stdout.write(result.files[0].text)
    for text in result.notes:
        if output_dir:
            text = text.replace("start: ", f"start: cd {shlex.quote(output_dir)} && ", 1)
        note(text)


export.__doc__ = f"""{summary()}

Example: deepvm recommend --pw 3 -o json > plan.json; deepvm export plan.json --to skypilot
--output-dir job
"""


def _read(file: str, rank: int) -> Plan:
    from deepvm.documents.inputs.plan import decode_plan, load_plan
    from deepvm.io.safe_read import MAX_BYTES

    if file == "-":
        return decode_plan(sys.stdin.buffer.read(MAX_BYTES + 1), rank)
    return load_plan(file, rank)
