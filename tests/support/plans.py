"""Plans and the documents that they are read from, with defaults: a test says only what it is
about.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan, PlannedVms, PlanSource

ZONES = (
    ZonePrice("use1-az4", Decimal("0.1578"), "us-east-1a"),
    ZonePrice("use1-az1", Decimal("0.1601"), "us-east-1b"),
)
SOURCE = PlanSource("aws", "live", date(2026, 8, 10), "AWS price list")


def gpu_vms(spot: int = 17, on_demand: int = 0, **changes: Any) -> PlannedVms:
    """T4 VMs in two zones."""
    fields: dict[str, Any] = {
        "instance_type": "g4dn.xlarge",
        "spot_usd_per_hour": Decimal("0.1578"),
        "on_demand_usd_per_hour": Decimal("0.526"),
        "gpu_name": "T4",
        "gpus_per_vm": 1,
        "cpu_architecture": "x86_64",
        "zones": ZONES,
    }
    return PlannedVms(spot_count=spot, on_demand_count=on_demand, **(fields | changes))


def memory_vms(count: int = 1, **changes: Any) -> PlannedVms:
    """On-demand memory nodes."""
    fields: dict[str, Any] = {
        "instance_type": "c5.xlarge",
        "on_demand_usd_per_hour": Decimal("0.17"),
        "cpu_architecture": "x86_64",
    }
    return PlannedVms(on_demand_count=count, **(fields | changes))


def tiering(**changes: Any) -> Plan:
    """17 spot VMs and a memory node."""
    fields: dict[str, Any] = {
        "rank": 1,
        "architecture": "tiering",
        "training": gpu_vms(),
        "memory": memory_vms(),
        "usd_per_hour": Decimal("2.8526"),
        "region": "us-east-1",
        "zone": "use1-az4",
        "source": SOURCE,
    }
    return Plan(**(fields | changes))


def single_anchor(**changes: Any) -> Plan:
    """8 spot VMs and an anchor of the same type with two GPUs each."""
    fields: dict[str, Any] = {
        "architecture": "single-anchor",
        "training": gpu_vms(8, 1, gpus_per_vm=2),
        "memory": None,
        "usd_per_hour": Decimal("1.7884"),
    }
    return tiering(**(fields | changes))


def spot_only(**changes: Any) -> Plan:
    """Four spot VMs and nothing that is sure to stay; no zones, no region."""
    fields: dict[str, Any] = {
        "architecture": "all-spot",
        "training": gpu_vms(4, zones=(), gpus_per_vm=None, gpu_name=""),
        "memory": None,
        "usd_per_hour": Decimal("0.6312"),
        "region": "",
        "zone": "",
    }
    return tiering(**(fields | changes))


PLANS = {"tiering": tiering(), "single-anchor": single_anchor(), "spot-only": spot_only()}

_PRICES = st.decimals("0.001001", "100", places=6)
_COUNTS = st.integers(0, 200)


@st.composite
def any_plan(draw: st.DrawFn) -> Plan:
    """Any plan whose price is the sum of its parts, as the reader of plans makes sure."""
    spot, on_demand = draw(_COUNTS), draw(_COUNTS)
    assume(spot + on_demand)
    prices = draw(st.lists(_PRICES, min_size=1, max_size=5))
    zones = tuple(ZonePrice(f"z{i}", p) for i, p in enumerate(sorted(prices)))
    # Not always the cheapest: memory nodes may be sold elsewhere only
    start = draw(st.sampled_from(zones))
    vms = gpu_vms(
        spot,
        on_demand,
        spot_usd_per_hour=start.usd_per_hour,
        on_demand_usd_per_hour=draw(_PRICES),
        zones=zones if draw(st.booleans()) else (),
    )
    memory = (
        memory_vms(draw(st.integers(1, 9)), on_demand_usd_per_hour=draw(_PRICES))
        if draw(st.booleans())
        else None
    )
    plan = tiering(training=vms, memory=memory, zone=start.zone)
    each = [g.usd_per_hour for g in plan.groups for _ in range(g.count)]
    return replace(plan, usd_per_hour=sum((p for p in each if p is not None), Decimal(0)))


_DOCUMENT: dict[str, Any] = {
    "schema_version": "deepvm.recommend/1",
    "source": {
        "catalog": "aws",
        "region": "us-east-1",
        "prices_as_of": "2026-08-10",
        "kind": "live",
        "source": "AWS price list",
    },
    "configurations": [
        {
            "rank": 1,
            "architecture": "tiering",
            "gpu": {
                "instance_type": "g4dn.xlarge",
                "count": 17,
                "spot_count": 17,
                "on_demand_count": 0,
                "spot_usd_per_hour": 0.1578,
                "on_demand_usd_per_hour": 0.526,
                "gpu_name": "T4",
                "gpus_per_vm": 1,
                "cpu_architecture": "x86_64",
                "zones": [
                    {"zone": "use1-az1", "zone_name": "us-east-1b", "usd_per_hour": 0.1601},
                    {"zone": "use1-az4", "zone_name": "us-east-1a", "usd_per_hour": 0.1578},
                ],
            },
            "memory": {
                "instance_type": "c5.xlarge",
                "count": 1,
                "on_demand_usd_per_hour": 0.17,
                "cpu_architecture": "x86_64",
            },
            "usd_per_hour": 2.8526,
            "region": "us-east-1",
            "zone": "use1-az4",
            "warnings": [],
        },
        {
            "rank": 2,
            "architecture": "single-anchor",
            "gpu": {
                "instance_type": "g4dn.xlarge",
                "count": 9,
                "spot_count": 8,
                "on_demand_count": 1,
            },
            "memory": None,
            "usd_per_hour": 1.7884,
        },
    ],
}


def document() -> dict[str, Any]:
    """The document whose first configuration is :func:`tiering`, free to be changed."""
    return copy.deepcopy(_DOCUMENT)


def text(changed: dict[str, Any] | None = None) -> str:
    """A document as JSON."""
    return json.dumps(document() if changed is None else changed)
