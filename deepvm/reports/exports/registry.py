"""The tools that a plan can be written for: a new one is a file beside this one and a line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.core.cluster.plan import Plan
    from deepvm.reports.exports.base import Export, Exporter, ExportOptions

REGISTRY = {
    "skypilot": "deepvm.reports.exports.skypilot:SkyPilot",
    "ec2-fleet": "deepvm.reports.exports.ec2_fleet:Ec2Fleet",
    "terraform": "deepvm.reports.exports.terraform:Terraform",
    "torchrun": "deepvm.reports.exports.torchrun:Torchrun",
}
"""By the name on the command line; loaded when it is used."""


def exporter(name: str) -> Exporter:
    """The exporter of this name.

    Raises:
        RequestError: there is none.
    """
    if name not in REGISTRY:
        raise RequestError("to", name, ", ".join(REGISTRY))
    module, _, kind = REGISTRY[name].partition(":")
    found: Exporter = getattr(import_module(module), kind)()
    return found


def render(plan: Plan, name: str, options: ExportOptions | None = None) -> Export:
    """The files that hand a plan to another tool.

    Args:
        plan: what to start.
        name: the tool, from :data:`REGISTRY`.
        options: what only the user knows.

    Raises:
        RequestError: no such tool, or an option that this tool does not use or this plan cannot have.
    """
    from deepvm.reports.exports.base import ExportOptions

    tool, options = exporter(name), options or ExportOptions()
    for option in options.given:
        if option not in tool.options:
            flags = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(tool.options))
            raise RequestError(option, options.shown(option), f"with --to {name} only {flags}")
    return tool.render(plan, options)
