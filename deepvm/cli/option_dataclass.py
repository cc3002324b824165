"""Turn a dataclass of options into the parameters of a command, so that several commands can share it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

_OPTIONS = {"budget": "pw", "quotas": "quota", "time_limit_s": "time-limit", "cpu_architecture": "cpu-arch"}


def option_name(argument: str) -> str:
    """What the command line calls an argument of the planner, without dashes in front: ``checkpoint-size``."""
    return _OPTIONS.get(argument, argument.replace("_", "-"))


def field_name(argument: str) -> str:
    """The field of a dataclass of options that holds an argument of the planner: ``checkpoint_size``."""
    return option_name(argument).replace("-", "_")


def takes_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command of a function that takes a dataclass of options.

    The parameter of ``function`` whose type is a dataclass is replaced, in its place, by one option for each field of
    that dataclass; the function receives an instance.

    Returns:
        A function with the expanded signature, which typer reads.
    """
    parameters: list[inspect.Parameter] = []
    taken, record, names = "", None, frozenset[str]()
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if dataclasses.is_dataclass(parameter.annotation):
            taken, record = parameter.name, parameter.annotation
            fields = dataclasses.fields(record)
            names = frozenset(f.name for f in fields)
            parameters += [_parameter(f) for f in fields]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    if record is None:
        raise TypeError(f"{function.__name__}() takes no dataclass of options")
    make: Callable[..., Any] = record  # type: ignore[assignment]  # an instance would also count as a dataclass

    def command(**values: Any) -> None:
        own = {n: v for n, v in values.items() if n not in names}
        function(**own, **{taken: make(**{n: v for n, v in values.items() if n in names})})

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    default = inspect.Parameter.empty
    if field.default is not dataclasses.MISSING:
        default = field.default
    elif field.default_factory is not dataclasses.MISSING:
        default = field.default_factory()
    # Keyword-only: a required option may then stand behind one that is not.
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=field.type)
