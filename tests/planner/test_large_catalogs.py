"""Catalogs of thousands of types: the time for each type stays about the same."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

import pytest

from deepvm.catalog.store import load_catalog
from deepvm.planner.columns import REGISTRY
from deepvm.planner.recommend import solve
from deepvm.planner.request import PlanRequest, SolverName

LARGE, SMALL = 5000, 500


def file_of(count: int, folder: Path) -> Path:
    """As many types with GPUs as without, no two at one price."""
    rows = []
    for i in range(count):
        row = {
            "instance_type": f"t{i}.x",
            "vcpus": 8,
            "memory_gib": 64,
            "network_gbps": 10,
            "quota_family": "G",
        }
        row["on_demand_usd_per_hour"] = f"{0.5 + i / 10_000:.4f}"
        if i % 2:
            row |= {
                "gpu": {"name": "T4"},
                "eflops": 100 + i,
                "speedups": [{"kind": "ring", "c": 0.1, "l": 0.001}],
            }
            row["spot_usd_per_hour"] = f"{0.1 + i / 10_000:.4f}"
        rows.append(row)
    path = folder / f"{count}.json"
    path.write_text(
        json.dumps(
            {"schema_version": "deepvm.catalog/1", "default_speedup": "ring", "instances": rows}
        )
    )
    return path


def seconds_of_a_type(count: int, folder: Path) -> float:
    path = file_of(count, folder)
    request = PlanRequest.parse(
        30, max_nodes=4, architecture=tuple(REGISTRY), solver=SolverName.FRONTIER.value
    )
    gc.collect()
    start = time.process_time()
    found = solve(load_catalog(path), request)
    seconds = time.process_time() - start
    assert len(found) == request.top and len(found.catalog) == count
    return seconds / count


@pytest.mark.system
def test_the_time_for_a_type_does_not_grow_with_the_catalog(tmp_path: Path) -> None:
    """Every type once asked every other one, and a catalog ten times as large took 25 times as
    long.
    """
    seconds_of_a_type(10, tmp_path)  # what is loaded once
    gc.disable()  # its passes take longer the more there is
    try:
        small, large = (
            min(seconds_of_a_type(count, tmp_path) for _ in range(2)) for count in (SMALL, LARGE)
        )
    finally:
        gc.enable()
    assert large < 1.6 * small
