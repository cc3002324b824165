"""GPUs and networks from ``data/performance``.

Data sheets, and what an all-reduce sees of a network.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import lru_cache
from typing import Any

from deepvm.core.training.hardware import Accelerator, Interconnect, Machine
from deepvm.io.user_dirs import read_data

ONE_FLOW_GBPS, IN_A_GROUP_GBPS = 5.0, 10.0
"""What AWS gives one flow, and one in a cluster placement group.

From the EC2 User Guide, network bandwidth.
"""
_FLOW_SHARE = 0.85
"""Of a flow's bandwidth: published steps on g4dn.12xlarge give 0.53 GB/s of 5 Gbit/s."""
_EC2 = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
_TCP_SHARE, _MOST_TCP_GBPS = 0.5, 50.0
"""An assumption about networks without a limit for one flow.

NCCL's all-reduces over TCP between VMs with several GPUs
had, of 25 Gbit/s on Azure, 13.6 (NVIDIA/nccl-tests issue 83), of 32 on Google Cloud 14.8 and 22.4
(NVIDIA/nccl issue 209), and of 100 in a cluster 32 to 48 (issue 450).
"""
_UNKNOWN_GBPS = 10.0
_FEW_VMS = 4  # up to which a ring over a network of which nothing is published is believed
# Where not even its bandwidth is known, a ring is not believed: it comes after all others
_ONE_VM = 1


@lru_cache(maxsize=1)
def accelerators() -> tuple[Accelerator, ...]:
    """All GPUs that are known."""
    return tuple(
        Accelerator(**{k: v for k, v in e.items() if not k.startswith("usual")}) for e in _gpus()
    )


@lru_cache(maxsize=1)
def _gpus() -> Sequence[dict[str, Any]]:
    gpus: Sequence[dict[str, Any]] = read_data("performance/gpus.json")["gpus"]
    return gpus


def usual_machine(gpu: Accelerator, *, placement_group: bool = False) -> tuple[str, Machine]:
    """The VM that these GPUs are mostly rented in, by name."""
    entry = _gpus()[accelerators().index(gpu)]
    name: str = entry["usual_vm"]
    network = interconnect(name, entry["usual_gbps"], placement_group=placement_group)
    return name, Machine(gpu, entry["usual_gpus"], network)


def find_accelerator(name: str, memory_gib: float | None = None) -> Accelerator | None:
    """A GPU by its name in any case, of several with this name the one nearest in memory.

    None if unknown.
    """
    named = [a for a in accelerators() if a.name.casefold() == name.casefold()]
    if memory_gib is None:
        if named:
            return named[-1]
        return None
    return min(named, key=lambda a: abs(a.memory_gib - memory_gib), default=None)


@lru_cache(maxsize=1)
def _networks() -> Sequence[tuple[re.Pattern[str], dict[str, Any]]]:
    """The networks, each with one pattern of the names that have it.

    Catalogs may have thousands of names.
    """
    networks = read_data("performance/networks.json")["networks"]
    return [(re.compile("|".join(map(translate, entry["machines"]))), entry) for entry in networks]


def interconnect(
    name: str, sustained_gbps: float | None, *, placement_group: bool = False
) -> Interconnect:
    """The network of a type of VM, or of the machine of a published row.

    Where nothing is published: on EC2, 85 % of the geometric mean of one flow and what the network
    sustains; elsewhere, where no vendor limits a flow, half of what it sustains is assumed, and 50
    Gbit/s at most.
    """
    for names, entry in _networks():
        if names.match(name):
            faster = 1.0
            if placement_group and entry["kind"] == "ethernet":
                faster = 2.0
            return Interconnect(
                kind=entry["kind"],
                machine=entry["machines"][0],
                gb_per_s=entry["gb_per_s"] * faster,
                per_gpu=entry.get("per_gpu", 0.0),
                fitted_vms=entry["fitted_vms"],
                basis=entry["basis"],
                line_gb_per_s=entry["nominal_gbps"] / 8,
            )
    if _EC2.fullmatch(name):
        return _on_ec2(name, sustained_gbps, placement_group)
    return _elsewhere(name, sustained_gbps)


def _on_ec2(name: str, sustained_gbps: float | None, placement_group: bool) -> Interconnect:
    sustained = sustained_gbps or _UNKNOWN_GBPS
    flow = min(IN_A_GROUP_GBPS if placement_group else ONE_FLOW_GBPS, sustained)
    range_ = f"between one flow of {flow:g} Gbit/s and the {sustained:g} that it sustains"
    if flow < sustained:
        basis = range_
    else:
        basis = f"{flow:g} Gbit/s, one flow"
    return _ethernet(
        name, _FLOW_SHARE * flow * (sustained / flow) ** 0.5, sustained, basis, _FEW_VMS
    )


def _elsewhere(name: str, sustained_gbps: float | None) -> Interconnect:
    if sustained_gbps is None:
        basis = f"nobody says what network it has, {_UNKNOWN_GBPS:g} Gbit/s is a guess"
        return _ethernet(name, _TCP_SHARE * _UNKNOWN_GBPS, _UNKNOWN_GBPS, basis, _ONE_VM)
    effective = min(_TCP_SHARE * sustained_gbps, _MOST_TCP_GBPS)
    basis = f"{effective:g} of its {sustained_gbps:g} Gbit/s over TCP is assumed"
    return _ethernet(name, effective, sustained_gbps, basis, _FEW_VMS)


def _ethernet(
    name: str, effective: float, sustained: float, basis: str, fitted_vms: int
) -> Interconnect:
    known = f"{basis}; no more is published"
    line = sustained / 8
    return Interconnect("ethernet", name, effective / 8, 0.02, fitted_vms, known, line)
