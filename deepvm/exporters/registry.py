"""The tools that a plan can be exported to. A new one: a module, its templates, a line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from deepvm.core.cluster.plan import Plan
    from deepvm.exporters.base import Export, Exporter
    from deepvm.exporters.options import ExportOptions


class Tool(NamedTuple):
    """``exporters``: as ``module:Class``, one for each group of clouds; loaded when used."""

    title: str
    exporters: tuple[str, ...]


# By the name on the command line
REGISTRY = {
    "skypilot": Tool("SkyPilot", ("deepvm.exporters.skypilot:SkyPilot",)),
    "ec2-fleet": Tool("EC2 Fleet", ("deepvm.exporters.aws:Ec2Fleet",)),
    "terraform": Tool(
        "Terraform",
        ("deepvm.exporters.terraform:TerraformAws", "deepvm.exporters.terraform:TerraformGcp"),
    ),
    "torchrun": Tool("torchrun", ("deepvm.exporters.torchrun:Torchrun",)),
}

*_OTHERS, _LAST = [tool.title for tool in REGISTRY.values()]
SUMMARY = f"Write a plan for {', '.join(_OTHERS)} or {_LAST}."  # The help text of ``deepvm export``


def exporters(name: str) -> list[type[Exporter]]:
    """The exporters of a tool."""
    from pkgutil import resolve_name

    return [resolve_name(home) for home in REGISTRY[name].exporters]


def _exporter_of(name: str, cloud: str) -> type[Exporter] | None:
    fitting = (e for e in exporters(name) if not e.CLOUDS or cloud in e.CLOUDS)
    return next(fitting, None)


def render(plan: Plan, name: str, options: ExportOptions | None = None) -> Export:
    """The files that hand a plan to the tool ``name``."""
    from deepvm.catalog.clouds import cloud_of
    from deepvm.core.spelling import joined, refuse_unknown
    from deepvm.errors import OptionMismatchError, RequestError
    from deepvm.exporters.options import ExportOptions

    refuse_unknown("to", name, REGISTRY, ", ")
    options = options or ExportOptions()
    cloud = cloud_of(plan.source.catalog)
    exporter = _exporter_of(name, cloud.name)
    if exporter is None:
        others = [other for other in REGISTRY if _exporter_of(other, cloud.name)]
        raise RequestError("to", name, f"for a plan of {cloud.title} {joined(others, 'or')}")
    if plan.reserved and exporter.RENTS:
        pools = ", ".join(plan.reserved)
        raise RequestError(
            "to", name, f"torchrun: the VMs of {pools} are reserved, and {name} would rent others"
        )
    for option, value in options.given.items():
        if option not in exporter.OPTIONS:
            flags = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(exporter.OPTIONS))
            reason = f"does not go with --to {name}, which takes {flags}"
            raise OptionMismatchError(option, value, reason)
        if option.startswith("memory_") and plan.memory is None:
            reason = f"does not fit {plan}, which has no memory nodes"
            raise OptionMismatchError(option, value, reason)
    return exporter(plan, options).export()
