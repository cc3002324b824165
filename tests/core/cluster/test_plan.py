"""A plan and its zones: where it may start, what it costs there, and who meets where."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from support.plans import any_plan, single_anchor, spot_only, tiering

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError

A, B = (
    ZonePrice("use1-az1", Decimal("0.20"), "us-east-1a"),
    ZonePrice("use1-az2", Decimal("0.30"), "us-east-1b"),
)


def in_two_zones(plan: Plan, offered: tuple[str, ...] = ()) -> Plan:
    training = replace(plan.training, zones=(A, B), spot_usd_per_hour=A.usd_per_hour)
    memory = None if plan.memory is None else replace(plan.memory, offered_in=offered)
    return replace(plan, zone=A.zone, training=training, memory=memory)


@given(any_plan())
def test_groups_hold_every_vm_and_all_meet_on_demand_where_they_can(plan: Plan) -> None:
    groups = plan.groups
    assert all(g.count for g in groups)
    memory = plan.memory.on_demand_count if plan.memory else 0
    assert sum(g.count for g in groups) == plan.training_count + memory
    on_demand = any(g.market is Market.ON_DEMAND for g in groups)
    assert (plan.rendezvous.market is Market.ON_DEMAND) == on_demand
    assert all(str(g) in str(plan) for g in groups)


@given(any_plan())
def test_another_zone_changes_the_price_of_the_spot_vms_alone(plan: Plan) -> None:
    for zone in plan.training.zones:
        more = zone.usd_per_hour - (plan.training.spot_usd_per_hour or zone.usd_per_hour)
        assert plan.usd_per_hour_in(zone) == plan.usd_per_hour + plan.training.spot_count * more
        assert plan.most_usd_per_hour >= plan.usd_per_hour_in(zone)
    assert plan.most_usd_per_hour >= plan.usd_per_hour


def test_zones_are_named_by_id_or_name() -> None:
    plan = in_two_zones(spot_only())
    assert plan.in_zones([]) is plan
    assert plan.in_zones(["us-east-1b"]) == plan.in_zones(["use1-az2"])
    assert plan.in_zones(["use1-az2"]).zone == "use1-az2"  # it cannot start where it did
    assert plan.in_zones(["use1-az2", "use1-az1"]).zone == "use1-az1"
    with pytest.raises(RequestError, match=r"use1-az1.*use1-az2"):
        plan.in_zones(["use1-az9"])
    bare = replace(plan, training=replace(plan.training, zones=()))
    with pytest.raises(RequestError, match="--subnet decides"):
        bare.in_zones(["use1-az1"])


def test_memory_nodes_must_be_offered_beside_the_training_vms() -> None:
    plan = in_two_zones(tiering(), offered=("use1-az2",))
    assert plan.sound().training.zones == (B,) and plan.sound().zone == "use1-az2"
    with pytest.raises(RequestError, match=r"zones that offer .* too: .*use1-az2"):
        plan.in_zones(["use1-az1"])
    anywhere = in_two_zones(tiering())
    assert anywhere.sound() is anywhere


def test_zones_beyond_the_budget_go_and_the_first_stays() -> None:
    plan = in_two_zones(spot_only())
    dear = plan.usd_per_hour_in(B)
    assert replace(plan, budget=dear).within_budget().training.zones == (A, B)
    assert replace(plan, budget=dear - Decimal("0.000001")).within_budget().training.zones == (A,)
    # Where it starts anyway
    assert replace(plan, budget=Decimal(0)).within_budget().training.zones == (A,)
    assert plan.within_budget().training.zones == (A, B)


def test_two_processor_architectures_need_two_images() -> None:
    plan = tiering()
    assert plan.memory is not None
    known = replace(plan, training=replace(plan.training, cpu_architecture="x86_64"))
    assert replace(
        known, memory=replace(plan.memory, cpu_architecture="arm64")
    ).mixes_cpu_architectures
    assert not replace(
        known, memory=replace(plan.memory, cpu_architecture="")
    ).mixes_cpu_architectures
    assert not single_anchor().mixes_cpu_architectures
