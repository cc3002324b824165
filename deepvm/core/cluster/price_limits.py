"""Price limits of a plan: one for the cluster, split into limits of its groups.

All groups share the headroom, because on-demand prices may have changed too since the plan was
made. Their limits never add up to more than the whole, and the plan at its own prices always fits.
"""

from collections.abc import Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from deepvm.core.cluster.instances import Market
from deepvm.core.cluster.plan import Plan, PlannedGroup
from deepvm.core.units import MICRO, format_usd
from deepvm.errors import RequestError
from deepvm.records import dataclass

# Share by which a cluster may become more expensive than its plan, unless the user sets a limit
HEADROOM = Decimal("0.2")


@dataclass(frozen=True)
class GroupLimit:
    """What the VMs of one group may cost, $/h at list prices, together and each."""

    usd_per_hour: Decimal
    vm_usd_per_hour: Decimal


@dataclass(frozen=True)
class PriceLimits:
    """What a cluster may cost, $/h in whole micro-dollars, and each of its groups, by role."""

    usd_per_hour: Decimal
    plan_usd_per_hour: Decimal  # of the plan where it starts
    spot_usd_per_hour: Decimal  # of its spot VMs
    spot_count: int
    groups: Mapping[str, GroupLimit]
    dear_zone: str = ""  # where it starts, if it costs more there than planned

    def needed_for(self, vm_usd_per_hour: Decimal) -> Decimal:
        """Lowest cluster limit, $/h, at which each spot VM may cost this much."""
        # Multiplied before it is divided: the quotient of two prices is rounded, and would ask a
        # micro-dollar too much.
        return _rounded(
            self.spot_count * vm_usd_per_hour * self.plan_usd_per_hour / self.spot_usd_per_hour,
            ROUND_CEILING,
        )


def limit_prices(plan: Plan, most: Decimal | None = None) -> PriceLimits | None:
    """Split ``most`` $/h (default: the plan's price plus :data:`HEADROOM`) among its groups.

    None when the plan has too few prices; raises a RequestError if it costs more.
    """
    fixed = _fixed_totals(plan)
    if fixed is None:
        return None
    on_demand = sum(fixed.values(), Decimal(0))
    count = plan.training.spot_count
    # In the zone to start in, or in the cheapest where the plan does not say which that is.
    zones = plan.training.zones
    start = [z.usd_per_hour for z in [z for z in zones if z.zone == plan.zone] or zones]
    price = max(plan.usd_per_hour, on_demand + count * min(start, default=Decimal(0)))
    if count and price <= on_demand:
        return None
    dear_zone = plan.zone if price > plan.usd_per_hour else ""
    limit = _rounded(price * (1 + HEADROOM) if most is None else most, ROUND_FLOOR)
    if limit < price:
        cost = f"what it costs in {dear_zone}" if dear_zone else "what the plan costs"
        raise RequestError(
            "max_price", f"{most:f}", f"at least {cost}, ${format_usd(price)}/h for {plan}"
        )
    spot = price - on_demand
    groups = {
        group.role: _group_limit(group, fixed.get(group.role, spot) * limit / price)
        for group in plan.groups
    }
    return PriceLimits(limit, price, spot, count, groups, dear_zone)


def _group_limit(group: PlannedGroup, share: Decimal) -> GroupLimit:
    total = _rounded(share, ROUND_FLOOR)
    each = _rounded(total / group.count, ROUND_FLOOR)
    discount = group.vms.on_demand_discount
    if group.market is Market.SPOT or not discount:
        return GroupLimit(total, each)
    # The cloud compares limits with list prices, and knows nothing of the discount.
    listed = 1 - discount
    return GroupLimit(
        _rounded(total / listed, ROUND_CEILING), _rounded(each / listed, ROUND_CEILING)
    )


def _fixed_totals(plan: Plan) -> dict[str, Decimal] | None:
    """$/h of each on-demand group by role; None when a price is missing."""
    known = {g.role: g.count * g.usd_per_hour for g in plan.groups if g.usd_per_hour is not None}
    unknown = [g for g in plan.groups if g.usd_per_hour is None]
    if any(g.market is Market.ON_DEMAND for g in unknown) and len(unknown) > 1:
        return None
    # With one unknown price, the plan's total gives it.
    rest = plan.usd_per_hour - sum(known.values(), Decimal(0))
    fixed = {g.role: known.get(g.role, rest) for g in plan.groups if g.market is Market.ON_DEMAND}
    if all(total > 0 for total in fixed.values()):
        return fixed
    return None


def _rounded(amount: Decimal, rounding: str) -> Decimal:
    return amount.quantize(MICRO, rounding=rounding)
