"""The tools that a plan can be written for: a new one is a file beside this one and a line here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
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
"""By the name on the command line: the module, an :class:`~deepvm.reports.exports.base.Exporter`.

Loaded when used.
"""

_GPU_NETWORKS = {
    "efa": ("EFA", "give each VM its EFA interfaces, in a cluster placement group"),
    "rdma": (
        "cards that reach GPU memory",
        "start the VMs as the cloud's guide to its network for GPUs says",
    ),
}
_ONLY_TRAINS = "torchrun"
"""It takes VMs as they are."""


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
        RequestError: no such tool, or an option that this tool does not use or this plan cannot
            have.
    """
    from deepvm.catalog.clouds import cloud_of
    from deepvm.core.spelling import joined
    from deepvm.reports.exports.base import ExportOptions

    tool, options = exporter(name), options or ExportOptions()
    cloud = cloud_of(plan.source.catalog)
    if tool.CLOUDS and cloud.name not in tool.CLOUDS:
        found = {other: exporter(other).CLOUDS for other in REGISTRY}
        others = [other for other, clouds in found.items() if not clouds or cloud.name in clouds]
        raise RequestError("to", name, f"for a plan of {cloud.title} {joined(others, 'or')}")
    if plan.reserved and name != _ONLY_TRAINS:
        pools = ", ".join(plan.reserved)
        raise RequestError(
            "to",
            name,
            f"{_ONLY_TRAINS}: the VMs of {pools} are reserved, and {name} would rent others",
        )
    for option, value in options.given.items():
        if option not in tool.OPTIONS:
            flags = ", ".join(f"--{n.replace('_', '-')}" for n in sorted(tool.OPTIONS))
            raise RequestError(option, value, f"with --to {name} only {flags}")
        if option.startswith("memory_") and plan.memory is None:
            raise RequestError(option, value, f"no such option: {plan} has no memory nodes")
    made = tool.render(plan, options)
    if plan.nat and name != _ONLY_TRAINS:
        nat = (
            "the plan counts a NAT gateway in the place of public addresses: set it up, and name"
            " subnets behind it"
        )
        made = replace(made, notes=(*made.notes, nat))
    return replace(made, notes=(*made.notes, *_network_notes(plan)))


def _network_notes(plan: Plan) -> Iterator[str]:
    """What the files do not ask for, and the predicted speed of several VMs rests on."""
    from deepvm.catalog.published.hardware import interconnect

    name, count = plan.training.instance_type, plan.training_count
    kind = interconnect(name, None).kind if count > 1 else ""
    if kind in _GPU_NETWORKS:
        network, how = _GPU_NETWORKS[kind]
        yield (
            f"the speed of {count} x {name} counts on {network} between them, which no file here"
            f" asks for: {how} (SkyPilot: network_tier: best)"
        )
