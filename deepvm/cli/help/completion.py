"""Shell completion of values: quick, without any request, and silent when a file is broken."""

from collections.abc import Callable, Iterable, Iterator
from pkgutil import resolve_name
from typing import Any

from deepvm.io.user_dirs import read_data

# Objects with the names: mappings, an enum, or functions; an entry without ``:`` is a name
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
    from deepvm.catalog.store import load_catalog

    yield from load_catalog(ctx.params.get("catalog") or "aws", offline=True)


def _topics(ctx: Any) -> Iterable[str]:
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
    from deepvm.catalog.published.hardware import accelerators

    return (gpu.name for gpu in accelerators() if " " not in gpu.name)


_FUNCTIONS: dict[str, Callable[[Any], Iterable[Any]]] = {
    "complete_type": lambda ctx: (i.name for i in _types(ctx)),
    "complete_cpu_type": lambda ctx: (i.name for i in _types(ctx) if not i.gpu),
    # A name with spaces as a glob, because bash would split it.
    "complete_gpu": lambda ctx: (i.gpu.name.replace(" ", "*") for i in _types(ctx) if i.gpu),
    "complete_topic": _topics,
    "complete_accelerator": _accelerators,
    "complete_region": lambda _: [*read_data("aws/places.json").items(), ("all", "every region")],
}
