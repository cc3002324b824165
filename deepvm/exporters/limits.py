"""The price limit of an export: what each VM may cost, and in which zones that is enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import TRAINING, Plan, PlannedGroup
from deepvm.core.cluster.price_limits import GroupLimit, PriceLimits, limit_prices
from deepvm.core.units import MICRO
from deepvm.errors import RequestError

AWS_LEAST_MAX_PRICE = Decimal("0.001")
"""AWS refuses a maximum price that is not above this, $/h (CreateFleet, ``Overrides.MaxPrice``)."""


@dataclass(frozen=True)
class LimitedPlan:
    """A plan in the zones within its price limit, and the zones that the limit excludes.

    ``limits`` is None when the plan has too few prices to split a limit.
    """

    plan: Plan
    limits: PriceLimits | None = None
    excluded: tuple[ZonePrice, ...] = ()

    def of(self, group: PlannedGroup) -> GroupLimit | None:
        """What the VMs of a group may cost, at list prices: the cloud knows of no savings plan."""
        if self.limits is None:
            return None
        limit = self.limits.groups[group.role]
        discount = group.vms.on_demand_discount
        if group.market is Market.SPOT or not discount:
            return limit
        amounts = (limit.usd_per_hour, limit.vm_usd_per_hour)
        total, each = ((a / (1 - discount)).quantize(MICRO, ROUND_CEILING) for a in amounts)
        return GroupLimit(total, each)

    @property
    def spot_usd_per_hour(self) -> Decimal | None:
        """The price limit of one spot VM."""
        if self.limits is None or not self.plan.training.spot_count:
            return None
        return self.limits.groups[TRAINING].vm_usd_per_hour

    def flag(self, zones: Sequence[ZonePrice]) -> str:
        """The option that would include these zones."""
        if self.limits is None:
            return ""
        price = max(zone.usd_per_hour for zone in zones)
        needed = self.limits.needed_for(price, self.plan.training.spot_count)
        return f"--max-price {amount(needed)}"


def limit_plan(plan: Plan, most: Decimal | None) -> LimitedPlan:
    """The plan with the price limit that was asked for, or its own price and 20 %.

    Raises:
        RequestError: the plan costs more, AWS takes no limit as low as that, or the plan tells too
            few prices.
    """
    limits = limit_prices(plan, most)
    if limits is None:
        if most is not None:
            allowed = (
                "nothing: the plan does not tell the prices of its on-demand VMs, so the limit"
                " cannot be split"
            )
            raise RequestError("max_price", f"{most:f}", allowed)
        return LimitedPlan(plan)
    spot = LimitedPlan(plan, limits).spot_usd_per_hour
    if spot is None:
        return LimitedPlan(plan, limits)
    if spot <= AWS_LEAST_MAX_PRICE:
        allowed = (
            f"a higher limit: this leaves {spot:f} $/h for each spot VM, and AWS accepts only more"
            f" than {AWS_LEAST_MAX_PRICE}"
        )
        raise RequestError("max_price", f"{limits.usd_per_hour:f}", allowed)
    zones = plan.training.zones
    kept = tuple(zone for zone in zones if zone.usd_per_hour <= spot)
    within = replace(plan, training=replace(plan.training, zones=kept))
    return LimitedPlan(within, limits, tuple(zone for zone in zones if zone not in kept))


def amount(usd: Decimal) -> str:
    """An amount as AWS reads and repeats it: no exponent, no zeros at the end."""
    return f"{usd.normalize():f}"
