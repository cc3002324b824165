"""Reserved pools and savings plans in a catalog, and what the planner makes of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from support.builders import catalog, cpu_type, gpu_type
from support.planning import recommend

import deepvm
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.commitments import (
    ReservedPool,
    read_savings_plan,
    with_reserved,
    with_savings,
)
from deepvm.core.cluster.instances import Catalog, Market
from deepvm.errors import RequestError

NOW = datetime(2026, 11, 27, 8, tzinfo=timezone.utc)


def pool(**changes: Any) -> ReservedPool:
    fields: dict[str, Any] = {
        "name": "block",
        "instance_type": "gpu.xlarge",
        "count": 3,
        "usd_per_hour": Decimal("0.2"),
    }
    return ReservedPool(**(fields | changes))


def reserved(*pools: ReservedPool, **changes: Any) -> Catalog:
    return with_reserved([catalog(**changes)], pools, NOW)[0][0]


def test_savings_plans_are_read() -> None:
    for text, share, glob in [
        ("28%", "0.28", "*"),
        ("p5.*=28.5 %", "0.285", "p5.*"),
        ("5%", "0.05", "*"),
    ]:
        found = read_savings_plan(text)
        assert (found.share, found.glob) == (Decimal(share), glob)


def test_what_is_no_discount_is_refused() -> None:
    for text in ["", "28", "0.28", "100%", "0%", "-5%", "=5%", "p5.*=", "p5.*"]:
        with pytest.raises(RequestError, match="savings_plan"):
            read_savings_plan(text)


def test_a_savings_plan_lowers_on_demand_prices_alone_and_rounds_up() -> None:
    base = catalog(gpu_type(on_demand_usd_per_hour="0.526001"), cpu_type())
    (found,) = with_savings([base], [read_savings_plan("gpu.*=33%")])
    assert found["gpu.xlarge"].on_demand_usd_per_hour == Decimal("0.352421")  # 0.35242067
    assert found["gpu.xlarge"].spot_usd_per_hour == base["gpu.xlarge"].spot_usd_per_hour
    assert found["cpu.xlarge"] == base["cpu.xlarge"]


def test_the_best_of_several_plans_counts() -> None:
    (found,) = with_savings([catalog()], [read_savings_plan("50%"), read_savings_plan("gpu.*=10%")])
    assert found["gpu.xlarge"].on_demand_usd_per_hour == Decimal("0.5")


def test_a_plan_of_no_type_is_refused() -> None:
    with pytest.raises(RequestError, match=r"p6\.\*"):
        with_savings([catalog()], [read_savings_plan("p6.*=10%")])


def test_a_pool_is_a_type_of_its_own_with_a_count() -> None:
    found = reserved(pool(until=NOW + timedelta(hours=10)))["gpu.xlarge@block"]
    assert (found.on_demand_usd_per_hour, found.spot_usd_per_hour) == (Decimal("0.2"), None)
    assert found.type_name == "gpu.xlarge" and found.reserved is not None
    assert found.reserved.left_s == 36_000


def test_no_more_vms_than_the_pool_has() -> None:
    answer = recommend(
        reserved(pool()), 100, instance_type="gpu.xlarge@block", architecture="on-demand", quotas=()
    )
    assert answer[0].cluster.gpu_count == 3
    assert [b.constraint for b in answer[0].binding] == ["reservation"]
    assert any("reservation block" in w for w in answer[0].warnings)


def test_a_pool_goes_by_the_name_of_its_type_and_can_be_left_out() -> None:
    both = reserved(pool())
    named = recommend(
        both, 100, instance_type="gpu.xlarge", architecture="on-demand", rank="machines"
    )
    assert {r.cluster.gpu.name for r in named} >= {"gpu.xlarge", "gpu.xlarge@block"}
    without = recommend(both, 100, exclude="*@block", architecture="on-demand", top=9)
    assert {r.cluster.gpu.name for r in without} == {"gpu.xlarge"}


def test_a_pool_that_ends_before_the_job_is_no_candidate() -> None:
    short, long = (reserved(pool(until=NOW + timedelta(hours=h))) for h in (1, 1000))
    asked: dict[str, Any] = {
        "work": 50,
        "architecture": "on-demand",
        "instance_type": "gpu.xlarge@block",
    }
    found = recommend(long, 100, **asked)
    assert found and found[0].outlook is not None and found[0].outlook.total_s < 1000 * 3600
    none = recommend(short, 100, **asked)
    assert not none
    assert {r.instance_type: r.reason for r in none.rejections}["gpu.xlarge@block"] == "reserved"


def test_pools_that_have_ended_or_are_elsewhere_are_told() -> None:
    old, other = pool(name="old", until=NOW), pool(name="other", region="olympus-1")
    (found,), left = with_reserved([catalog(region="tharsis-1")], [old, other], NOW)
    assert len(found) == len(catalog())
    assert left == (
        "reserved pool old ended at 2026-11-27 08:00 UTC",
        "reserved pool other is in olympus-1, not in tharsis-1",
    )


def test_a_pool_that_begins_later_is_not_there_yet() -> None:
    later = pool(begins=NOW + timedelta(hours=1))
    (found,), left = with_reserved([catalog()], [later], NOW)
    assert "gpu.xlarge@block" not in found.by_name
    assert left == ("reserved pool block starts at 2026-11-27 09:00 UTC: plan again then",)
    assert (
        "gpu.xlarge@block"
        in with_reserved([catalog()], [later], NOW + timedelta(hours=1))[0][0].by_name
    )


def test_the_last_half_hour_of_a_capacity_block_is_not_to_be_used() -> None:
    """AWS begins to end its VMs then."""
    block = pool(until=NOW + timedelta(hours=2), kind="capacity-block")
    found = reserved(block)["gpu.xlarge@block"]
    assert found.left_s == 5400 and found.reserved is not None
    assert found.reserved.until == "2026-11-27 09:30 UTC, 30 min before the block"
    (found_,), left = with_reserved([catalog()], [block], NOW + timedelta(minutes=90))
    assert len(found_) == len(catalog())
    assert left == ("reserved pool block ended at 2026-11-27 09:30 UTC, 30 min before the block",)
    assert reserved(replace(block, kind="reservation"))["gpu.xlarge@block"].left_s == 7200


def test_a_pool_of_an_unknown_type_and_two_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match="p6"):
        reserved(pool(instance_type="p6"))
    with pytest.raises(RequestError, match="block"):
        reserved(pool(), pool())


def test_the_quota_of_the_account_does_not_count_for_a_pool() -> None:
    from deepvm.core.cluster.instances import Quota

    none = reserved(pool(), quotas=(Quota("G and VT", Market.ON_DEMAND, 0),))
    assert (
        recommend(none, 100, instance_type="gpu.xlarge@block", architecture="on-demand")[
            0
        ].cluster.gpu_count
        == 3
    )


def test_of_several_clouds_one_is_enough_that_has_the_type() -> None:
    mars = catalog(gpu_type(name="rover.1"), name="mars-tharsis-1", region="tharsis-1")
    earth = catalog(name="earth-olympus-1", region="olympus-1")
    both = (mars, earth)
    one, other = with_savings(both, [read_savings_plan("rover.*=50%")])
    assert one["rover.1"].on_demand_usd_per_hour == Decimal("0.5") and other == earth
    (one, other), notes = with_reserved(both, [pool(instance_type="rover.1")], NOW)
    assert "rover.1@block" in one.by_name and other == earth and notes == ()
    (one, other), notes = with_reserved(both, [pool(region="olympus-1")], NOW)
    assert one == mars and "gpu.xlarge@block" in other.by_name and notes == ()
    with pytest.raises(RequestError, match="mars-tharsis-1, earth-olympus-1"):
        with_reserved(both, [pool(instance_type="p6")], NOW)


def test_a_zone_that_does_not_offer_the_type_is_asked_about() -> None:
    """Names of zones are an account's own: a pool in ``use1-az1`` is not in ``us-east-1a``."""
    (found,), notes = with_reserved(
        [catalog(gpu_type(zones=("z1", "z2")), cpu_type())], [pool(zone="us-east-1a")], NOW
    )
    assert "gpu.xlarge@block" in found.by_name
    assert notes == ("reserved pool block: is its zone right? gpu.xlarge is offered in z1, z2",)


