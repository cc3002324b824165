"""Exports of a plan for other tools: add a file beside this one and a line to the registry."""

from __future__ import annotations

from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError
from deepvm.reports.exports.base import Export, Exporter, ExportFile, ExportOptions, Subnet
from deepvm.reports.exports.ec2_fleet import Ec2Fleet
from deepvm.reports.exports.skypilot import SkyPilot
from deepvm.reports.exports.terraform import Terraform
from deepvm.reports.exports.torchrun import Torchrun

REGISTRY: dict[str, Exporter] = {e.name: e for e in (SkyPilot(), Ec2Fleet(), Terraform(), Torchrun())}

__all__ = ["REGISTRY", "Export", "ExportFile", "ExportOptions", "Exporter", "Subnet", "render"]


def render(plan: Plan, engine: str, options: ExportOptions | None = None) -> Export:
    """The files that hand a plan to another tool.

    Args:
        plan: what to start.
        engine: a name in :data:`REGISTRY`.
        options: what only the user knows.

    Raises:
        RequestError: no such engine, or an option that this engine does not use or this plan cannot have.
    """
    options = options or ExportOptions()
    if engine not in REGISTRY:
        raise RequestError("to", engine, ", ".join(REGISTRY))
    exporter = REGISTRY[engine]
    for name in options.given:
        if name not in exporter.options:
            flags = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(exporter.options))
            raise RequestError(name, options.shown(name), f"with --to {engine} only {flags}")
    return exporter.render(plan, options)
