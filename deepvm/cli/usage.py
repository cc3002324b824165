"""Suggestions for mistyped commands and options, to be copied."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from deepvm.cli.help.topics import find_topic, topics
from deepvm.core.spelling import nearest

_SYNONYMS = {
    "--price": "--pw",
    "--batch-size": "--batch-per-gpu",
    "--nodes": "--max-nodes",
    "--json": "--output",
}
"""What other programs call our options: edit distance would suggest another one, or none."""
# With one dash, people write long options of other programs; the parser reads -pw as -p w.
_ONE_DASH = re.compile(r"-([A-Za-z][\w-]+)(=.*)?", re.DOTALL)


def explain(error: Any, words: Sequence[str]) -> None:
    """Add to an error of the option parser, in place, what was probably meant by the words."""
    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    if command is None or not hasattr(error, "message"):
        return
    name = re.match(r"No such command(?: or topic)? '(.*?)'\.", str(error.message), re.DOTALL)
    if type(error).__name__ == "NoSuchOption":
        error.possibilities = None
        error.message = _no_such_option(error.option_name, words, command)
    elif name is not None:
        meant = _meant_command(name[1], words, context)
        error.message = name[0] + (f" Did you mean '{meant}'?" if meant else "")
    elif type(error).__name__ == "MissingParameter":
        example = re.search(r"Example: deepvm .*", command.help or "")
        error.message = error.message or (example[0] if example else "")


def _meant_command(name: str, words: Sequence[str], context: Any) -> str:
    """The command line that was meant; empty when nothing is near."""
    at_root = context.parent is None
    known = [n for n in context.command.list_commands(context) if n]
    path = context.command_path
    if words[:1] == ["help"]:
        path = path.replace("deepvm", "deepvm help", 1)
        known += topics() if at_root else ()
    elif at_root and find_topic(name) is not None:
        return f"{path} help {name}"
    near = nearest(name, known) or [o for o in _options(context.command) if o == f"--{name}"]
    return f"{path} {near[0]}" if near else ""


def _no_such_option(option: str, words: Sequence[str], command: Any) -> str:
    """The parser names only the first letter of ``-pw``: show the whole word."""
    long = (w for w in words if _ONE_DASH.fullmatch(w) and w.startswith(option))
    typed = next(long, option).partition("=")[0]
    name = f"--{typed.lstrip('-')}"
    known = _options(command)
    meant = [_SYNONYMS.get(name, name)]
    if meant[0] not in known:
        meant = nearest(name, known) if len(typed) > 2 else []
    return f"No such option: {typed}" + (f"; did you mean {meant[0]}?" if meant else "")


def single_dashes(words: Sequence[str]) -> list[str]:
    """A line for each long option written with one dash, which the parser has read differently."""
    dashed = [match for word in words if (match := _ONE_DASH.fullmatch(word))]
    if not dashed:
        return []
    import typer

    from deepvm.cli.app import app

    command: Any = typer.main.get_command(app)
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.get_command(None, word)
    known = _options(command)
    return [
        f"{word[0]} is read as {word[0][:2]} {word[0][2:]}; did you mean -{word[0]}?"
        for word in dashed
        if f"--{word[1]}" in known
    ]


def _options(command: Any) -> list[str]:
    names = [o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")]
    return [*names, "--help", "--debug"]
