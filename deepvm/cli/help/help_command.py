"""``deepvm help``: commands and topics, listed and in full."""

from __future__ import annotations

import sys
from typing import Any

import typer

from deepvm.cli.help.completion import complete_topic
from deepvm.cli.help.topics import find_topic


def help_of(
    context: typer.Context,
    topic: list[str] | None = typer.Argument(
        None,
        metavar="[COMMAND|TOPIC]...",
        help="A command, such as: catalog show. Or a topic, such as: budget.",
        autocompletion=complete_topic,
    ),
    everything: bool = typer.Option(False, "--all", help="Rare options, too."),
) -> None:
    """Show the help of a command, as its --help does, or a topic; without either, list both.

    Example: deepvm help recommend

    Example: deepvm help budget
    """
    names = topic or []
    root: Any = context.find_root().command
    about = None
    if names and names[0] not in root.commands:
        about = find_topic(names[0])
    if about is not None:
        if names[1:]:
            context.fail(f"Got unexpected extra argument(s) ({' '.join(names[1:])})")
        sys.stdout.write(about.text)
        return
    # Read by deepvm.cli.app.LazyGroup and deepvm.cli.settings.ConfiguredCommand
    asked = {"topics": not names, "all": everything}
    root.main([*names, "--help"], prog_name="deepvm", standalone_mode=False, obj=asked)
