"""Documented limits of new accounts against single clusters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deepvm.catalog.published.performance import PublishedPerformance
from deepvm.catalog.published.workloads import read_workload
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Reservation
from deepvm.core.training.speed import Training
from deepvm.io.user_dirs import read_data
from deepvm.planner.recommend import solve
from deepvm.planner.request import PlanRequest
from deepvm.services.new_account import lacking

CLOUDS = read_data("clouds/new_accounts.json")["clouds"]
RESNET = Training(read_workload(model="resnet50"), PublishedPerformance())


def test_runpod_limits_what_pods_cost_together() -> None:
    catalog = load_catalog("runpod-us-tx-3", prices="snapshot")
    cluster = solve(catalog, PlanRequest.parse("60", training=RESNET))[0].cluster
    assert lacking(CLOUDS, cluster, catalog) == ""
    many = replace(cluster, on_demand_count=100)
    assert lacking(CLOUDS, many, catalog) == "a new account may spend $80/h"


def test_gcp_grants_gpus_and_asks_for_none_of_a_reservation() -> None:
    catalog = load_catalog("gcp-us-central1", prices="snapshot")
    cluster = solve(catalog, PlanRequest.parse("3", training=RESNET))[0].cluster
    assert lacking(CLOUDS, cluster, catalog) == "a new account has 0 GPUs"
    pool = Reservation("own", cluster.gpu.name, 4, "reservation", None, "")
    reserved = replace(cluster, gpu=replace(cluster.gpu, reserved=pool))
    assert lacking(CLOUDS, reserved, catalog) == ""


@pytest.mark.parametrize(
    ("family", "said"), [("P", "a new account has 0 vCPUs of P (spot)"), ("Trn", None)]
)
def test_families_of_aws(family: str, said: str | None) -> None:
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    cluster = solve(catalog, PlanRequest.parse("3"))[0].cluster
    gpu = replace(cluster.gpu, quota_family=family)
    spot = replace(cluster, gpu=gpu, spot_count=1, on_demand_count=0, memory=None)
    assert lacking(CLOUDS, spot, catalog) == said


def test_all_that_is_lacking_is_named() -> None:
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    cluster = solve(catalog, PlanRequest.parse("3"))[0].cluster
    gpu = replace(cluster.gpu, quota_family="P")
    both = replace(cluster, gpu=gpu, spot_count=1, on_demand_count=1, memory=None)
    lacks = "a new account has 0 vCPUs of P (spot) and 0 vCPUs of P (on-demand)"
    assert lacking(CLOUDS, both, catalog) == lacks
