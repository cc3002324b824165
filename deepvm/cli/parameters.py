"""Options of commands, in signatures and in shared dataclasses, and as words of a command line."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from enum import Enum
from functools import wraps
from typing import Any, Literal

import typer

from deepvm.core.options import Option, default_of, option_of

# Arguments of the planner that the command line calls otherwise
OPTION_NAMES = {
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
    """An option of one command, declared as :func:`~deepvm.core.options.option` does."""
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
    if not kind:
        return None

    def complete(ctx: Any) -> list[Any]:
        from deepvm.cli.help.completion import offered

        return offered(kind, ctx)

    return complete


def group(help: str) -> typer.Typer:
    """A group of commands, with plain help."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def long_name(name: str, about: Option) -> str:
    """The first long name of a field's option: ``checkpoint-size``."""
    named = [word for word in about.names if word.startswith("--")]
    return next(iter(named), name.replace("_", "-")).partition("/")[0].lstrip("-")


def shared(field: dataclasses.Field[Any]) -> Any:
    """The option of a field, for a command that takes no more of its record."""
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
    """Let typer see the fields of the command's dataclass parameter as options."""
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
        about = option_of(field)
        if about is None:
            continue
        kind: Any = about.kind
        if about.choices:
            kind = Literal[tuple(about.choices)]
        if isinstance(default_of(field), list):
            kind = list[kind]
        elif default_of(field) is None:
            kind = kind | None
        default = shared(field)
        parameters.append(inspect.Parameter(field.name, _KEYWORD, default=default, annotation=kind))
    return parameters


def typed(default: Any, about: Option) -> Any:
    """The default of an option as it is typed on the command line."""
    if about.kind is not str or default in (None, dataclasses.MISSING):
        return default
    if isinstance(default, Enum):
        return default.value
    if isinstance(default, list):
        return default
    if isinstance(default, float):
        return f"{default:g}"
    return str(default)


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
