"""GPUs and networks from ``data/performance``: data sheets, and what an all-reduce sees of a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from deepvm.core.training.hardware import Accelerator, Interconnect, Machine
from deepvm.io.user_dirs import data_folder

ONE_FLOW_GBPS, IN_A_GROUP_GBPS = 5.0, 10.0
"""What AWS gives one flow, and one in a cluster placement group (EC2 User Guide, network bandwidth)."""
_FLOW_SHARE = 0.85
"""Of a flow's bandwidth: published steps on g4dn.12xlarge give 0.53 GB/s of 5 Gbit/s."""
_UNKNOWN_GBPS = 10.0
_FEW_VMS = 4  # up to which a ring over a network of which nothing is published is believed


@lru_cache(maxsize=1)
def accelerators() -> tuple[Accelerator, ...]:
    """All GPUs that are known."""
    return tuple(Accelerator(**{k: v for k, v in e.items() if not k.startswith("usual")}) for e in _gpus())


@lru_cache(maxsize=1)
def _gpus() -> Sequence[dict[str, Any]]:
    raw = json.loads((data_folder() / "performance" / "gpus.json").read_text(encoding="utf-8"))
    gpus: Sequence[dict[str, Any]] = raw["gpus"]
    return gpus


def usual_machine(gpu: Accelerator, *, placement_group: bool = False) -> tuple[str, Machine]:
    """The VM that these GPUs are mostly rented in, by name."""
    entry = _gpus()[accelerators().index(gpu)]
    name: str = entry["usual_vm"]
    network = interconnect(name, entry["usual_gbps"], placement_group=placement_group)
    return name, Machine(gpu, entry["usual_gpus"], network)


def find_accelerator(name: str, memory_gib: float | None = None) -> Accelerator | None:
    """A GPU by its name in any case, of several with this name the one nearest in memory; None if unknown."""
    named = [a for a in accelerators() if a.name.casefold() == name.casefold()]
    if memory_gib is None:
        return named[-1] if named else None
    return min(named, key=lambda a: abs(a.memory_gib - memory_gib), default=None)


@lru_cache(maxsize=1)
def _networks() -> Sequence[dict[str, Any]]:
    raw = json.loads((data_folder() / "performance" / "networks.json").read_text(encoding="utf-8"))
    networks: Sequence[dict[str, Any]] = raw["networks"]
    return networks


def interconnect(name: str, sustained_gbps: float | None, *, placement_group: bool = False) -> Interconnect:
    """The network of a type of VM, or of the machine of a published row.

    Where nothing is published: 85 % of the geometric mean of one flow and what the network sustains.
    """
    for entry in _networks():
        if any(fnmatchcase(name, glob) for glob in entry["machines"]):
            faster = 2.0 if placement_group and entry["kind"] == "ethernet" else 1.0
            return Interconnect(
                kind=entry["kind"],
                machine=entry["machines"][0],
                gb_per_s=entry["gb_per_s"] * faster,
                per_gpu=entry.get("per_gpu", 0.0),
                fitted_vms=entry["fitted_vms"],
                basis=entry["basis"],
                line_gb_per_s=entry["nominal_gbps"] / 8,
            )
    sustained = sustained_gbps or _UNKNOWN_GBPS
    flow = min(IN_A_GROUP_GBPS if placement_group else ONE_FLOW_GBPS, sustained)
    effective = _FLOW_SHARE * flow * (sustained / flow) ** 0.5
    range_ = f"between one flow of {flow:g} Gbit/s and the {sustained:g} that it sustains"
    basis = f"{range_ if flow < sustained else f'{flow:g} Gbit/s, one flow'}; nobody has published more"
    line = sustained / 8
    return Interconnect(
        "ethernet", name, effective / 8, per_gpu=0.02, fitted_vms=_FEW_VMS, basis=basis, line_gb_per_s=line
    )
