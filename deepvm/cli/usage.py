"""Suggestions for mistyped commands and options, to be copied.

The parser's own know no slips and no meanings.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

from deepvm.cli.help.synonyms import COMMANDS, OPTIONS, SUBCOMMANDS, VALUES, meant, meant_as_model
from deepvm.cli.help.topics import find_topic, topic_names
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
    name = re.match(r"No such command(?: or topic)? '(.*?)'\.", str(error.message), re.DOTALL)
    if kind == "NoSuchOption":
        error.possibilities = None
        error.message = _no_such_option(option, words, command)
    elif name is not None:
        found = _meant_command(name[1], words, context)
        error.message = name[0] + (f" Did you mean '{found}'?" if found else "")
    elif kind == "MissingParameter":
        example = re.search(r"Example: deepvm .*", command.help or "")
        error.message = error.message or (example[0] if example else "")
        if "--total-budget" in words and error.param.name == "pw":
            error.message = f"{_BUDGETS}. Example: deepvm recommend --pw 3 --total-budget 50"
    elif "unexpected extra argument" in str(error.message) and "--model" in _options(command):
        extra = str(error.message).rpartition("(")[2].rstrip(")").split()
        guess = next(filter(None, map(meant_as_model, extra)), "")
        error.message = f"{error.message}{f'; did you mean {guess}?' if guess else ''}"
    elif kind == "BadParameter" and "is not one of" in str(error.message):
        typed = str(error.message).partition(" is not one of ")[0].strip("'\"")
        same = VALUES.get(str(error.param.name), {}).get(typed.casefold(), "")
        guess = did_you_mean(typed, map(str, getattr(error.param.type, "choices", ())))
        guess = f"did you mean {same}?" if same else guess
        if guess:
            guess = guess.replace("mean ", f"mean {_longest(error.param)} ", 1)
        error.message = f"{str(error.message).rstrip('.')}{f'; {guess}' if guess else '.'}"


_BUDGETS = "--total-budget limits the bill of the whole job, --pw what the cluster costs an hour"


def _longest(parameter: Any) -> str:
    """An option by its long name; empty for an argument."""
    return max((o for o in parameter.opts if o.startswith("--")), key=len, default="")


def _meant_command(name: str, words: Sequence[str], context: Any) -> str:
    """The command line that was meant, in whole if one word is misspelt.

    Empty when nobody can tell.
    """
    at_root, helps = context.parent is None, words[:1] == ["help"]
    known = [n for n in context.command.list_commands(context) if n]
    if at_root and helps:
        known += topic_names()
    path = (
        context.command_path.replace("deepvm", "deepvm help", 1) if helps else context.command_path
    )
    found = meant(name, COMMANDS if at_root else SUBCOMMANDS, [*known, *_options(context.command)])
    if found:
        return f"{path} {found}"
    if at_root and find_topic(name) is not None:
        return f"{path} help {name}"
    near = nearest(name, known) or [o for o in _options(context.command) if o == f"--{name}"]
    rest = list(words[words.index(name) + 1 :]) if name in words else []
    # Nothing in quotes within the quotes around all of it
    plain = shlex.join(rest) == " ".join(rest)
    return " ".join([path, near[0], *(rest if plain else [])]) if near else ""


def _no_such_option(option: str, words: Sequence[str], command: Any) -> str:
    """The parser names only the first letter of ``-pw``.

    Show the whole word and how to write it.
    """
    at = next(
        (i for i, w in enumerate(words) if _ONE_DASH.fullmatch(w) and w.startswith(option)), None
    )
    if not option.startswith("--"):
        if at is None:
            return f"No such option: {option}"
        option = words[at].partition("=")[0]
    else:
        at = next((i for i, w in enumerate(words) if w.partition("=")[0] == option), None)
    known = _options(command)
    found = meant(option.lstrip("-"), OPTIONS, known) or next(
        iter(nearest(f"--{option.lstrip('-')}", known)), ""
    )
    shown = option if at is None or option.startswith("--") else words[at]
    if not found:
        return f"No such option: {shown}"
    return f"No such option: {shown}; did you mean {found}{_value(found, at, words, command)}?"


def _value(found: str, at: int | None, words: Sequence[str], command: Any) -> str:
    """The value that was typed, if the option that was meant takes one."""
    takes_one = any(found in p.opts and not getattr(p, "is_flag", False) for p in command.params)
    if at is None or not takes_one:
        return ""
    _, equals, value = words[at].partition("=")
    behind = [] if equals else [w for w in words[at + 1 : at + 2] if not w.startswith("-")]
    return f"={value}" if equals else "".join(f" {shlex.quote(w)}" for w in behind)


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
