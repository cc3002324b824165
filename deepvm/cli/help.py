"""``deepvm help``."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

Topic = Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="The command, such as: catalog show.")]


def help_of(context: typer.Context, topic: Topic = None) -> None:
    """Show the help of a command, as its --help does.

    Example: deepvm help recommend
    """
    at: Any = context.find_root()
    for name in topic or ():
        group = at.command
        found = group.get_command(at, name) if hasattr(group, "get_command") else None
        if found is None:
            if not hasattr(group, "get_command"):
                at.fail(f"Got unexpected extra argument(s) ({name})")
            at.fail(f"No such command {name!r}.")
        at = type(at)(found, info_name=name, parent=at)
    sys.stdout.write(f"{at.command.get_help(at)}\n")
