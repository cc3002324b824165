"""How long spot VMs live, and what saving and coming back cost them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.builders import gpu_type
from support.planner.trained_cases import catalog_of, plain_gpu, plain_shop, request_of

from deepvm.core.preemption.goodput import kept_share
from deepvm.core.preemption.interruption_bands import MONTH_S
from deepvm.planner.architectures import ON_DEMAND, REGISTRY
from deepvm.planner.candidates import gather
from deepvm.planner.columns import TrainingTable
from deepvm.planner.workload.recovery import SHORT_LIFE_S, lives_of

START_S = 303.2
LINEAR = [10.0 * n for n in range(1, 13)]
GB = 10**9


def sizes(architecture: str = "tiering", *, changes: dict[str, Any] | None = None, **asked: Any) -> TrainingTable:
    """All numbers of one type of VMs that live for an hour, with checkpoints of 16 GB."""
    shop = plain_shop(
        {"g.x": plain_gpu(LINEAR, **(changes or {}))},
        **({"life_s": 3600.0, "checkpoint": 16 * GB, "n_sat": ((0.3, 99),)} | asked),
    )
    found = gather(catalog_of(shop), request_of(shop))
    return found.sizes(ON_DEMAND if architecture == "on-demand" else REGISTRY[architecture])


def expected(spot: int, stall: float, moved: float, life: float = 3600.0) -> float:
    return float(kept_share(*(np.array(x) for x in (spot / life, stall, moved, START_S + moved))))


@pytest.mark.parametrize(("gbps", "gpus"), [(25.0, 1), (10.0, 4), (100.0, 8)])
def test_what_is_whole_is_moved_by_one(gbps: float, gpus: int) -> None:
    found = sizes(changes={"network": gbps, "gpus": gpus})
    moved, stall = 16 / (gbps / 8 * 0.8), 16 / (6 * gpus)
    assert found.kept == pytest.approx([expected(n, stall, moved) for n in range(1, 13)])


def test_what_is_split_is_moved_n_times_as_fast() -> None:
    found = sizes(method="fsdp")
    assert found.kept == pytest.approx([expected(n, 16 / 6 / n, 16 / 2.5 / n) for n in range(1, 13)])
    assert (found.kept[1:] > sizes(method="ddp").kept[1:]).all()


def test_a_sustained_bandwidth_counts_before_a_peak_and_an_unknown_one_is_low() -> None:
    assert sizes(changes={"network": 25.0, "baseline": 5.0}).kept == pytest.approx(sizes(changes={"network": 5.0}).kept)
    unknown = sizes("spot-storage", changes={"network": None})
    assert unknown.kept == pytest.approx(sizes("spot-storage", changes={"network": 5.0}).kept)


def test_a_bucket_is_never_faster_than_its_limit() -> None:
    """1.25 GB/s is 80 % of 12.5 Gbit/s: a faster network does not help there, and a slower one still limits."""
    limit = sizes("spot-storage", changes={"network": 12.5}).kept
    for gbps in (25.0, 100.0, 400.0):
        assert sizes("spot-storage", changes={"network": gbps}).kept == pytest.approx(limit)
        assert (sizes(changes={"network": gbps}).kept > limit).all(), "nodes are as fast as their network"
    assert (sizes("spot-storage", changes={"network": 5.0}).kept < limit).all()
    assert sizes("spot-storage", changes={"network": 5.0}).kept == pytest.approx(sizes(changes={"network": 5.0}).kept)


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


@pytest.mark.parametrize("life", [1800.0, 3600.0, 1e6, math.inf])
def test_the_user_s_figure_replaces_both_ends(life: float) -> None:
    for band in (None, 0, 4):
        shop = plain_shop({"g.x": plain_gpu(LINEAR)}, life_s=life)
        lives = lives_of(gpu_type(interruption_band=band), request_of(shop))
        assert (lives.bad_s, lives.usual_s, lives.good_s) == (life, life, life)
        found = sizes(life_s=life, changes={"band": band})
        assert (found.kept == found.kept_bad).all() and (found.kept == found.kept_good).all()
    if math.isinf(life):
        assert found.kept == pytest.approx(np.ones(12), abs=1e-4)
