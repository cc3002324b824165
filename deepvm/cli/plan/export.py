"""``deepvm export``: a plan as the files of another tool."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from deepvm.cli.output import note, say
from deepvm.cli.parameters import arg, flag, opt, takes_flags
from deepvm.core.options import whole
from deepvm.errors import RequestError
from deepvm.exporters.options import ExportOptions
from deepvm.exporters.registry import REGISTRY, SUMMARY

MAX_RANK = 10**9 - 1
if TYPE_CHECKING:
    Tool = str
else:
    Tool = Literal[tuple(REGISTRY)]


@takes_flags
def export(
    file: str = arg("PLAN", "Output of `deepvm recommend -o json`; - reads standard input."),
    to: Tool = opt(..., "The tool to write for."),
    rank: str = opt("1", "Which configuration; 1 is the best.", "N"),
    output_dir: str = opt("", "Output folder; without it a single file goes to stdout.", "DIR"),
    force: bool = flag("--force", "Overwrite existing files."),
    zone: list[str] = opt([], "Only this zone of the plan; repeatable.", "ZONE"),
    *,
    flags: ExportOptions,
) -> None:
    """Write a plan for other tools."""
    from deepvm.documents.inputs.plan import decode_plan, load_plan
    from deepvm.exporters.base import choose_zones, write_export
    from deepvm.exporters.registry import render
    from deepvm.io.own_package import own_package
    from deepvm.io.safe_read import MAX_BYTES

    options = replace(flags, own=own_package(), folder=output_dir)
    number = whole(MAX_RANK)(rank, "rank")
    if file == "-":
        plan = decode_plan(sys.stdin.buffer.read(MAX_BYTES + 1), number)
    else:
        plan = load_plan(file, number)
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


export.__doc__ = f"""{SUMMARY}

Example: deepvm recommend --pw 3 -o json > plan.json; deepvm export plan.json --to skypilot
--output-dir job
"""
