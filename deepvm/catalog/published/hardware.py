"""GPUs (data sheets) and networks (effective bandwidths) from ``data/performance``."""

import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase, translate
from functools import cache, lru_cache
from typing import Any

from deepvm.core.json_types import JsonDict, JsonObject
from deepvm.core.training.roofline import Accelerator, Interconnect, Machine
from deepvm.io.user_dirs import read_data

GPUS = "performance/gpus.json"
# AWS's limits for one flow, outside and inside a cluster placement group (EC2 User Guide)
ONE_FLOW_GBPS, IN_A_GROUP_GBPS = 5.0, 10.0
# Of a flow's bandwidth: published steps on g4dn.12xlarge give 0.53 GB/s of 5 Gbit/s
_FLOW_SHARE = 0.85
_EC2 = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
# An assumption about networks without a limit for one flow. NCCL's all-reduces over TCP between VMs
# with several GPUs had, of 25 Gbit/s on Azure, 13.6 (NVIDIA/nccl-tests issue 83), of 32 on Google
# Cloud 14.8 and 22.4 (NVIDIA/nccl issue 209), and of 100 in a cluster 32 to 48 (issue 450)
_TCP_SHARE, _MOST_TCP_GBPS = 0.5, 50.0
_UNKNOWN_GBPS = 10.0
_FEW_VMS = 4  # trusted size of a ring over a network of which nothing is published
# Where not even its bandwidth is known, no ring is trusted: it ranks after all others
_ONE_VM = 1


@cache
def _gpus() -> dict[Accelerator, JsonDict]:
    gpus = {}
    for row in read_data(GPUS)["gpus"]:
        usual = {name: row.pop(f"usual_{name}") for name in ("vm", "gbps", "gpus")}
        gpus[Accelerator(**row)] = usual
    return gpus


def accelerators() -> tuple[Accelerator, ...]:
    """All known GPUs."""
    return tuple(_gpus())


def usual_machine(gpu: Accelerator, *, placement_group: bool = False) -> tuple[str, Machine]:
    """The VM that these GPUs are mostly rented in, by name."""
    usual = _gpus()[gpu]
    network = interconnect(usual["vm"], usual["gbps"], placement_group=placement_group)
    return usual["vm"], Machine(gpu, usual["gpus"], network)


def find_accelerator(name: str, memory_gib: float | None = None) -> Accelerator | None:
    """A GPU by its name in any case, of several with this name the one nearest in memory."""
    named = [gpu for gpu in _gpus() if gpu.name.casefold() == name.casefold()]
    if memory_gib is None:
        return next(reversed(named), None)
    return min(named, key=lambda gpu: abs(gpu.memory_gib - memory_gib), default=None)


@cache
def _networks() -> list[tuple[re.Pattern[str], Interconnect]]:
    networks = []
    for row in read_data("performance/networks.json")["networks"]:
        names = row.pop("machines")
        line = row.pop("nominal_gbps") / 8
        network = Interconnect(machine=names[0], line_gb_per_s=line, **row)
        networks.append((re.compile("|".join(map(translate, names))), network))
    return networks


def interconnect(
    name: str, sustained_gbps: float | None, *, placement_group: bool = False
) -> Interconnect:
    """The network of a type of VM, or of the machine of a published row."""
    # Where nothing is published: on EC2, 85 % of the geometric mean of one flow and what the
    # network sustains; elsewhere, where no vendor limits a flow, half of what it sustains is
    # assumed, and 50 Gbit/s at most.
    for names, network in _networks():
        if names.match(name):
            if placement_group and network.kind == "ethernet":
                return replace(network, gb_per_s=2.0 * network.gb_per_s)
            return network
    sustained = sustained_gbps or _UNKNOWN_GBPS
    fitted_vms = _FEW_VMS
    if _EC2.fullmatch(name):
        flow = min(IN_A_GROUP_GBPS if placement_group else ONE_FLOW_GBPS, sustained)
        effective = _FLOW_SHARE * flow * (sustained / flow) ** 0.5
        basis = f"{flow:g} Gbit/s, one flow"
        if flow < sustained:
            basis = f"between one flow of {flow:g} Gbit/s and the {sustained:g} that it sustains"
    else:
        effective = min(_TCP_SHARE * sustained, _MOST_TCP_GBPS)
        basis = f"{effective:g} of its {sustained:g} Gbit/s over TCP is assumed"
        if sustained_gbps is None:
            fitted_vms = _ONE_VM
            basis = f"its network is unknown, {_UNKNOWN_GBPS:g} Gbit/s is a guess"
    basis = f"{basis}; no more is published"
    return Interconnect("ethernet", name, effective / 8, 0.02, fitted_vms, basis, sustained / 8)


_PATTERN = frozenset("*?[")
_Networks = dict[tuple[str, str], Mapping[str, Any]]


def network_of(cloud: str, instance_type: str) -> JsonObject:
    """The row of a type of a cloud; empty if unknown. Gbit/s of one VM and one direction."""
    # ``nominal_gbps`` at most, between VMs; ``baseline_gbps`` always, where that is less;
    # ``ethernet_gbps`` for all but GPUs with cards of their own. ``kind``: ``efa``, ``rdma`` (cards
    # that reach GPU memory) or ``ethernet``
    networks, patterns = _table()
    if (cloud, instance_type) in networks:
        return networks[cloud, instance_type]
    alike = (p for c, p in patterns if c == cloud and fnmatchcase(instance_type, p))
    return patterns.get((cloud, next(alike, "")), {})


def bandwidths(cloud: str, instance_type: str) -> dict[str, float]:
    """The bandwidths of a type, as in the signal of specifications."""
    network = network_of(cloud, instance_type)
    kinds = ("nominal", "baseline", "ethernet")
    nominal, baseline, ethernet = (network.get(f"{kind}_gbps") for kind in kinds)
    sustained = ethernet or baseline or nominal
    if sustained is None:
        return {}
    return {"baseline_gbps": sustained, "peak_gbps": ethernet or nominal or sustained}


@lru_cache(maxsize=1)
def _table() -> tuple[_Networks, _Networks]:
    rows = read_data("performance/instance_networks.json")["networks"]
    networks: _Networks = {(row["cloud"], name): row for row in rows for name in row["types"]}
    return networks, {key: row for key, row in networks.items() if _PATTERN & {*key[1]}}
