"""Shell completion of values: quick, without any request, and silent when a file is broken.

Each function takes the context of the command line so far and returns what may stand there; a value
may come with a line of help, which zsh and fish show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

Completion = Callable[[Any], list[Any]]


def _completes(values: Callable[[Any], Iterable[Any]]) -> Completion:
    """A completion from all values, given the context, of which typer takes those that fit."""

    def complete(ctx: Any) -> list[Any]:
        try:
            return list(values(ctx))
        except Exception:
            # Whatever is wrong with a file, the command itself will say; a traceback would end up
            # on the command line.
            return []

    complete.__doc__ = values.__doc__
    return complete


TABLES = {
    "models": "deepvm.catalog.published.models:presets",
    "clouds": "deepvm.catalog.clouds:CLOUDS",
    "architectures": "deepvm.planner.architectures:REGISTRY",
    "save policies": "deepvm.core.preemption.savepolicy:POLICIES",
}
"""Where names are: a table, or a function that returns one."""


def _names(table: str, *more: str) -> Completion:
    """The names in a table, and ``more``."""

    def values(_: Any) -> Iterable[str]:
        module, _colon, attribute = TABLES[table].partition(":")
        names = getattr(import_module(module), attribute)
        return [*(names() if callable(names) else names), *more]

    return _completes(values)


def _types(chosen: Callable[[Any], bool]) -> Completion:
    """Types of the catalog that the command line names so far, else the default one."""

    def values(ctx: Any) -> Iterable[str]:
        from deepvm.catalog.store import load_catalog

        catalog = load_catalog(ctx.params.get("catalog") or "aws", offline=True)
        return [instance.name for instance in catalog if chosen(instance)]

    return _completes(values)


complete_model = _names("models")
complete_cloud = _names("clouds", "all")
complete_architecture = _names("architectures")
complete_save_policy = _names("save policies")
complete_type = _types(lambda instance: True)
complete_cpu_type = _types(lambda instance: instance.gpu is None)


@_completes
def complete_topic(ctx: Any) -> Iterable[str]:
    """Commands, those of a group, or topics, after ``deepvm help``."""
    from deepvm.cli.help.topics import topics

    at: Any = ctx.find_root()
    before = list(ctx.params.get("topic") or ())
    for name in before:
        at = type(at)(at.command.get_command(at, name), info_name=name, parent=at)
    if not hasattr(at.command, "list_commands"):
        return []
    return [*at.command.list_commands(at), *([] if before else topics())]


@_completes
def complete_accelerator(_: Any) -> Iterable[str]:
    """GPU models whose speed can be predicted."""
    from deepvm.catalog.published.hardware import accelerators

    return dict.fromkeys(gpu.name for gpu in accelerators() if " " not in gpu.name)


@_completes
def complete_gpu(ctx: Any) -> Iterable[str]:
    """GPU models of the catalog."""
    from deepvm.catalog.store import load_catalog

    catalog = load_catalog(ctx.params.get("catalog") or "aws", offline=True)
    # As globs, because bash would split a name with blanks.
    return dict.fromkeys(i.gpu.name.replace(" ", "*") for i in catalog if i.gpu is not None)


@_completes
def complete_catalog(_: Any) -> Iterable[str]:
    """A cloud's market and the embedded catalogs."""
    from deepvm.catalog.clouds import CLOUDS
    from deepvm.catalog.store import catalog_names

    return [*CLOUDS, *catalog_names()]


@_completes
def complete_region(_: Any) -> Iterable[str | tuple[str, str]]:
    """AWS's regions with their places."""
    from deepvm.catalog.clouds.aws.places import PLACES

    return [*PLACES.items(), ("all", "every region")]


@_completes
def complete_policy(_: Any) -> Iterable[str]:
    """The policies that plan."""
    from deepvm.planner.options import PolicyName

    return [policy.value for policy in PolicyName]


@_completes
def complete_profiled_model(ctx: Any) -> Any:
    """Models that ``deepvm profile`` trains."""
    from deepvm.services.profile.options import ALL, MODELS

    return [*MODELS, ALL]
