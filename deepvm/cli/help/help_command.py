"""``deepvm help`` and ``schema``; topics are text files, each one screen of 80 x 24."""

import sys
from typing import Any

import typer

from deepvm.cli.help.topics import find_topic
from deepvm.cli.output import print_document, text
from deepvm.cli.parameters import arg, flag


def help_of(
    context: typer.Context,
    topic: list[str] | None = arg(
        "[COMMAND|TOPIC]...",
        "A command, such as: catalog show. Or a topic, such as: budget.",
        None,
        complete="complete_topic",
    ),
    everything: bool = flag("--all", "Rare options, too."),
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


def schema(
    name: str = arg(
        "[NAME]",
        "Such as recommend; without one, all are listed.",
        "",
        complete="complete_document",
    ),
) -> None:
    """Print the JSON Schema of a document that a command prints, or of a file.

    Each value with its unit.

    NAME is what stands in the document's schema_version: deepvm.NAME/1. YAML holds the same.

    Example: deepvm schema recommend
    """
    from deepvm.services.schemas import DOCUMENTS, described

    if name:
        print_document(described(name).schema(name))
    else:
        text("schemas", documents=DOCUMENTS)()
