"""Random shops in which a model is trained, as dictionaries for the oracle and as catalogs for the
planner.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from deepvm.core.arrays import FloatArray
from deepvm.core.cluster.instances import Catalog, Gpu, InstanceType, Market, Quota, ZonePrice
from deepvm.core.cluster.memory_nodes import PAPER_NODES, REAL_NODES, SaturationTable
from deepvm.core.training.roofline import Accelerator, Interconnect, Machine
from deepvm.core.training.speed import Source, SpeedUncertainty, Training, TrainingSpeed
from deepvm.core.training.workload import Method, Model, Precision, Workload
from deepvm.planner.request import PlanRequest
from support.builders import cpu_type, gpu_type
from support.planner import trained_oracle

GPU_NAMES = ("g2.x", "g10.x", "a1.x", "Z9.x")
NODE_NAMES = ("c5.x", "c10.x", "b1.x", "Y7.x")
MODEL = Model("tiny", "convolution", 1e6, "images", forward_flop=1e9, activation_bytes=1e6)
_GPU = Accelerator("T4", "TU104", "turing", 16, 320, 10, "pcie", 4, {"fp16": 65, "fp32": 8})
_NET = Interconnect("ethernet", "any", 1.0)


@dataclass(frozen=True)
class Tables:
    """A source that knows the speeds of types by name: a table of n = 1, 2, ..., or why there is
    none.
    """

    tables: dict[str, Any]
    fitted: dict[str, int]
    sd: dict[str, float]

    def doubt(self, name: str, vms: FloatArray) -> SpeedUncertainty:
        """A cause per type, a common one, one that grows with the size, and run noise."""
        ones = np.ones(len(vms))
        shared = np.stack([0.3 * ones, trained_oracle.GROWTH * np.log(vms)], axis=1)
        return SpeedUncertainty(
            shared, {name: self.sd[name] * ones, "all": 0.2 * ones}, 0.01 * ones
        )

    def speed(
        self, instance: InstanceType, workload: Workload, vms: FloatArray
    ) -> TrainingSpeed | str:
        """The rows of the table; nothing fits beyond its end."""
        table = self.tables[instance.name]
        if isinstance(table, str):
            return table
        rows = [table[int(n) - 1] if n <= len(table) else None for n in vms]
        fits = np.array([row is not None for row in rows], dtype=np.bool_)
        throughput = np.array([1e-3 if row is None else row for row in rows])
        return TrainingSpeed(
            machine=Machine(_GPU, 1, _NET),
            workload=workload,
            precision=Precision.FP16,
            vms=vms,
            fits=fits,
            step_s=1 / throughput,
            throughput=throughput,
            checkpointing=np.zeros(len(vms), dtype=np.bool_),
            micro_batch=np.ones(len(vms)),
            batch=np.ones(len(vms)),
            doubt_of=lambda: self.doubt(instance.name, vms),
            parts=None,  # type: ignore[arg-type]  # only measured laws look at them
            source=Source.PUBLISHED,
            fitted_vms=self.fitted[instance.name],
        )


# --- dictionaries ---------------------------------------------------------------------------------


def _price(rng: random.Random) -> int:
    return (
        rng.choice((100_000, 200_000, 333_333, 333_334, 66_000))
        if rng.random() < 0.5
        else rng.randint(1, 2_000_000)
    )


def _speeds(rng: random.Random, most: int) -> Any:
    """A table.

    The model may fit from some n on only, its global batch up to some n, and more VMs may be
    slower.
    """
    if rng.random() < 0.1:
        return "nobody knows"
    first = rng.choice((1, 1, 1, 1, 2, 3, 5, most + 1))
    last = rng.choice((first, 1)) if rng.random() < 0.1 else most
    one, cost = rng.choice((10.0, 10.0, 20.0, 37.7, 2e4)), rng.choice((0.0, 0.02, 0.1, 0.5, 1.2))
    noise = rng.choice((0.0, 0.0, 0.3))
    return [
        one * n / (1 + cost * (n - 1)) * (1 + noise * rng.random()) if first <= n <= last else None
        for n in range(1, most + 1)
    ]


def _zones(rng: random.Random) -> tuple[str, ...]:
    return tuple(sorted(rng.sample("ABC", rng.randint(1, 3))))


def _gpu(rng: random.Random, most: int) -> dict[str, Any]:
    kind, spot, zones = rng.random(), _price(rng), _zones(rng)
    by_zone = {zone: spot + rng.choice((0, 1, 1000, _price(rng))) for zone in zones}
    known = kind < 0.5  # spot prices by zone; else one price, with the zones or without
    return {
        "spot": {} if kind > 0.95 else by_zone if known else {"": spot},
        "zones": zones if kind < 0.75 else (),
        "on_demand": None if rng.random() < 0.1 else _price(rng) * 2,
        "vcpus": rng.choice((1, 4, 4, 8, 96)),
        "gpus": rng.choice((1, 1, 2, 8)),
        "network": None if rng.random() < 0.1 else rng.choice((0.5, 5.0, 10.0, 25.0, 100.0)),
        "baseline": rng.choice((None, None, 0.7, 5.0)),
        "band": rng.choice((None, 0, 1, 2, 3, 4)),
        "family": rng.choice(("G", "Standard")),
        "speed": _speeds(rng, most),
        "fitted": rng.choice((1, 2, 4, 8, 64)),
        "sd": rng.choice((0.1, 0.1, 0.2, 0.3, 0.5)),
    }


def _node(rng: random.Random) -> dict[str, Any]:
    # Often about the same: then vCPUs decide
    price = rng.choice((_price(rng), 100_000, 101_000, 103_000, 108_000))
    return {
        "on_demand": None if rng.random() < 0.05 else price,
        "gib": rng.choice((0.5, 2.0, 4.0, 8.0, 16.0, 16.0, 64.0, 256.0)),
        "network": None if rng.random() < 0.05 else rng.choice((0.1, 1.0, 5.0, 10.0, 25.0)),
        "baseline": rng.choice((None, None, 0.2, 0.7, 5.0)),
        "vcpus": rng.choice((1, 2, 4, 8, 96)),
        "family": rng.choice(("G", "Standard")),
        "zones": _zones(rng) if rng.random() < 0.5 else (),
    }


def drawn(rng: random.Random) -> dict[str, Any]:
    """A shop, with what is asked of it.

    Half of the budgets lie exactly at a plan's price, or a micro-dollar below.
    """
    most = rng.choice((12, 8, 5, 3, 2, 1)) if rng.random() < 0.95 else 130
    quotas = {}
    for place in (
        ("G", "spot"),
        ("G", "on-demand"),
        ("Standard", "spot"),
        ("Standard", "on-demand"),
    ):
        if rng.random() < 0.15:
            quotas[place] = rng.choice((400, 96, 33, 32, 12, 4, 3, 1, 0))
    if rng.random() < 0.03:  # a new account
        quotas = dict.fromkeys(
            (("G", "spot"), ("G", "on-demand"), ("Standard", "spot"), ("Standard", "on-demand")), 0
        )
    amount = rng.random() < 0.4
    objectives = ("throughput", "throughput", "flopp", "cost-per-work")
    shop: dict[str, Any] = {
        "gpus": {name: _gpu(rng, most) for name in rng.sample(GPU_NAMES, rng.randint(1, 4))},
        "nodes": {name: _node(rng) for name in rng.sample(NODE_NAMES, rng.randint(0, 4))},
        "quotas": quotas,
        "n_sat": rng.choice(
            (((0.3, 3), (1.7, 12), (5.0, 16), (25.0, 28)), ((1.0, 1),), ((1.0, 2), (10.0, 5)))
        ),
        "rule": "paper" if rng.random() < 0.2 else "real",
        "checkpoint": (
            rng.choice((10**8, 3 * 10**8, 4 * 10**9, 16 * 10**9, 96 * 10**9, 5 * 10**11))
            if rng.random() < 0.8
            else rng.randint(1, 10**11)
        ),
        "buffers": rng.choice((1, 2, 2, 3)),
        "method": rng.choice(("ddp", "fsdp")),
        "batch": rng.choice((1, 1, 1, 2048)),  # of one GPU; 8192 in all are known to train well
        "life_s": rng.choice((None, None, None, 600.0, 3600.0, 4e4, 1e6, math.inf)),
        "architectures": rng.choice(
            (
                (),
                (),
                ("tiering",),
                ("tiering",),
                ("spot-storage",),
                ("single-anchor", "tiering"),
                ("on-demand", "tiering"),
            )
        ),
        "objective": rng.choice((*objectives, "makespan", "total-cost") if amount else objectives),
        "units": rng.choice((1_000, 10**6, 10**8)) if amount else 0,
        "deadline_s": rng.choice((1e3, 4e3, 1e5, 1e6)) if amount and rng.random() < 0.4 else None,
        "most_usd": rng.choice((1, 10, 1000)) if amount and rng.random() < 0.2 else None,
        "max_nodes": most,
        "extrapolate": rng.random() < 0.3,
        "top": rng.randint(1, 5),
        "budget": 10**12,
    }
    found = trained_oracle.plans(shop)
    price = found[rng.randrange(len(found))].price if found else 10**6
    shop["budget"] = rng.choice(
        (price, price, max(0, price - 1), 3 * price, rng.randint(0, 10**7), 10**9)
    )
    return shop


# --- the same for the planner ---------------------------------------------------------------------


def _usd(micro: int | None) -> Decimal | None:
    return None if micro is None else Decimal(micro) / 10**6


def _gpu_type(name: str, gpu: dict[str, Any]) -> InstanceType:
    zones = [(price, zone) for zone, price in gpu["spot"].items() if zone]
    return gpu_type(
        name,
        vcpus=gpu["vcpus"],
        network_gbps=gpu["network"],
        network_baseline_gbps=gpu["baseline"],
        on_demand_usd_per_hour=_usd(gpu["on_demand"]),
        spot_usd_per_hour=_usd(min(gpu["spot"].values(), default=None)),
        spot_zones=tuple(ZonePrice(zone, Decimal(price) / 10**6) for price, zone in sorted(zones)),
        zones=gpu["zones"],
        gpu=Gpu("T4", gpu["gpus"]),
        eflops=None,
        speedups=(),
        quota_family=gpu["family"],
        interruption_band=gpu["band"],
    )


def _node_type(name: str, node: dict[str, Any]) -> InstanceType:
    return cpu_type(
        name,
        vcpus=node["vcpus"],
        memory_gib=node["gib"],
        network_gbps=node["network"],
        network_baseline_gbps=node["baseline"],
        on_demand_usd_per_hour=_usd(node["on_demand"]),
        zones=node["zones"],
        quota_family=node["family"],
    )


def catalog_of(shop: dict[str, Any]) -> Catalog:
    """The types of a shop."""
    types = [_gpu_type(n, g) for n, g in shop["gpus"].items()] + [
        _node_type(n, c) for n, c in shop["nodes"].items()
    ]
    return Catalog(
        name="shop",
        instances=tuple(types),
        memory_nodes=PAPER_NODES if shop["rule"] == "paper" else REAL_NODES,
        n_sat=SaturationTable.from_rows(shop["n_sat"]),
    )


def request_of(shop: dict[str, Any], **options: Any) -> PlanRequest:
    """What is asked of a shop; clusters that differ in anything unless the options say ``rank``."""
    gpus = shop["gpus"]
    source = Tables(*({n: g[key] for n, g in gpus.items()} for key in ("speed", "fitted", "sd")))
    workload = Workload(
        MODEL, Method(shop["method"]), batch=shop["batch"], samples=shop["units"] or None
    )
    life = shop["life_s"]
    never = life is not None and math.isinf(life)
    asked: dict[str, Any] = {
        "training": Training(workload, source),
        "checkpoint_size": shop["checkpoint"],
        "buffers": shop["buffers"],
        "objective": shop["objective"],
        "architecture": shop["architectures"],
        "max_nodes": shop["max_nodes"],
        "quotas": [
            Quota(family, Market(market), v) for (family, market), v in shop["quotas"].items()
        ],
        "top": shop["top"],
        "extrapolate": shop["extrapolate"],
        "mttp": None if never else life,
        "interruption_rate": 0 if never else None,
        "deadline": shop["deadline_s"],
        "total_budget": shop["most_usd"],
        "rank": "plans",
    }
    budget = None if shop["budget"] is None else Decimal(shop["budget"]) / 10**6
    return PlanRequest.parse(budget, **(asked | options))


def plain_gpu(speed: Any, **changes: Any) -> dict[str, Any]:
    """A type at $0.3/h spot and $1/h on demand whose speeds are this table."""
    fields = {
        "spot": {"": 300_000},
        "zones": (),
        "on_demand": 1_000_000,
        "vcpus": 4,
        "gpus": 1,
        "network": 25.0,
        "baseline": None,
        "band": 0,
        "family": "G",
        "speed": speed,
        "fitted": 64,
        "sd": 0.1,
    }
    return fields | changes


def plain_node(**changes: Any) -> dict[str, Any]:
    """A memory node of 16 GiB at $0.2/h."""
    fields = {"on_demand": 200_000, "gib": 16.0, "network": 25.0, "baseline": None, "vcpus": 4}
    return fields | {"family": "Standard", "zones": ()} | changes


def plain_shop(gpus: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A shop with these types and one memory node, and all that money buys."""
    fields = {
        "gpus": gpus,
        "nodes": {"c.x": plain_node()},
        "quotas": {},
        "n_sat": ((0.3, 3), (5.0, 16), (25.0, 28)),
        "rule": "real",
        "checkpoint": 10**9,
        "buffers": 2,
        "method": "ddp",
        "batch": 1,
        "life_s": math.inf,
        "architectures": (),
        "objective": "throughput",
        "units": 0,
        "deadline_s": None,
        "most_usd": None,
        "max_nodes": 12,
        "extrapolate": False,
        "top": 3,
        "budget": 10**9,
    }
    return fields | changes
