"""``deepvm help``: commands and topics, listed and in full."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from deepvm.cli.help.completion import complete_topic
from deepvm.cli.help.topics import find_topic


def help_of(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND|TOPIC]...",
            help="A command, such as: catalog show. Or a topic, such as: budget.",
            autocompletion=complete_topic,
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Rare options, too.")] = False,
) -> None:
    """Show the help of a command, as its --help does, or a topic; without either, list both.

    Example: deepvm help recommend

    Example: deepvm help budget
    """
    at: Any = context.find_root()
    # Deepvm.cli.settings.ALL_OPTIONS, which is slow to load
    at.meta["deepvm.all-options"] = everything
    at.meta["deepvm.topics"] = not topic  # asked for by deepvm.cli.app.LazyGroup
    names = topic or []
    about = find_topic(names[0]) if names and names[0] not in at.command.commands else None
    if about is not None:
        if names[1:]:
            at.fail(f"Got unexpected extra argument(s) ({' '.join(names[1:])})")
        sys.stdout.write(about.text)
        return
    for name in names:
        if not hasattr(at.command, "get_command"):
            at.fail(f"Got unexpected extra argument(s) ({name})")
        found = at.command.get_command(at, name)
        if found is None:
            at.fail(f"No such command{' or topic' if at.parent is None else ''} {name!r}.")
        at = type(at)(found, info_name=name, parent=at)
    sys.stdout.write(f"{at.command.get_help(at)}\n")
