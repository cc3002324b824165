"""The command line that repeats a request, settings of files and of the environment included."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, get_type_hints

from deepvm.cli.parameters import option_name


def command_of(command: str, flags: Any) -> str:
    """``deepvm COMMAND`` with each option of a dataclass of options that is not at its default, for a shell."""
    hints = get_type_hints(type(flags), include_extras=True)
    words = ["deepvm", command]
    for field in fields(flags):
        words += _words(
            field, _name(field.name, hints[field.name].__metadata__[0]), getattr(flags, field.name)
        )
    return shlex.join(words)


def _name(field: str, option: Any) -> str:
    """The option of a field: the first of its own names, which typer keeps as a default, or the field's."""
    own = (
        n
        for n in (option.default, *(option.param_decls or ()))
        if isinstance(n, str) and n.startswith("--")
    )
    return next(own, f"--{option_name(field)}").partition("/")[0]


def _words(field: Field[Any], name: str, value: Any) -> Iterator[str]:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if value == default:
        return
    if isinstance(value, bool):
        yield name if value else f"--no-{name.removeprefix('--')}"
        return
    for one in value if isinstance(value, (list, tuple)) else [value]:
        # "--name=value" also where a value starts with a dash.
        yield from [f"{name}={one}"] if str(one).startswith("-") else [name, str(one)]
