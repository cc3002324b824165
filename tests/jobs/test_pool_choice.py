"""Which pool is asked next: by what happened there, and not where one has just refused or taken a machine back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.pool_choice import PoolRecord, free_pools, in_order, record_of, refused, rested
from deepvm.jobs.decisions.react import react
from deepvm.jobs.decisions.world import LOST, PREEMPTED, REFUSED, RELEASED, Pool, Terms, World

NOW = 1_000_000_000.0
A, B, C = (Pool("g4dn.xlarge", f"us-east-1{z}", "spot", 0.3) for z in "abc")
OTHER = Pool("g5.xlarge", "us-east-1a", "spot", 0.5)


def row(pool: Pool, hours: float, reason: str = RELEASED, ago_h: float = 24.0 * 3) -> dict[str, Any]:
    """A machine of the history, that was asked for so long ago, and lived so long."""
    began = NOW - ago_h * 3600
    had = reason != REFUSED
    return {
        "instance_type": pool.instance_type,
        "zone": pool.zone,
        "market": pool.market,
        "requested_s": began,
        "launched_s": began if had else None,
        "ended_s": began + hours * 3600 if had else None,
        "end_reason": reason,
    }


def test_figures_by_hand() -> None:
    found = PoolRecord(lived_h=30.0, taken=3, granted=4, refused=2)
    assert found.preemptions_per_hour == pytest.approx((1 + 3) / (10 + 30))
    assert found.refusals == pytest.approx((0.5 + 2) / (3 + 4 - 1))
    assert found.usd_per_useful_hour(0.5) == pytest.approx(0.5 * (1 + 0.1 * (0.1 + 0.05 * 2.5 / 6)))


def test_what_is_counted() -> None:
    rows = [
        row(A, 2, PREEMPTED),
        row(A, 3, LOST),
        row(A, 5),
        row(A, 0, REFUSED, ago_h=1),
        row(A, 1, ago_h=2),
        row(A, 0, REFUSED, ago_h=48),  # capacity of the day before yesterday
        row(A, 100, PREEMPTED, ago_h=24 * 40),  # too long ago
        row(B, 1, PREEMPTED),
        row(OTHER, 1, PREEMPTED),
        {**row(A, 1), "market": "on-demand"},
    ]
    assert record_of(A, rows, NOW) == PoolRecord(lived_h=11.0, taken=2, granted=1, refused=1)
    region = replace(A, zone="us-east-1")
    assert record_of(region, rows, NOW).taken == 3
    still = {**row(A, 1), "ended_s": None, "launched_s": NOW - 7200}
    assert record_of(A, [still], NOW).lived_h == pytest.approx(2.0)


def test_order() -> None:
    assert in_order([A, B, C], [], NOW) == (A, B, C)
    assert in_order([A, B], [row(A, 0.2, PREEMPTED) for _ in range(20)], NOW) == (B, A)
    assert in_order([A, B], [row(A, 0, REFUSED, ago_h=1) for _ in range(8)], NOW) == (B, A)
    assert in_order([replace(A, usd_per_hour=0.4), B], [], NOW)[0] == B
    cheap, history = replace(A, usd_per_hour=0.1), [row(A, 0.5, PREEMPTED) for _ in range(20)]
    assert in_order([cheap, B], history, NOW)[0] == cheap  # a third of the price is worth some preemptions


def world(*pools: Pool) -> World:
    return World(Terms(1, 1, cool_s=30.0), 0.0, pools=pools)


def test_a_pool_that_refused_is_left_alone_longer_each_time() -> None:
    once = refused(world(A, B), A)
    assert free_pools(once) == [B] and free_pools(replace(once, now_s=30.0)) == [A, B]
    twice = refused(replace(once, now_s=30.0), A)
    assert free_pools(replace(twice, now_s=89.0)) == [B] and free_pools(replace(twice, now_s=90.0)) == [A, B]
    assert free_pools(refused(once, B)) == []


def test_refusals_of_one_round_count_once() -> None:
    now, acts = react(replace(world(A), terms=Terms(8, 8, cool_s=30.0)), d.Tick(), 0.0)
    assert len(acts) == 8
    for number in range(1, 9):
        now, _ = react(now, d.Refused(f"m{number}", "no capacity"), 0.5 + number / 10)
    _, acts = react(now, d.Tick(), 29.0)
    assert not acts
    _, acts = react(now, d.Tick(), 31.0)
    assert len(acts) == 8


@pytest.mark.parametrize("place", ["anchor", "steady"])
def test_each_pool_that_refused_is_left_alone(place: str) -> None:
    other = replace(OTHER, market="on-demand")
    terms = Terms(2, 2, cool_s=30.0, **{place: other, "anchors" if place == "anchor" else "steadies": 1})
    now, acts = react(replace(world(A), terms=terms), d.Tick(), 0.0)
    refused_id = next(act.id for act in acts if now.machines[act.id].pool == other)
    now, acts = react(now, d.Refused(refused_id, "no capacity"), 1.0)
    assert not acts, "asked for again without a pause"
    now, acts = react(now, d.Tick(), 30.0)
    assert not acts
    now, acts = react(now, d.Tick(), 31.0)
    assert [now.machines[act.id].pool for act in acts] == [other]


def test_a_pool_rests_after_a_notice_where_there_is_another() -> None:
    after = rested(world(A, B), replace(A, usd_per_hour=0.31))
    assert free_pools(after) == [B] and free_pools(replace(after, now_s=300.0)) == [A, B]
    assert free_pools(refused(after, B)) == [A]  # better than none
    assert free_pools(rested(world(A), A)) == [A]
    assert free_pools(rested(world(A, OTHER), A)) == [A, OTHER]  # another type is no equal of it
    assert free_pools(refused(refused(after, A), B)) == []


def test_the_replacement_comes_from_elsewhere() -> None:
    now, first = react(world(A, B), d.Tick(), 1.0)
    assert [now.machines[r.id].pool for r in first if isinstance(r, d.Request)] == [A]
    now, _ = react(now, [d.Launched("m1", 1.0), d.Heard("m1", warm=True)], 2.0)
    now, acts = react(now, d.Noticed("m1", 122.0), 3.0)
    assert [now.machines[r.id].pool for r in acts if isinstance(r, d.Request)] == [B]


def test_what_the_cloud_has_chosen_is_written_down() -> None:
    region = replace(A, zone="us-east-1")
    now, _ = react(world(region), d.Tick(), 1.0)
    after, _ = react(now, d.Launched("m1", 1.5, "us-east-1c", 0.25), 2.0)
    pool = after.machines["m1"].pool
    assert (pool.zone, pool.usd_per_hour) == ("us-east-1c", 0.25)
    listed, _ = react(now, d.Listed({"m1": 1.5}, zones={"m1": "us-east-1b"}), 2.0)  # the reply was lost
    assert listed.machines["m1"].pool.zone == "us-east-1b" and listed.machines["m1"].pool.usd_per_hour == 0.3


def test_a_steady_machine_counts_in_whichever_zone() -> None:
    steady = Pool("g4dn.xlarge", "us-east-1", "on-demand", 0.5)
    begun = World(Terms(1, 2, steady=steady, steadies=1), 0.0, pools=(A,))
    now, acts = react(begun, d.Tick(), 1.0)
    assert len(acts) == 2
    now, _ = react(now, [d.Launched("m1", 1.0, "us-east-1c"), d.Launched("m2", 1.0)], 2.0)
    now, acts = react(now, d.Tick(), 3.0)
    assert not acts