TIERED: dict[str, Any] = {
    "work": 50,
    "architecture": "tiering",
    "instance_type": "gpu.xlarge",
    "mttp": "1h",
}


def nodes(left: timedelta, **changes: Any) -> list[str]:
    """The memory nodes of plans for a job, where a pool of very cheap ones ends early."""
    cheap = pool(instance_type="cpu.xlarge", usd_per_hour=Decimal("0.001"), until=NOW + left)
    found = recommend(reserved(cheap), 100, top=3, **(TIERED | changes))
    return [
        f"{r.cluster.gpu_count}, {r.cluster.memory.instance.name}"
        for r in found
        if r.cluster.memory is not None
    ]


@pytest.mark.parametrize("solver", ["ilp", "frontier"])
def test_memory_nodes_that_end_before_the_job_are_no_candidates_either(solver: str) -> None:
    """Clusters of 7 VMs take 51.7 h, those of 8 take 51.9 h."""
    both = ["7, cpu.xlarge@block", "7, cpu.xlarge", "8, cpu.xlarge@block"]
    assert nodes(timedelta(hours=10_000), solver=solver) == both
    assert nodes(timedelta(hours=51.8), solver=solver) == [
        "7, cpu.xlarge@block",
        "7, cpu.xlarge",
        "8, cpu.xlarge",
    ]
    assert nodes(timedelta(hours=51.6), solver=solver)[:2] == ["7, cpu.xlarge", "8, cpu.xlarge"]


