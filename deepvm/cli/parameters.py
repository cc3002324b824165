"""Declare the options of commands, in signatures and in dataclasses that several commands share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from enum import Enum
from functools import wraps
from typing import Any, Literal

import typer

from deepvm.core.options import Option, default_of, field_named, option_of

_OPTIONS = {
    "budget": "pw",
    "quotas": "quota",
    "time_limit_s": "time-limit",
    "cpu_architecture": "cpu-arch",
}
SAVE_POLICIES = (
    "none, static:STEPS, every:TIME, auto, young, daly, exact, thesis, adaptive or hazard"
)
CLOUDS = "local, netns, ssh or aws"
# So that a required option may stand behind one that is not
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


def opt(
    default: Any,
    help: str,
    metavar: str | None = None,
    *names: str,
    complete: str = "",
    **more: Any,
) -> Any:
    """An option of one command, declared as :func:`~deepvm.core.options.option` does.

    It is called after its parameter unless ``names`` are given; ``...``: it must be given.
    """
    more["autocompletion"] = _completes(complete)
    return typer.Option(default, *names, metavar=metavar, help=help, **more)


def flag(name: str, help: str, *names: str, **more: Any) -> Any:
    """A switch without a ``--no-`` form."""
    return typer.Option(False, name, *names, help=help, show_default=False, **more)


def arg(metavar: str, help: str, default: Any = ..., *, complete: str = "", **more: Any) -> Any:
    """An argument: its metavar names it in the usage line and in errors."""
    more["autocompletion"] = _completes(complete)
    return typer.Argument(default, metavar=metavar, help=help, **more)


def _completes(kind: str) -> Any:
    """What the shell offers for a kind of values; its module is loaded when the shell asks."""
    if not kind:
        return None

    def complete(ctx: Any) -> list[Any]:
        from deepvm.cli.help.completion import offered

        return offered(kind, ctx)

    return complete


def group(help: str) -> typer.Typer:
    """A group of commands, with plain help."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def option_name(argument: str) -> str:
    """What the command line calls an argument of the planner, such as ``checkpoint-size``.

    The name has no dashes in front.
    """
    return _OPTIONS.get(argument, argument.replace("_", "-"))


def long_name(name: str, about: Option) -> str:
    """The first long name of a field's option, without dashes: ``checkpoint-size``."""
    named = [word for word in about.names if word.startswith("--")]
    return next(iter(named), name.replace("_", "-")).partition("/")[0].lstrip("-")


def key_of(name: str, about: Option) -> str:
    """What files call a field with an option."""
    return about.key or long_name(name, about)


def shared(record: Any, name: str) -> Any:
    """The option of a field, for a command that takes no more of the record."""
    field = field_named(record, name)
    about = option_of(field)
    assert about is not None
    default = typed(default_of(field), about)
    if default is dataclasses.MISSING:
        default = ...
    return typer.Option(
        default,
        *about.names,
        metavar=about.metavar,
        help=about.help,
        min=about.least,
        max=about.most,
        autocompletion=_completes(about.complete),
        rich_help_panel=about.group or None,
        show_default=about.kind is not bool,
    )


def takes_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the fields of the command's dataclass parameter as options.

    The command receives an instance.
    """
    given = inspect.signature(function, eval_str=True).parameters.values()
    taken = next((p for p in given if dataclasses.is_dataclass(p.annotation)), None)
    if taken is None:
        raise TypeError(f"{function.__name__}() takes no dataclass of options")
    record: Any = taken.annotation
    fields = parameters_of(record)
    parameters: list[inspect.Parameter] = []
    for parameter in given:
        parameters += fields if parameter is taken else [parameter.replace(kind=_KEYWORD)]

    @wraps(function)
    def command(**values: Any) -> None:
        flags = record(**{f.name: values.pop(f.name) for f in fields})
        function(**values, **{taken.name: flags})

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def parameters_of(record: Any) -> list[inspect.Parameter]:
    """The options of a dataclass; its other fields are set by the command."""
    parameters = []
    for field in dataclasses.fields(record):
        if about := option_of(field):
            kind = _kind(about, default_of(field))
            default = shared(record, field.name)
            parameters.append(
                inspect.Parameter(field.name, _KEYWORD, default=default, annotation=kind)
            )
    return parameters


def typed(default: Any, about: Option) -> Any:
    """The default of an option as it is typed on the command line."""
    if about.kind is not str or default is None or default is dataclasses.MISSING:
        return default
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, list):
        return default
    return str(default)


def _kind(about: Option, default: Any) -> Any:
    """The type of an option's value, as typer reads it."""
    kind: Any = about.kind
    if about.choices:
        kind = Literal[tuple(about.choices)]
    if isinstance(default, list):
        return list[kind]
    if default is None:
        return kind | None
    return kind
