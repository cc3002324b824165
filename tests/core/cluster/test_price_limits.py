"""A price limit of a whole cluster, split among its groups."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.plans import any_plan, gpu_vms, memory_vms, single_anchor, spot_only, tiering

from deepvm.core.cluster.instances import ZonePrice
from deepvm.core.cluster.plan import Plan
from deepvm.core.cluster.price_limits import limit_prices
from deepvm.errors import RequestError


@given(any_plan(), st.none() | st.decimals(1, 9, places=9))
def test_the_parts_stay_within_the_whole_and_the_plan_within_the_parts(
    plan: Plan, factor: Decimal | None
) -> None:
    most = None if factor is None else plan.usd_per_hour * factor
    limits = limit_prices(plan, most)
    assert limits is not None
    allowed = plan.usd_per_hour * Decimal("1.2") if most is None else most
    assert plan.usd_per_hour <= limits.usd_per_hour <= allowed
    assert sum((g.usd_per_hour for g in limits.groups.values()), Decimal(0)) <= limits.usd_per_hour
    assert set(limits.groups) == {g.role for g in plan.groups}
    for group in plan.groups:
        found, price = limits.groups[group.role], group.usd_per_hour
        assert price is not None and found.vm_usd_per_hour * group.count <= found.usd_per_hour
        assert price <= found.vm_usd_per_hour and price * group.count <= found.usd_per_hour
        for amount in (found.usd_per_hour, found.vm_usd_per_hour):  # AWS takes no more decimals
            assert amount == round(amount, 6)


@given(any_plan(), st.decimals("0", "0.999999999", places=9))
def test_less_than_the_plan_costs_is_refused_with_both(plan: Plan, factor: Decimal) -> None:
    most = plan.usd_per_hour * factor
    with pytest.raises(RequestError) as caught:
        limit_prices(plan, most)
    assert caught.value.option == "max_price" and f"{most:f}" in str(caught.value)
    assert (
        f"{plan.usd_per_hour.normalize():f}"[:6] in str(caught.value)
        and caught.value.exit_code == 2
    )


@given(any_plan(), st.none() | st.decimals(1, 9, places=9))
def test_every_group_has_the_same_share_of_the_headroom(plan: Plan, factor: Decimal | None) -> None:
    """An on-demand price may have risen as well since the plan was made.

    Without room its VMs would not start.
    """
    limits = limit_prices(plan, None if factor is None else plan.usd_per_hour * factor)
    assert limits is not None
    for group in plan.groups:
        cost = Fraction(group.count * (group.usd_per_hour or 0))
        share = cost * Fraction(limits.usd_per_hour) / Fraction(plan.usd_per_hour)
        assert 0 <= share - Fraction(limits.groups[group.role].usd_per_hour) < Fraction(1, 10**6)


def test_headroom_of_on_demand_vms() -> None:
    limits = limit_prices(tiering())
    # 0.17 + 20 %
    assert limits is not None and limits.groups["memory"].usd_per_hour == Decimal("0.204")
    assert limits.groups["training"].vm_usd_per_hour == Decimal("0.189360")  # 0.1578 + 20 %
    limits = limit_prices(tiering(), Decimal(3))
    # 0.17 x 3 / 2.8526
    assert limits is not None and limits.groups["memory"].usd_per_hour == Decimal("0.178784")
    assert limits.groups["training"].vm_usd_per_hour == Decimal("0.165953")


@given(any_plan(), st.decimals("0.001", "500", places=6))
def test_the_limit_that_takes_a_zone(plan: Plan, price: Decimal) -> None:
    """It is enough, and a micro-dollar less is not."""
    assume(plan.training.spot_count)
    limits = limit_prices(plan)
    assert limits is not None
    needed = limits.needed_for(price)
    assume(needed - Decimal("0.000001") >= plan.usd_per_hour)
    enough, less = limit_prices(plan, needed), limit_prices(plan, needed - Decimal("0.000001"))
    assert enough is not None and enough.groups["training"].vm_usd_per_hour >= price
    assert less is not None and less.groups["training"].vm_usd_per_hour < price


def test_a_zone_that_was_chosen_in_spite_of_its_price_is_within_the_limit() -> None:
    dear = tiering(
        training=gpu_vms(zones=(ZonePrice("use1-az6", Decimal("0.4")),)), zone="use1-az6"
    )
    limits = limit_prices(dear)
    assert limits is not None and limits.plan_usd_per_hour == Decimal("6.97")  # 17 x 0.4 + 0.17
    assert limits.groups["training"].vm_usd_per_hour >= Decimal("0.4")
    with pytest.raises(RequestError, match=r"at least what it costs in use1-az6, \$6\.9700"):
        limit_prices(dear, Decimal(3))


def test_one_price_that_is_not_told_is_the_rest() -> None:
    plan = tiering(memory=memory_vms(on_demand_usd_per_hour=None))
    limits = limit_prices(plan)
    assert limits is not None and limits.groups["memory"].usd_per_hour == Decimal("0.204")
    spot = limit_prices(single_anchor(training=gpu_vms(8, 1, spot_usd_per_hour=None)))
    # 0.526 + 20 %
    assert spot is not None and spot.groups["anchor"].usd_per_hour == Decimal("0.6312")
    assert (
        limit_prices(spot_only(training=gpu_vms(4, spot_usd_per_hour=None, zones=()))) is not None
    )


def test_unknown_prices_are_not_guessed() -> None:
    """Two are unknown, or the one that is known leaves nothing for the rest."""
    for anchor in [None, "1.7884", "2"]:
        vms = gpu_vms(8, 1, spot_usd_per_hour=None, on_demand_usd_per_hour=None, zones=())
        plan = single_anchor(training=vms)
        if anchor is not None:
            memory = memory_vms(on_demand_usd_per_hour=Decimal(anchor))
            plan = tiering(
                training=gpu_vms(0, 1, on_demand_usd_per_hour=None),
                memory=memory,
                usd_per_hour=Decimal("1.7884"),
            )
        assert limit_prices(plan) is None


def test_a_rest_that_leaves_nothing_for_spot_vms_is_no_price() -> None:
    vms = gpu_vms(8, 1, spot_usd_per_hour=None, zones=())
    assert limit_prices(single_anchor(training=vms, usd_per_hour=Decimal("0.526"))) is None
