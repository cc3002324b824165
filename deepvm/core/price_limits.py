"""What the VMs of a plan may cost: a limit for the whole cluster, split so that each part can be enforced by itself.

On-demand prices are fixed: these VMs get what they cost and no more. All headroom is for the spot VMs, whose prices
move. The parts never add up to more than the whole, and the plan at its own prices always fits into them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal

from deepvm.core.instances import Market
from deepvm.core.plan import Plan, PlannedGroup
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
        groups: the limit of each group by its role; together at most the whole.
    """

    usd_per_hour: Decimal
    plan_usd_per_hour: Decimal
    groups: Mapping[str, GroupLimit]


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
    price = _price_at_start(plan, sum(fixed.values(), Decimal(0)))
    limit = _floor(price * (1 + HEADROOM) if most is None else most)
    if limit < price:
        allowed = f"at least what the plan costs, {format_usd(price)} $/h for {plan}"
        raise RequestError("max_price", f"{most:f}", allowed)
    if not plan.training.spot_count:  # a price list may be a little older than the prices: then there is room for that
        totals = {role: _floor(total * limit / price) for role, total in fixed.items()}
    else:
        totals = {g.role: fixed.get(g.role, limit - sum(fixed.values(), Decimal(0))) for g in plan.groups}
    groups = {g.role: GroupLimit(totals[g.role], _floor(totals[g.role] / g.count)) for g in plan.groups}
    return PriceLimits(limit, price, groups)


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
