"""The solvers on all of AWS us-east-1, where bigger machines are often cheaper and one type
dominates many.
"""

from __future__ import annotations

import csv

import pytest
from support.builders import catalog, cpu_type, gpu_type
from support.places import SHARED
from support.planning import recommend

from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog, Gpu
from deepvm.core.cluster.speedup import RingSpeedup
from deepvm.planner.search.enumeration import SolveStatus

SOURCE = SHARED / "data" / "aws" / "catalog_us-east-1.csv"
# Invented ratios, good enough to make types differ; the measured ones are T4 377 and A10G 696.
EFLOPS = {
    "T4": 377,
    "A10G": 696,
    "T4g": 377,
    "L4": 353,
    "L40S": 1006,
    "V100": 1048,
    "A100": 1811,
    "H100": 3902,
}


@pytest.fixture(scope="module")
def real() -> Catalog:
    if not SOURCE.exists():
        pytest.skip("the shared AWS catalog is not here")
    instances = []
    with SOURCE.open() as lines:
        for row in csv.DictReader(lines):
            if (
                not row["ondemand_usd"]
                or not row["spot_usd"]
                or row["gpu_partition"] not in ("", "1.0")
            ):
                continue
            common = {
                "vcpus": int(row["vcpu"]),
                "memory_gib": float(row["memory_gib"]),
                "network_gbps": float(row["net_peak_gbps_total"] or 0) or None,
                "on_demand_usd_per_hour": row["ondemand_usd"],
                "spot_usd_per_hour": row["spot_usd"],
            }
            if row["gpu_name"] in EFLOPS:
                count = int(float(row["gpu_count"]))
                ring = RingSpeedup(0.5 + 40 / (common["network_gbps"] or 10), 0.05)
                more = {
                    "gpu": Gpu(row["gpu_name"], count),
                    "eflops": EFLOPS[row["gpu_name"]] * count,
                }
                instances.append(gpu_type(row["instance_type"], **common, **more, speedups=(ring,)))
            elif not row["gpu_name"] and row["burstable"] != "True":
                instances.append(cpu_type(row["instance_type"], **common))
    return catalog(*instances, default_speedup="ring")


def test_it_is_the_size_that_it_should_be(real: Catalog) -> None:
    assert sum(i.gpu is not None for i in real) > 30
    assert sum(i.gpu is None for i in real) > 500


def test_solvers_agree(real: Catalog) -> None:
    for budget in ["0.9", "3", "10", "47.5", "300"]:
        for objective in ["throughput", "flopp", "cost-per-work"]:
            by_ilp = recommend(real, budget, objective=objective, top=5)
            by_enumeration = recommend(real, budget, objective=objective, top=5, solver="frontier")
            assert (
                by_ilp.status is SolveStatus.OPTIMAL
            )  # anything else would mean that they disagreed
            assert [(r.cluster, r.usd_per_hour) for r in by_ilp] == [
                (r.cluster, r.usd_per_hour) for r in by_enumeration
            ]
            assert len(by_ilp) == 5


def test_unprofiled_gpus_are_named_before_what_was_left_out_and_the_first_cure_works() -> None:
    for options in [
        {"gpu": "H100"},
        {"gpu": ["L4", "B200"]},
        {"instance_type": "p5.*"},
        {"gpus_min": 8},
        {"gpu_memory_min": "80GB"},
        {"gpu": "h100", "gpus_max": 4, "generation": "current"},
    ]:
        market = load_catalog("aws-us-east-1", prices="snapshot")
        why = recommend(market, 1000, **options).infeasible
        assert why is not None and why.constraint == "types"
        reason, advice = why.reason, why.advice
        assert reason.startswith("no GPU type can be used: without measured eFLOPS (")
        assert reason.index("without measured") < reason.index("left out by your options")
        cures = [
            advice.index(c)
            for c in ("--estimates", "'deepvm profile eflops --save'", "allow more types")
        ]
        assert cures == sorted(cures)
        assert recommend(market, 1000, **options, estimates=True)


def test_only_cures_that_help_are_named() -> None:
    market = load_catalog("aws-us-east-1", prices="snapshot")
    alone = recommend(market, 3, exclude="*").infeasible
    assert alone is not None and alone.advice == "allow more types" and "eFLOPS" not in alone.reason
    # A share of a GPU has no estimate either: nothing is promised.
    never = recommend(catalog(gpu_type(eflops=None), cpu_type()), 3).infeasible
    assert (
        never is not None
        and "--estimates" not in never.advice
        and "profile eflops --save" in never.advice
    )
