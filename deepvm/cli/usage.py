"""Suggestions for mistyped commands and options; the parser's own miss transposed letters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from deepvm.core.spelling import did_you_mean, nearest

# With one dash, people write long options of other programs; the parser reads -pw as -p w.
_ONE_DASH = re.compile(r"-([A-Za-z][\w-]+)(=.*)?", re.DOTALL)


def explain(error: Any, words: Sequence[str]) -> None:
    """Add to an error of the option parser, in place, what was probably meant by the words."""
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
    command = getattr(context, "command", None)
    if command is None or not hasattr(error, "message"):
        return
    kind = type(error).__name__
    name = re.match(r"No such command '(.*?)'\.", str(error.message), re.DOTALL)
    if kind == "NoSuchOption":
        error.possibilities = None
        error.message = _no_such_option(option, words, _options(command))
    elif name is not None:
        options = [o for o in _options(command) if o == f"--{name[1]}"]
        near = nearest(name[1], [n for n in command.list_commands(context) if n]) or options
        error.message = name[0] + (f" Did you mean '{near[0]}'?" if near else "")
    elif kind == "BadParameter" and "is not one of" in str(error.message):
        typed = str(error.message).partition(" is not one of ")[0].strip("'\"")
        meant = did_you_mean(typed, map(str, getattr(error.param.type, "choices", ())))
        error.message = f"{str(error.message).rstrip('.')}{f'; {meant}' if meant else '.'}"


def _no_such_option(option: str, words: Sequence[str], known: Sequence[str]) -> str:
    """The parser names only the first letter of ``-pw``; show the whole word and how to write it."""
    at = next((i for i, w in enumerate(words) if _ONE_DASH.fullmatch(w) and w.startswith(option)), None)
    if option.startswith("--") or at is None:
        meant = did_you_mean(option, known) if option.startswith("--") else ""
        return f"No such option: {option}{f'; {meant}' if meant else ''}"
    name, _, value = words[at].partition("=")
    near = nearest(f"-{name}", known)
    behind = f"={value}" if value else " ".join(["", *(w for w in words[at + 1 : at + 2] if not w.startswith("-"))])
    return f"No such option: {words[at]}{f'; did you mean {near[0]}{behind}?' if near else ''}"


def single_dashes(words: Sequence[str]) -> list[str]:
    """A line for each long option written with one dash, which the parser has read differently."""
    if not any(len(w) > 2 and w[0] == "-" and w[1] != "-" for w in words):
        return []
    import typer

    from deepvm.cli.app import app

    command: Any = typer.main.get_command(app)
    for word in (w for w in words if not w.startswith("-")):
        found = command.get_command(None, word) if hasattr(command, "get_command") else None
        if found is None:
            break
        command = found
    known = set(_options(command))
    lines = []
    for word in words[: words.index("--")] if "--" in words else words:
        match = _ONE_DASH.fullmatch(word)
        if match is not None and f"--{match[1]}" in known:
            lines.append(f"{word} is read as {word[:2]} {word[2:]}; did you mean -{word}?")
    return lines


def _options(command: Any) -> list[str]:
    names = [o for p in command.params for o in (*p.opts, *p.secondary_opts) if o.startswith("--")]
    return [*names, "--help", "--debug"]
