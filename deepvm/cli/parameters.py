"""Declare the options of commands, in signatures and in dataclasses that several commands share."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer

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


def opt(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """An option with a value, called after its parameter unless ``names`` are given."""
    return typer.Option(*names, metavar=metavar, help=help, **more)


def flag(name: str, help: str, *names: str) -> Any:
    """A switch without a ``--no-`` form."""
    return typer.Option(name, *names, help=help, show_default=False)


def switch(help: str) -> Any:
    """A switch that is off unless given, with a ``--no-`` form: files and the environment may turn it on."""
    return typer.Option(help=help, show_default=False)


def arg(metavar: str, help: str, **more: Any) -> Any:
    """An argument: its metavar names it in the usage line and in errors."""
    return typer.Argument(metavar=metavar, help=help, **more)


def group(help: str) -> typer.Typer:
    """A group of commands, with plain help."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def option_name(argument: str) -> str:
    """What the command line calls an argument of the planner, without dashes in front: ``checkpoint-size``."""
    return _OPTIONS.get(argument, argument.replace("_", "-"))


def field_name(argument: str) -> str:
    """The field of a dataclass of options that holds an argument of the planner: ``checkpoint_size``."""
    return option_name(argument).replace("-", "_")


def takes_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Let typer see the fields of the command's dataclass parameter as options.

    The command receives an instance.
    """
    given = inspect.signature(function, eval_str=True).parameters.values()
    taken = next((p for p in given if dataclasses.is_dataclass(p.annotation)), None)
    if taken is None:
        raise TypeError(f"{function.__name__}() takes no dataclass of options")
    record: Any = taken.annotation
    types = get_type_hints(record, include_extras=True)
    fields = []
    for field in dataclasses.fields(record):
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        fields.append(
            inspect.Parameter(field.name, _KEYWORD, default=default, annotation=types[field.name])
        )
    parameters: list[inspect.Parameter] = []
    for parameter in given:
        parameters += fields if parameter is taken else [parameter.replace(kind=_KEYWORD)]

    def command(**values: Any) -> None:
        flags = record(**{f.name: values.pop(f.name) for f in fields})
        function(**values, **{taken.name: flags})

    command.__name__, command.__doc__, command.__module__ = (
        function.__name__,
        function.__doc__,
        function.__module__,
    )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
