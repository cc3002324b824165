"""What vendors say of the networks of their VMs: ``data/performance/instance_networks.json``.

What an all-reduce sees of these networks is another matter:
:func:`deepvm.catalog.published.hardware.interconnect`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Literal

from deepvm.io.user_dirs import read_data

NetworkKind = Literal["efa", "rdma", "ethernet"]
GpuLink = Literal["nvlink", "pcie", "none"]
_PATTERN = frozenset("*?[")


@dataclass(frozen=True)
class InstanceNetwork:
    """The network of a type of VM, as its vendor describes it.

    Bandwidths in Gbit/s, of one VM and one direction.

    Attributes:
        kind: ``efa``; ``rdma`` (InfiniBand, RoCE or GPUDirect-TCPX: cards that reach GPU memory
            themselves); ``ethernet``. On g types of AWS EFA is on offer, and few use it.
        nominal_gbps: at most, between VMs; None where the vendor says nothing.
        baseline_gbps: always, or in every region; None where it is the nominal bandwidth or the
            vendor says nothing.
        ethernet_gbps: for all but GPUs, where these have cards of their own; None where there is
            one network.
        gpu_link: between the GPUs of one VM; ``none`` with fewer than two; None where the vendor
            says nothing, or the user chooses the GPUs.
        local_disk_gb: disks that come with the VM, in 10^9 bytes; None where the vendor says
            nothing.
        source: URL. says: what stands there, in few words.
    """

    nominal_gbps: float | None
    baseline_gbps: float | None
    ethernet_gbps: float | None
    kind: NetworkKind
    gpu_link: GpuLink | None
    local_disk_gb: float | None
    source: str
    says: str

    @property
    def memory_node_gbps(self) -> float | None:
        """What a VM without GPUs, such as a memory node, can be sent for long.

        None where the vendor says nothing.
        """
        return self.ethernet_gbps or self.baseline_gbps or self.nominal_gbps


def network_of(cloud: str, instance_type: str) -> InstanceNetwork | None:
    """The network of a type of a cloud, if known.

    Clouds are ``aws``, ``gcp``, ``azure``, ``lambda``, ``nebius`` and ``runpod``.
    """
    names, patterns = _table()
    if (cloud, instance_type) in names:
        return names[cloud, instance_type]
    for (own_cloud, pattern), network in patterns.items():
        if own_cloud == cloud and fnmatchcase(instance_type, pattern):
            return network
    return None


def bandwidths(cloud: str, instance_type: str) -> dict[str, float]:
    """What a type's network is, as in the signal of specifications.

    That is for all but GPUs with cards of their own. Empty if unknown; else ``baseline_gbps``, what
    it sustains, and ``peak_gbps``.
    """
    network = network_of(cloud, instance_type)
    if network is None or network.memory_node_gbps is None:
        return {}
    sustained = network.memory_node_gbps
    peak = network.ethernet_gbps or network.nominal_gbps or sustained
    return {"baseline_gbps": sustained, "peak_gbps": peak}


_Networks = dict[tuple[str, str], InstanceNetwork]


@lru_cache(maxsize=1)
def _table() -> tuple[_Networks, _Networks]:
    """Networks by cloud and name, and by cloud and pattern of names."""
    raw = read_data("performance/instance_networks.json")
    names: _Networks = {}
    patterns: _Networks = {}
    for row in raw["networks"]:
        values = {field.name: row.get(field.name) for field in fields(InstanceNetwork)}
        network = InstanceNetwork(**values | {"source": raw["sources"][row["source"]]["url"]})
        for name in row["types"]:
            (patterns if _PATTERN & set(name) else names)[row["cloud"], name] = network
    return names, patterns