def test_memory_nodes_of_a_pool_are_named_with_their_end() -> None:
    cheap = pool(
        instance_type="cpu.xlarge",
        usd_per_hour=Decimal("0.001"),
        until=NOW + timedelta(hours=10_000),
    )
    first = recommend(reserved(cheap), 100, **TIERED)[0]
    assert any(
        "its memory nodes are those of the reservation block, which ends at" in w
        for w in first.warnings
    )


def test_a_pool_without_a_feasible_cluster_is_not_said_to_end_too_early() -> None:
    long = reserved(pool(until=NOW + timedelta(hours=1000)))
    asked: dict[str, Any] = {
        "work": 50,
        "architecture": "on-demand",
        "instance_type": "gpu.xlarge@block",
    }
    none = recommend(long, "0.1", **asked)
    assert not none
    assert {r.instance_type: r.reason for r in none.rejections}["gpu.xlarge@block"] == "budget"


def test_how_long_a_job_would_take_is_said_beside_what_is_left() -> None:
    asked: dict[str, Any] = {
        "work": 50,
        "architecture": "on-demand",
        "instance_type": "gpu.xlarge@block",
    }
    none = recommend(reserved(pool(until=NOW + timedelta(hours=1))), 100, **asked)
    (why,) = [r.detail for r in none.rejections if r.instance_type == "gpu.xlarge@block"]
    assert "in 60 min" in why and "the job would take" in why


def test_without_a_job_nobody_knows_whether_it_ends_before_the_pool_does() -> None:
    ends = reserved(pool(until=NOW + timedelta(hours=1)))
    answer = recommend(ends, 100, instance_type="gpu.xlarge@block", architecture="on-demand")
    assert any("say how much is trained" in w for w in answer[0].warnings)


def test_a_pool_that_ends_before_the_slow_end_of_what_is_known_is_told() -> None:
    """Speeds that are not measured are known to a factor: the usual time fits into the pool, the
    slow one does not.
    """
    training = deepvm.workload(model="gpt2", tokens="20B")
    base = load_catalog("aws", prices="snapshot")
    asked: dict[str, Any] = {
        "instance_type": "g5.xlarge@block",
        "architecture": "on-demand",
        "training": training,
    }

    def first(hours: float) -> Recommendation:
        own = pool(
            instance_type="g5.xlarge",
            count=1,
            usd_per_hour=Decimal("0.9"),
            until=NOW + timedelta(hours=hours),
        )
        return recommend(with_reserved([base], [own], NOW)[0][0], 100, **asked)[0]

    usual = first(100_000)
    assert usual.outlook is not None and usual.outlook.costs_usd is not None
    hours, slow_hours = usual.outlook.total_s / 3600, usual.outlook.costs_usd[1] / 0.9
    assert hours < slow_hours
    between, after = first((hours + slow_hours) / 2), first(slow_hours * 1.01)
    said = [
        w
        for w in between.warnings
        if "at the slow end of the interval of its speed the job takes" in w
    ]
    assert len(said) == 1 and "and block has" in said[0]
    assert not any("slow end" in w for w in after.warnings)
