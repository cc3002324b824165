"""Shell completion of values: quick, without any request, and silent when a file is broken.

Each function takes the context of the command line so far and returns what may stand there; a value
may come with a line of help, which zsh and fish show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
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

    return complete


TABLES = {
    "models": "deepvm.catalog.published.workloads:presets",
    "clouds": "deepvm.catalog.clouds:REGISTRY",
    "catalogs": "deepvm.catalog.store:catalog_names",
    "architectures": "deepvm.planner.columns:REGISTRY",
    "save policies": "deepvm.core.preemption.savepolicy:POLICIES",
    "profiled models": "deepvm.services.profile.options:MODELS",
}
"""Where names are: a table, or a function that returns one."""


def _names(*tables: str) -> Completion:
    """The names in tables; what is no table is a name."""

    def values(_: Any) -> Iterator[str]:
        for table in tables:
            if table not in TABLES:
                yield table
                continue
            module, _colon, attribute = TABLES[table].partition(":")
            names = getattr(import_module(module), attribute)
            yield from names() if callable(names) else names

    return _completes(values)


def _of_types(name: Callable[[Any], str]) -> Completion:
    """Names in the catalog that the command line names so far, else the default one."""

    def values(ctx: Any) -> Iterable[str]:
        from deepvm.catalog.store import load_catalog

        catalog = load_catalog(ctx.params.get("catalog") or "aws", offline=True)
        return dict.fromkeys(filter(None, map(name, catalog)))

    return _completes(values)


def _gpu_glob(instance: Any) -> str:
    """The GPU of a type as a glob, because bash would split a name with blanks."""
    return instance.gpu.name.replace(" ", "*") if instance.gpu else ""


complete_model = _names("models")
complete_cloud = _names("clouds", "all")
complete_architecture = _names("architectures")
complete_save_policy = _names("save policies")
complete_catalog = _names("clouds", "catalogs")
complete_profiled_model = _names("profiled models", "all")
complete_type = _of_types(lambda instance: str(instance.name))
complete_cpu_type = _of_types(lambda instance: "" if instance.gpu else str(instance.name))
complete_gpu = _of_types(_gpu_glob)


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
def complete_policy(_: Any) -> Iterable[str]:
    """The policies that plan."""
    from deepvm.planner.options import PolicyName

    return [policy.value for policy in PolicyName]


@_completes
def complete_accelerator(_: Any) -> Iterable[str]:
    """GPU models whose speed can be predicted."""
    from deepvm.catalog.published.hardware import accelerators

    return dict.fromkeys(gpu.name for gpu in accelerators() if " " not in gpu.name)


@_completes
def complete_region(_: Any) -> Iterable[str | tuple[str, str]]:
    """AWS's regions with their places."""
    from deepvm.catalog.clouds.aws.places import PLACES

    return [*PLACES.items(), ("all", "every region")]
