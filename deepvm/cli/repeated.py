"""The command line that repeats a request, settings of files and of the environment included."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from deepvm.cli.parameters import long_name, typed
from deepvm.core.options import default_of, option_of


def command_of(command: str, flags: Any) -> str:
    """``deepvm COMMAND`` with each option that is not at its default, for a shell.

    ``flags`` is a dataclass of options.
    """
    return shlex.join(["deepvm", command, *words_of(flags)])


def words_of(flags: Any) -> list[str]:
    """The options of a dataclass that are not at their defaults, as words of a command line."""
    words: list[str] = []
    for field in fields(flags):
        about = option_of(field)
        value = getattr(flags, field.name)
        default = default_of(field)
        if about is not None and value not in (default, typed(default, about)):
            words += _words(f"--{long_name(field.name, about)}", value)
    return words


def _words(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield flag if value else f"--no-{flag.removeprefix('--')}"
        return
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if str(each).startswith("-"):
            yield f"{flag}={each}"
        else:
            yield from (flag, str(each))
