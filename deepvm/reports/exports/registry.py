"""The tools that a plan can be written for: a new one is a file beside this one and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.core.cluster.plan import Plan
    from deepvm.reports.exports.base import Export, Exporter, ExportOptions

REGISTRY = {
    "skypilot": "deepvm.reports.exports.skypilot",
    "ec2-fleet": "deepvm.reports.exports.ec2_fleet",
    "terraform": "deepvm.reports.exports.terraform",
    "torchrun": "deepvm.reports.exports.torchrun",
}
"""By the name on the command line: the module, an :class:`~deepvm.reports.exports.base.Exporter`; loaded when used."""


def exporter(name: str) -> Exporter:
    """The exporter of this name.

    Raises:
        RequestError: there is none.
    """
    if name not in REGISTRY:
        raise RequestError("to", name, ", ".join(REGISTRY))
    return cast("Exporter", import_module(REGISTRY[name]))


def render(plan: Plan, name: str, options: ExportOptions | None = None) -> Export:
    """The files that hand a plan to the tool ``name`` of :data:`REGISTRY`.

    Raises:
        RequestError: no such tool, or an option that this tool does not use or this plan cannot have.
    """
    from deepvm.reports.exports.base import ExportOptions

    tool, options = exporter(name), options or ExportOptions()
    for option, value in options.given.items():
        if option not in tool.OPTIONS:
            flags = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(tool.OPTIONS))
            raise RequestError(option, value, f"with --to {name} only {flags}")
        if option.startswith("memory_") and plan.memory is None:
            raise RequestError(option, value, f"no such option: {plan} has no memory nodes")
    return tool.render(plan, options)
