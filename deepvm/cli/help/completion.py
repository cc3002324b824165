"""Shell completion of values: quick, without any request, and silent when a file is broken.

Each function takes the context of the command line so far and returns what may stand there; a value
may come with a line of help, which zsh and fish show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def _completes(
    values: Callable[[Any], Iterable[str | tuple[str, str]]],
) -> Callable[[Any], list[Any]]:
    """A completion from all values, given the context, of which typer takes those that fit.

    Errors are none.
    """

    def complete(ctx: Any) -> list[Any]:
        try:
            return list(values(ctx))
        except Exception:
            # Whatever is wrong with a file, the command itself will say; a traceback would end up
            # on the command line.
            return []

    complete.__doc__ = values.__doc__
    return complete


def _catalog(ctx: Any) -> Any:
    """The catalog that the command line names so far, else the default one; nothing is fetched."""
    from deepvm.catalog.store import load_catalog

    return load_catalog(ctx.params.get("catalog") or "aws", offline=True)


@_completes
def complete_topic(ctx: Any) -> Iterable[str]:
    """Commands, those of a group, or topics, behind ``deepvm help``."""
    from deepvm.cli.help.topics import topics

    at: Any = ctx.find_root()
    before = list(ctx.params.get("topic") or ())
    for name in before:
        at = type(at)(at.command.get_command(at, name), info_name=name, parent=at)
    if not hasattr(at.command, "list_commands"):
        return []
    return [*at.command.list_commands(at), *([] if before else topics())]


@_completes
def complete_model(_: Any) -> Iterable[str]:
    """The presets."""
    from deepvm.catalog.published.models import presets

    return presets()


@_completes
def complete_accelerator(_: Any) -> Iterable[str]:
    """GPU models whose speed can be predicted."""
    from deepvm.catalog.published.hardware import accelerators

    return dict.fromkeys(gpu.name for gpu in accelerators() if " " not in gpu.name)


@_completes
def complete_gpu(ctx: Any) -> Iterable[str]:
    """GPU models of the catalog."""
    # As globs, because bash would split a name with blanks.
    return dict.fromkeys(i.gpu.name.replace(" ", "*") for i in _catalog(ctx) if i.gpu is not None)


@_completes
def complete_type(ctx: Any) -> Iterable[str]:
    """Types of the catalog."""
    return [i.name for i in _catalog(ctx)]


@_completes
def complete_cpu_type(ctx: Any) -> Iterable[str]:
    """Types of the catalog without GPUs."""
    return [i.name for i in _catalog(ctx) if i.gpu is None]


@_completes
def complete_catalog(_: Any) -> Iterable[str]:
    """A cloud's market and the embedded catalogs."""
    from deepvm.catalog.clouds import CLOUDS
    from deepvm.catalog.store import catalog_names

    return [*CLOUDS, *catalog_names()]


@_completes
def complete_cloud(_: Any) -> Iterable[str]:
    """The clouds of which there are catalogs."""
    from deepvm.catalog.clouds import CLOUDS

    return [*CLOUDS, "all"]


@_completes
def complete_region(_: Any) -> Iterable[str | tuple[str, str]]:
    """AWS's regions with their places."""
    from deepvm.catalog.clouds.aws.places import PLACES

    return [*PLACES.items(), ("all", "every region")]


@_completes
def complete_architecture(_: Any) -> Iterable[str]:
    """The architectures."""
    from deepvm.planner.architectures import REGISTRY

    return REGISTRY


@_completes
def complete_policy(_: Any) -> Iterable[str]:
    """The policies that plan."""
    from deepvm.planner.request import PolicyName

    return [policy.value for policy in PolicyName]


@_completes
def complete_save_policy(_: Any) -> Iterable[str]:
    """When to save."""
    from deepvm.core.preemption.savepolicy import POLICIES

    return POLICIES


@_completes
def complete_profiled_model(ctx: Any) -> Any:
    """Models that ``deepvm profile`` trains."""
    from deepvm.services.profile.options import ALL, MODELS

    return [*MODELS, ALL]
