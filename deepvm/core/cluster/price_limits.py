"""Price limits of a plan: one for the cluster, split into limits of its groups.

All groups share the headroom, because on-demand prices may have changed too since the plan was
made. Their limits never add up to more than the whole, and the plan at its own prices always fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import Plan
from deepvm.core.units import MICRO, format_usd
from deepvm.errors import RequestError

# By which a cluster may become dearer than its plan, unless the user says otherwise
HEADROOM = Decimal("0.2")


@dataclass(frozen=True)
class GroupLimit:
    """What the VMs of one group may cost, $/h, together and each."""

    usd_per_hour: Decimal
    vm_usd_per_hour: Decimal


@dataclass(frozen=True)
class PriceLimits:
    """What a cluster may cost, $/h in whole micro-dollars, and each of its groups, by role.

    ``plan_usd_per_hour``: what the plan costs where it starts; ``spot_usd_per_hour``: its spot VMs'
    part of that.
    ``dear_zone``: where it starts, if it costs more there than where it was planned; else empty.
    """

    usd_per_hour: Decimal
    plan_usd_per_hour: Decimal
    spot_usd_per_hour: Decimal
    groups: Mapping[str, GroupLimit]
    dear_zone: str = ""

    def needed_for(self, vm_usd_per_hour: Decimal, count: int) -> Decimal:
        """Lowest cluster limit, $/h, at which each of ``count`` spot VMs may cost this much."""
        # Multiplied before it is divided: the quotient of two prices is rounded, and would ask a
        # micro-dollar too much.
        return _rounded(
            count * vm_usd_per_hour * self.plan_usd_per_hour / self.spot_usd_per_hour, ROUND_CEILING
        )


def limit_prices(plan: Plan, most: Decimal | None = None) -> PriceLimits | None:
    """Split ``most`` $/h (default: the plan's price plus :data:`HEADROOM`) among its groups.

    None when the plan has too few prices to split; raises a RequestError if it costs more than
    ``most``.
    """
    fixed = _fixed_totals(plan)
    if fixed is None:
        return None
    on_demand = sum(fixed.values(), Decimal(0))
    # In the zone to start in, or in the cheapest where the plan does not say which that is.
    zones = plan.training.zones
    start = [z.usd_per_hour for z in zones if z.zone == plan.zone] or [
        z.usd_per_hour for z in zones
    ]
    price = max(
        plan.usd_per_hour, on_demand + plan.training.spot_count * min(start, default=Decimal(0))
    )
    spot = Decimal(0)
    if plan.training.spot_count:
        spot = price - on_demand
        if spot <= 0:
            return None
    dear_zone = plan.zone if price > plan.usd_per_hour else ""
    limit = _rounded(price * (1 + HEADROOM) if most is None else most, ROUND_FLOOR)
    if limit < price:
        what = "what the plan costs"
        if dear_zone:
            what = f"what it costs in {dear_zone}"
        raise RequestError(
            "max_price", f"{most:f}", f"at least {what}, {format_usd(price)} $/h for {plan}"
        )
    totals = {
        g.role: _rounded(fixed.get(g.role, spot) * limit / price, ROUND_FLOOR) for g in plan.groups
    }
    groups = {
        g.role: GroupLimit(totals[g.role], _rounded(totals[g.role] / g.count, ROUND_FLOOR))
        for g in plan.groups
    }
    return PriceLimits(limit, price, spot, groups, dear_zone)


def _fixed_totals(plan: Plan) -> dict[str, Decimal] | None:
    """$/h of each on-demand group by role; None when they cannot be told apart from the rest."""
    told = {g.role: g.count * g.usd_per_hour for g in plan.groups if g.usd_per_hour is not None}
    unknown = [g for g in plan.groups if g.usd_per_hour is None]
    if any(g.market is Market.ON_DEMAND for g in unknown) and len(unknown) > 1:
        return None
    rest = plan.usd_per_hour - sum(told.values(), Decimal(0))
    fixed = {g.role: told.get(g.role, rest) for g in plan.groups if g.market is Market.ON_DEMAND}
    if all(total > 0 for total in fixed.values()):
        return fixed
    return None


def _rounded(amount: Decimal, rounding: str) -> Decimal:
    return amount.quantize(MICRO, rounding=rounding)
