"""Shell completion of values: quick, without any request, and silent when a file is broken.

Each function takes the context of the command line so far and returns possible values; a value may
come with a line of help, which zsh and fish show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pkgutil import resolve_name
from typing import Any

from deepvm.io.user_dirs import read_data

TABLES = {
    "complete_model": ("deepvm.catalog.published.workloads:presets",),
    "complete_cloud": ("deepvm.catalog.clouds:REGISTRY", "all"),
    "complete_architecture": ("deepvm.planner.columns:REGISTRY",),
    "complete_policy": ("deepvm.planner.options:PolicyName",),
    "complete_save_policy": ("deepvm.core.preemption.savepolicy:POLICIES",),
    "complete_catalog": ("deepvm.catalog.clouds:REGISTRY", "deepvm.catalog.store:catalog_names"),
    "complete_document": ("deepvm.services.schemas:DOCUMENTS",),
    "complete_profiled_model": ("deepvm.services.profile.options:MODELS", "all"),
}
"""Objects with the names: mappings, an enum, or functions; an entry without ``:`` is a name."""


def offered(kind: str, ctx: Any) -> list[Any]:
    """All values of a kind; typer keeps those that start with the typed text."""
    try:
        if kind in TABLES:
            return list(_names(TABLES[kind]))
        return list(dict.fromkeys(_FUNCTIONS[kind](ctx)))
    except Exception:
        # The command itself reports what is wrong with a file; a traceback would end up on the
        # command line.
        return []


def _names(sources: Iterable[str]) -> Iterator[str]:
    for source in sources:
        if ":" not in source:
            yield source
            continue
        names = resolve_name(source)
        if not isinstance(names, Iterable):
            names = names()
        yield from (getattr(name, "value", name) for name in names)


def _types(ctx: Any) -> Iterator[Any]:
    """The types of the catalog that the command line names so far, else of the default one."""
    from deepvm.catalog.store import load_catalog

    yield from load_catalog(ctx.params.get("catalog") or "aws", offline=True)


def _type_names(ctx: Any) -> Iterator[str]:
    return (instance.name for instance in _types(ctx))


def _cpu_type_names(ctx: Any) -> Iterator[str]:
    return (instance.name for instance in _types(ctx) if not instance.gpu)


def _gpu_globs(ctx: Any) -> Iterator[str]:
    # A name with spaces as a glob, because bash would split it.
    return (instance.gpu.name.replace(" ", "*") for instance in _types(ctx) if instance.gpu)


def _topics(ctx: Any) -> Iterable[str]:
    """Commands, those of a group, or topics, after ``deepvm help``."""
    from deepvm.cli.help.topics import topics

    context: Any = ctx.find_root()
    before = list(ctx.params.get("topic") or ())
    for name in before:
        command = context.command.get_command(context, name)
        context = type(context)(command, info_name=name, parent=context)
    if not hasattr(context.command, "list_commands"):
        return []
    return [*context.command.list_commands(context), *([] if before else topics())]


def _accelerators(_: Any) -> Iterable[str]:
    """GPU models whose speed can be predicted."""
    from deepvm.catalog.published.hardware import accelerators

    return (gpu.name for gpu in accelerators() if " " not in gpu.name)


def _regions(_: Any) -> Iterable[tuple[str, str]]:
    """AWS's regions with their places."""
    return [*read_data("aws/places.json").items(), ("all", "every region")]


_FUNCTIONS = {
    "complete_type": _type_names,
    "complete_cpu_type": _cpu_type_names,
    "complete_gpu": _gpu_globs,
    "complete_topic": _topics,
    "complete_accelerator": _accelerators,
    "complete_region": _regions,
}
