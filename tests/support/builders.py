"""Builders with defaults: a test says only what it is about."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota
from deepvm.core.cluster.memory_nodes import PAPER_NODES
from deepvm.core.cluster.speedup import HybridSpeedup, SpeedupCurve


def gpu_type(name: str = "gpu.xlarge", **changes: Any) -> InstanceType:
    """A GPU type at $1/h on demand and $0.3/h spot."""
    fields: dict[str, Any] = {
        "vcpus": 4,
        "memory_gib": 16.0,
        "network_gbps": 25.0,
        "on_demand_usd_per_hour": "1",
        "spot_usd_per_hour": "0.3",
        "gpu": Gpu("T4"),
        "eflops": 100.0,
        "speedups": (HybridSpeedup(0.13, 12.9, 6.2),),
        "quota_family": "G and VT",
    }
    return InstanceType(name=name, **(fields | changes))


def cpu_type(name: str = "cpu.xlarge", **changes: Any) -> InstanceType:
    """A CPU type at $0.2/h on demand."""
    fields: dict[str, Any] = {
        "vcpus": 4,
        "memory_gib": 16.0,
        "network_gbps": 10.0,
        "on_demand_usd_per_hour": "0.2",
        "spot_usd_per_hour": "0.1",
    }
    return InstanceType(name=name, **(fields | changes))


def catalog(*instances: InstanceType, **changes: Any) -> Catalog:
    """A catalog of these types, of one GPU and one CPU type when none is given.

    Memory nodes by eq. 6 alone.
    """
    fields = {
        "name": "test",
        "instances": instances or (gpu_type(), cpu_type()),
        "memory_nodes": PAPER_NODES,
    }
    return Catalog(**(fields | changes))


def hybrid(a: float = 0.13, b: float = 12.9, c: float = 6.2) -> tuple[SpeedupCurve, ...]:
    """One hybrid curve."""
    return (HybridSpeedup(a, b, c),)


PAPER_GPUS = {
    # name: on-demand, spot, Gbps, eFLOPS, a, b, c, GiB  (DeepVM Tables II and IV, recommender.md)
    "g3s.xlarge": ("0.75", "0.225", 10, 100, 0.1408559584, 14.49263334, 13.53250952, 30.5),
    "g4dn.xlarge": ("0.526", "0.1578", 25, 377, 0.1338806402, 12.87424514, 6.176666667, 16),
    "g5.xlarge": ("1.006", "0.3018", 10, 696, 0.08533428072, 20.06669931, 4.962225551, 16),
}
PAPER_CPUS = {
    # name: on-demand, spot, Gbps, GiB
    "c3.xlarge": ("0.21", "0.1281", 0.3, 7.5),
    "c4.xlarge": ("0.199", "0.1257", 1.7, 7.5),
    "t3.xlarge": ("0.1664", "0.1033", 5, 16),
    "c5.xlarge": ("0.17", "0.0999", 10, 8),
    "m6i.xlarge": ("0.192", "0.12", 12.5, 16),
    "d3.xlarge": ("0.499", "0.1584", 15, 32),
    "c5n.xlarge": ("0.216", "0.127", 25, 10.5),
    "c6in.xlarge": ("0.2268", "0.1272", 30, 8),
}


def paper() -> Catalog:
    """The paper's profiled types, typed in a second time and independently of ``data/``."""
    gpus = [
        gpu_type(
            name,
            on_demand_usd_per_hour=od,
            spot_usd_per_hour=spot,
            network_gbps=gbps,
            eflops=eflops,
            speedups=hybrid(a, b, c),
            memory_gib=gib,
        )
        for name, (od, spot, gbps, eflops, a, b, c, gib) in PAPER_GPUS.items()
    ]
    cpus = [
        cpu_type(
            name,
            on_demand_usd_per_hour=od,
            spot_usd_per_hour=spot,
            network_gbps=gbps,
            memory_gib=gib,
        )
        for name, (od, spot, gbps, gib) in PAPER_CPUS.items()
    ]
    quotas = (
        Quota("G and VT", Market.SPOT, 128),
        Quota("G and VT", Market.ON_DEMAND, 32),
        Quota("Standard", Market.SPOT, 256),
        Quota("Standard", Market.ON_DEMAND, 256),
    )
    return catalog(*gpus, *cpus, quotas=quotas)


SIMULATED_GPUS = {
    # name: on-demand, Gbps, eFLOPS, a, b, c  (DeepVM Table VI, recommender.md); spot is 0.3 x
    # on-demand
    "A": ("0.75", 10, 100, 0.14, 14.5, 13.5),
    "B": ("0.526", 25, 377, 0.13, 12.9, 6.2),
    "C": ("1.006", 10, 696, 0.09, 20.1, 5),
    "D": ("0.55", 15, 700, 0.2, 10, 5),
    "E": ("0.368", 1.7, 100, 0.1, 20, 15),
    "F": ("1.236", 25, 800, 0.1, 15, 10),
    "G": ("0.973", 30, 200, 0.1, 15, 10),
    "H": ("0.252", 5, 150, 0.2, 10, 5),
    "I": ("1.622", 30, 900, 0.2, 9.9, 7),
    "J": ("0.22", 5, 50, 0.1, 20, 15),
}
SIMULATED_CPUS = {
    "K": "c4.xlarge",
    "L": "t3.xlarge",
    "M": "c5.xlarge",
    "N": "m6i.xlarge",
    "O": "d3.xlarge",
    "P": "c5n.xlarge",
    "Q": "c6in.xlarge",
}


def simulated() -> Catalog:
    """The paper's 17 simulated types, without quotas."""
    gpus = [
        gpu_type(
            name,
            on_demand_usd_per_hour=od,
            spot_usd_per_hour=Decimal(od) * Decimal("0.3"),
            network_gbps=gbps,
            eflops=eflops,
            speedups=hybrid(a, b, c),
        )
        for name, (od, gbps, eflops, a, b, c) in SIMULATED_GPUS.items()
    ]
    cpus = []
    for name, model in SIMULATED_CPUS.items():
        od, spot, gbps, gib = PAPER_CPUS[model]
        cpus.append(
            cpu_type(
                name,
                on_demand_usd_per_hour=od,
                spot_usd_per_hour=spot,
                network_gbps=gbps,
                memory_gib=gib,
            )
        )
    return catalog(*gpus, *cpus)
