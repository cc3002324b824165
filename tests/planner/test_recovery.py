"""How long spot VMs live, and what saving and coming back cost them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.builders import gpu_type
from support.planner.trained_cases import catalog_of, plain_gpu, plain_shop, request_of

from deepvm.core.cluster.cluster import Cluster
from deepvm.core.lifetimes import ALLOCATION_S, MONTH_S, kept_share
from deepvm.core.preemption.job import Job, Span
from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.planner.candidates import gather
from deepvm.planner.columns import ON_DEMAND, REGISTRY, TrainingTable
from deepvm.planner.recovery import SHORT_LIFE_S, as_counted, lives_of, nodes_to_receive, receive_s
from deepvm.simulator.monte_carlo import simulate

START_S = 303.2
LINEAR = [10.0 * n for n in range(1, 13)]
GB = 10**9


def sizes(
    architecture: str = "tiering", *, changes: dict[str, Any] | None = None, **asked: Any
) -> TrainingTable:
    """All numbers of one type of VMs that live for an hour, with checkpoints of 16 GB."""
    shop = plain_shop(
        {"g.x": plain_gpu(LINEAR, **(changes or {}))},
        **({"life_s": 3600.0, "checkpoint": 16 * GB, "n_sat": ((0.3, 99),)} | asked),
    )
    found = gather(catalog_of(shop), request_of(shop))
    return found.sizes(ON_DEMAND if architecture == "on-demand" else REGISTRY[architecture])


def expected(spot: int, stall: float, moved: float, life: float = 3600.0) -> float:
    return float(kept_share(*(np.array(x) for x in (spot / life, stall, moved, START_S + moved))))


def test_what_is_whole_is_moved_by_one() -> None:
    for gbps, gpus in [(25.0, 1), (10.0, 4), (100.0, 8)]:
        found = sizes(changes={"network": gbps, "gpus": gpus})
        moved, stall = max(12.8, 16 / (gbps / 8 * 0.8)), 16 / (6 * gpus)
        assert found.kept == pytest.approx([expected(n, stall, moved) for n in range(1, 13)])


def test_what_is_split_is_moved_n_times_as_fast_into_a_bucket() -> None:
    found = sizes("spot-storage", method="fsdp")
    assert found.kept == pytest.approx(
        [expected(n, 16 / 6 / n, 16 / 1.25 / n) for n in range(1, 13)]
    )
    assert (found.kept[1:] > sizes("spot-storage", method="ddp").kept[1:]).all()


def test_memory_nodes_and_an_anchor_receive_all_parts() -> None:
    """They have networks of their own: more senders are no faster."""
    nodes, anchor = sizes(method="fsdp"), sizes("single-anchor", method="fsdp")
    assert nodes.kept == pytest.approx([expected(n, 16 / 6 / n, 16 / 1.25) for n in range(1, 13)])
    assert anchor.kept == pytest.approx(
        [expected(n - 1, 16 / 6 / n, 16 * (n - 1) / n / (1.25 * 2)) for n in range(2, 13)]
    )


def test_memory_nodes_are_as_many_as_receive_a_version_in_time() -> None:
    """In ten seconds, or with 1.25 GB/s, at four fifths of their networks."""
    for gbps, size, nodes in [
        (10.0, 300_000_000, 1),
        (0.1, 300_000_000, 3),
        (12.5, 16 * GB, 1),
        (12.4, 16 * GB, 2),
        (3.125, 840 * GB, 4),
    ]:
        assert nodes_to_receive(gbps, size) == nodes
        assert receive_s(size) == pytest.approx(max(10, size / 1.25e9))
        assert nodes * gbps / 8 * 0.8 * receive_s(size) >= size / 1e9 * (1 - 1e-9)


def test_the_simulated_job_is_the_one_that_is_counted() -> None:
    """The same stalls, delays, restarts and lives."""
    for method in ["ddp", "fsdp"]:
        for architecture in ["on-demand", "single-anchor", "spot-storage", "tiering"]:
            shop = plain_shop(
                {"g.x": plain_gpu(LINEAR)},
                life_s=12 * 3600.0,
                checkpoint=16 * GB,
                n_sat=((0.3, 99),),
                method=method,
            )
            request = request_of(shop)
            candidates = gather(catalog_of(shop), request)
            table = candidates.sizes(REGISTRY[architecture])
            row = int(np.flatnonzero(table.count == 4)[0])
            gpu, steps = table.types[int(table.type_index[row])], 2_000_000
            cluster = Cluster(
                architecture, gpu, int(table.spot[row]), int(table.on_demand[row]), None
            )
            plain = Job(
                steps=steps,
                step_s=Span.of(1.0),
                allocation_s=Span(*ALLOCATION_S),
                vms=max(cluster.spot_count, 1),
            )
            job = as_counted(plain, cluster, request)
            runs = simulate(job, parse_policy("young"), runs=40, seed=3)
            assert steps / float(np.mean(runs.total_s)) == pytest.approx(
                float(table.kept[row]), rel=0.02
            )


def test_a_sustained_bandwidth_counts_before_a_peak_and_an_unknown_one_is_low() -> None:
    assert sizes(changes={"network": 25.0, "baseline": 5.0}).kept == pytest.approx(
        sizes(changes={"network": 5.0}).kept
    )
    unknown = sizes("spot-storage", changes={"network": None})
    assert unknown.kept == pytest.approx(sizes("spot-storage", changes={"network": 5.0}).kept)


def test_a_bucket_is_never_faster_than_its_limit() -> None:
    """1.25 GB/s is 80 % of 12.5 Gbit/s: a faster network does not help, and a slower one still
    limits.
    """
    limit = sizes("spot-storage", changes={"network": 12.5}).kept
    for gbps in (25.0, 100.0, 400.0):
        assert sizes("spot-storage", changes={"network": gbps}).kept == pytest.approx(limit)
        assert sizes(changes={"network": gbps}).kept == pytest.approx(limit), (
            "nodes need be no faster"
        )
    assert (sizes("spot-storage", changes={"network": 5.0}).kept < limit).all()
    assert sizes("spot-storage", changes={"network": 5.0}).kept == pytest.approx(
        sizes(changes={"network": 5.0}).kept
    )


def test_vms_on_demand_lose_nothing_and_an_anchor_is_not_lost() -> None:
    for column in ("kept", "kept_bad", "kept_good"):
        assert (getattr(sizes("on-demand", life_s=600.0), column) == 1).all()
    found = sizes("single-anchor")
    assert found.count.tolist() == list(range(2, 13))
    assert found.kept == pytest.approx([expected(n - 1, 16 / 6, 16 / 2.5) for n in range(2, 13)])


def test_an_unknown_band_counts_as_the_worst() -> None:
    request = request_of(plain_shop({"g.x": plain_gpu(LINEAR)}, life_s=None))
    lives = [lives_of(gpu_type(interruption_band=band), request) for band in (0, 1, 2, 3, 4)]
    assert lives_of(gpu_type(interruption_band=None), request) == lives[-1]
    assert [x.good_s for x in lives] == sorted((x.good_s for x in lives), reverse=True)
    assert {x.bad_s for x in lives} == {SHORT_LIFE_S} == {14_400.0}
    for x in lives:
        assert x.usual_s == pytest.approx(math.sqrt(x.bad_s * x.good_s))
        assert x.bad_s < x.usual_s < x.good_s
    assert lives[-1].good_s == pytest.approx(-MONTH_S / math.log(0.75))


def test_the_shares_stand_in_the_order_of_the_lives() -> None:
    found = sizes(life_s=None, changes={"band": 2})
    assert (found.kept_bad < found.kept).all() and (found.kept < found.kept_good).all()
    assert (np.diff(found.kept) < 0).all(), "more VMs are hit more often"


def test_the_user_s_figure_replaces_both_ends() -> None:
    for life in [1800.0, 3600.0, 1e6, math.inf]:
        for band in (None, 0, 4):
            shop = plain_shop({"g.x": plain_gpu(LINEAR)}, life_s=life)
            lives = lives_of(gpu_type(interruption_band=band), request_of(shop))
            assert (lives.bad_s, lives.usual_s, lives.good_s) == (life, life, life)
            found = sizes(life_s=life, changes={"band": band})
            assert (found.kept == found.kept_bad).all() and (found.kept == found.kept_good).all()
        if math.isinf(life):
            assert found.kept == pytest.approx(np.ones(12), abs=1e-4)
