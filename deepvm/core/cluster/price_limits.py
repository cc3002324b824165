"""What the VMs of a plan may cost: a limit for the whole cluster, split so that each part can be enforced by itself.

Each part has the same share of the headroom. Spot prices move most, but on-demand prices may have changed as well since
the plan was made, and a memory node that may cost no more than it did then would not start beside spot VMs that do. The
parts never add up to more than the whole, and the plan at its own prices always fits into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import Plan, PlannedGroup
from deepvm.core.units import format_usd
from deepvm.errors import RequestError

HEADROOM = Decimal("0.2")
"""By how much a cluster may become dearer than its plan, unless the user says what it may cost: 20 %."""

_MICRO = Decimal("0.000001")


@dataclass(frozen=True)
class GroupLimit:
    """What the VMs of one group may cost.

    Attributes:
        usd_per_hour: all of them together, $/h. vm_usd_per_hour: each of them, $/h.
    """

    usd_per_hour: Decimal
    vm_usd_per_hour: Decimal


@dataclass(frozen=True)
class PriceLimits:
    """What a cluster may cost.

    Attributes:
        usd_per_hour: all VMs together, $/h, whole micro-dollars.
        plan_usd_per_hour: what the plan costs where it starts, $/h; never more than the limit.
        spot_usd_per_hour: how much of that is for its spot VMs, $/h.
        groups: the limit of each group by its role; together at most the whole.
        dear_zone: where it starts, when it costs more there than where it was planned; else empty.
    """

    usd_per_hour: Decimal
    plan_usd_per_hour: Decimal
    spot_usd_per_hour: Decimal
    groups: Mapping[str, GroupLimit]
    dear_zone: str = ""

    def needed_for(self, vm_usd_per_hour: Decimal, count: int) -> Decimal:
        """The lowest limit of the whole cluster, $/h, with which its ``count`` spot VMs may each cost this much."""
        # Multiplied before it is divided: the quotient of two prices is rounded, and would ask a micro-dollar too much.
        return _ceil(count * vm_usd_per_hour * self.plan_usd_per_hour / self.spot_usd_per_hour)


def limit_prices(plan: Plan, most: Decimal | None = None) -> PriceLimits | None:
    """Split what a cluster may cost among its groups.

    Args:
        plan: the cluster.
        most: $/h of the whole cluster; the plan's price and :data:`HEADROOM` unless given.

    Returns:
        The limits, None when the plan tells too few prices to split it.

    Raises:
        RequestError: the plan costs more than that.
    """
    fixed = _fixed_totals(plan)
    if fixed is None:
        return None
    on_demand = sum(fixed.values(), Decimal(0))
    price = _price_at_start(plan, on_demand)
    spot = price - on_demand if plan.training.spot_count else Decimal(0)
    if plan.training.spot_count and spot <= 0:
        return None
    dear_zone = plan.zone if price > plan.usd_per_hour else ""
    limit = _floor(price * (1 + HEADROOM) if most is None else most)
    if limit < price:
        what = f"what it costs in {dear_zone}" if dear_zone else "what the plan costs"
        raise RequestError("max_price", f"{most:f}", f"at least {what}, {format_usd(price)} $/h for {plan}")
    totals = {g.role: _floor(fixed.get(g.role, spot) * limit / price) for g in plan.groups}
    groups = {g.role: GroupLimit(totals[g.role], _floor(totals[g.role] / g.count)) for g in plan.groups}
    return PriceLimits(limit, price, spot, groups, dear_zone)


def _fixed_totals(plan: Plan) -> dict[str, Decimal] | None:
    """$/h of each on-demand group by role; None when they cannot be told apart from the rest."""
    unknown = [g for g in plan.groups if g.usd_per_hour is None]
    if any(g.market is Market.ON_DEMAND for g in unknown) and len(unknown) > 1:
        return None
    rest = plan.usd_per_hour - sum((_total(g) for g in plan.groups if g not in unknown), Decimal(0))
    fixed = {g.role: rest if g in unknown else _total(g) for g in plan.groups if g.market is Market.ON_DEMAND}
    return fixed if all(total > 0 for total in fixed.values()) else None


def _total(group: PlannedGroup) -> Decimal:
    return group.count * (group.usd_per_hour or Decimal(0))


def _price_at_start(plan: Plan, fixed: Decimal) -> Decimal:
    """$/h of all VMs in the zone to start in, or in the cheapest where the plan does not say which that is."""
    zones = plan.training.zones
    start = [z for z in zones if z.zone == plan.zone] or zones
    spot = min((z.usd_per_hour for z in start), default=Decimal(0))
    return max(plan.usd_per_hour, fixed + plan.training.spot_count * spot)


def _floor(amount: Decimal) -> Decimal:
    return amount.quantize(_MICRO, rounding=ROUND_FLOOR)


def _ceil(amount: Decimal) -> Decimal:
    return amount.quantize(_MICRO, rounding=ROUND_CEILING)
