"""The price limit of an export: what each VM may cost, in which zones that is enough, and how to say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Decimal

from deepvm.core.cluster.instances import Market, ZonePrice
from deepvm.core.cluster.plan import TRAINING, Plan, PlannedGroup
from deepvm.core.cluster.price_limits import HEADROOM, GroupLimit, PriceLimits, limit_prices
from deepvm.core.units import MICRO, format_usd
from deepvm.errors import RequestError
from deepvm.reports.exports.base import ExportOptions, refuse_subnets_in

AWS_LEAST_MAX_PRICE = Decimal("0.001")
"""AWS refuses a maximum price that is not above this, $/h (CreateFleet, ``Overrides.MaxPrice``)."""


@dataclass(frozen=True)
class Limited:
    """A plan that is to be started within a price limit.

    Attributes:
        plan: in the zones whose spot prices are within the limit.
        limits: what it may cost, None when the plan tells too few prices.
        notes: the limit in words, and the zones that it leaves out.
    """

    plan: Plan
    limits: PriceLimits | None
    notes: tuple[str, ...]

    def of(self, group: PlannedGroup) -> GroupLimit | None:
        """What the VMs of a group may cost, at list prices: the cloud knows of no savings plan."""
        if self.limits is None:
            return None
        limit, discount = self.limits.groups[group.role], group.vms.on_demand_discount
        if group.market is Market.SPOT or not discount:
            return limit
        each, both = (
            (usd / (1 - discount)).quantize(MICRO, ROUND_CEILING)
            for usd in (limit.vm_usd_per_hour, limit.usd_per_hour)
        )
        return GroupLimit(both, each)

    @property
    def sentence(self) -> str:
        """The limit of the spot VMs, as a sentence for the top of a file."""
        if self.limits is None:
            return (
                "Spot prices move; nothing here limits them, because the plan does not tell the"
                " prices of its VMs."
            )
        return (
            f"Limit: {format_usd(self.limits.usd_per_hour)} $/h for all VMs: a spot VM runs only"
            " while its price is at most"
            f" {format_usd(self.limits.groups[TRAINING].vm_usd_per_hour)} $/h; on-demand prices are"
            " fixed."
        )


def within_limit(plan: Plan, options: ExportOptions) -> Limited:
    """The plan with its price limit: the one that was asked for, or its own price and 20 %.

    Raises:
        RequestError: the plan costs more, AWS takes no limit as low as that, the plan tells too few
            prices, or a subnet is in a zone that is too dear.
    """
    limits = limit_prices(plan, options.max_price)
    if limits is None:
        if options.max_price is not None:
            allowed = (
                "nothing: the plan does not tell the prices of its on-demand VMs, so the limit"
                " cannot be split"
            )
            raise RequestError("max_price", f"{options.max_price:f}", allowed)
        return Limited(
            plan,
            None,
            ("no price limit is set: the plan does not tell the prices of its on-demand VMs",),
        )
    notes = [_limit(limits, options, plan.budget)]
    if not plan.training.spot_count:
        return Limited(plan, limits, tuple(notes))
    most = limits.groups[TRAINING].vm_usd_per_hour
    if most <= AWS_LEAST_MAX_PRICE:
        allowed = (
            f"a higher limit: this leaves {most:f} $/h for each spot VM, and AWS accepts only more"
            f" than {AWS_LEAST_MAX_PRICE}"
        )
        raise RequestError("max_price", f"{limits.usd_per_hour:f}", allowed)
    notes.append(
        f"a spot VM starts and runs only while it costs at most {format_usd(most)} $/h: the lower"
        " the limit, the more interruptions"
    )
    kept = tuple(z for z in plan.training.zones if z.usd_per_hour <= most)
    within = replace(plan, training=replace(plan.training, zones=kept))
    lost = [z for z in plan.training.zones if z not in kept]
    if lost:
        named = ", ".join(f"{z} at {format_usd(z.usd_per_hour)} $/h" for z in lost)
        notes.append(
            f"left out as too dear for the limit: {named}; {_limit_that_takes(plan, limits, lost)}"
            " takes them"
        )
        for zone in lost:
            why = f"; {_limit_that_takes(plan, limits, [zone])} takes {zone}"
            refuse_subnets_in(
                zone,
                options.subnet,
                f"zones within the price limit: {', '.join(map(str, kept))}{why}",
            )
    return Limited(within, limits, tuple(notes))


def on_demand_note(limited: Limited) -> tuple[str, ...]:
    """Price limit of the on-demand VMs at start, for tools that enforce one."""
    found = [(g, limited.of(g)) for g in limited.plan.groups if g.market is Market.ON_DEMAND]
    parts = [
        (f"{format_usd(limit.usd_per_hour)} $/h", g) for g, limit in found if limit is not None
    ]
    if not parts:
        return ()
    # Each kind is a request of its own, with a limit of its own.
    named = ", ".join(f"{most} for {g.count} x {g.instance_type}" for most, g in parts)
    most = parts[0][0] if len(parts) == 1 else named
    return (f"on-demand VMs start only while all of them together cost at most {most}",)


def _limit_that_takes(plan: Plan, limits: PriceLimits, zones: Sequence[ZonePrice]) -> str:
    needed = limits.needed_for(max(z.usd_per_hour for z in zones), plan.training.spot_count)
    return f"--max-price {amount(needed)}"


def amount(usd: Decimal) -> str:
    """An amount as AWS reads and repeats it: no exponent, no zeros at the end."""
    return f"{usd.normalize():f}"


def _limit(limits: PriceLimits, options: ExportOptions, budget: Decimal | None) -> str:
    """The limit and where it comes from, without a full stop."""
    text = f"limit: {format_usd(limits.usd_per_hour)} $/h for all VMs"
    if options.max_price is not None:
        return text
    price = f"{format_usd(limits.plan_usd_per_hour)} $/h"
    costs = (
        f"the {price} that it costs in {limits.dear_zone}"
        if limits.dear_zone
        else f"the plan's {price}"
    )
    text += f", {costs} + {HEADROOM * 100:.0f} %; --max-price sets another"
    if budget is not None and limits.plan_usd_per_hour <= budget < limits.usd_per_hour:
        text += f", such as the {amount(budget)} $/h that the plan was asked for"
    return text
