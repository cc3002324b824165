"""Networks of VMs as vendors state them: ``data/performance/instance_networks.json``.

The effective bandwidth of an all-reduce is another matter:
:func:`deepvm.catalog.published.hardware.interconnect`.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from deepvm.io.user_dirs import read_data

_PATTERN = frozenset("*?[")
_Networks = dict[tuple[str, str], Mapping[str, Any]]


def network_of(cloud: str, instance_type: str) -> Mapping[str, Any]:
    """The row of a type of a cloud; empty if unknown.

    Clouds are ``aws``, ``gcp``, ``azure``, ``lambda``, ``nebius`` and ``runpod``. Bandwidths are in
    Gbit/s, of one VM and one direction; unknown values are null or absent:

    - ``nominal_gbps``: at most, between VMs. ``baseline_gbps``: always, or in every region, where
      that is not the nominal bandwidth.
    - ``ethernet_gbps``: for all but GPUs, where these have cards of their own.
    - ``kind``: ``efa``; ``rdma`` (InfiniBand, RoCE or GPUDirect-TCPX: cards that reach GPU memory
      themselves); ``ethernet``. On g types of AWS EFA is on offer, and few use it.
    - ``gpu_link``: between the GPUs of one VM; ``none`` with fewer than two.
    - ``local_disk_gb``: disks that come with the VM, in 10^9 bytes.
    - ``source``: one of the file's ``sources``. ``says``: what stands there, in few words.
    """
    networks, patterns = _table()
    if (cloud, instance_type) in networks:
        return networks[cloud, instance_type]
    alike = (p for c, p in patterns if c == cloud and fnmatchcase(instance_type, p))
    return patterns.get((cloud, next(alike, "")), {})


def bandwidths(cloud: str, instance_type: str) -> dict[str, float]:
    """The bandwidths of a type, as in the signal of specifications.

    That is for all but GPUs with cards of their own. Empty if unknown; else ``baseline_gbps``, what
    a VM without GPUs, such as a memory node, can be sent for long, and ``peak_gbps``.
    """
    network = network_of(cloud, instance_type)
    nominal, baseline, ethernet = (
        network.get(f"{name}_gbps") for name in ("nominal", "baseline", "ethernet")
    )
    sustained = ethernet or baseline or nominal
    if sustained is None:
        return {}
    return {"baseline_gbps": sustained, "peak_gbps": ethernet or nominal or sustained}


@lru_cache(maxsize=1)
def _table() -> tuple[_Networks, _Networks]:
    """Networks by cloud and name, and those by cloud and pattern of names."""
    rows = read_data("performance/instance_networks.json")["networks"]
    networks: _Networks = {(row["cloud"], name): row for row in rows for name in row["types"]}
    return networks, {key: row for key, row in networks.items() if _PATTERN & {*key[1]}}
