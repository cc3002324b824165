"""What users have committed to: reserved VMs, which are a pool with a price and an end, and savings plans.

A reservation or capacity block becomes a type of its own, ``p5.48xlarge@POOL``, with the pool's price in the place of
the on-demand price, without a spot price, and with as many VMs as the pool has. A savings plan is a discount on
on-demand prices; what it costs when nothing runs is not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase

from deepvm.core.cluster.instances import Catalog, InstanceType, Reservation, refuse_twice
from deepvm.core.cluster.prices import Plausibility, PricedType
from deepvm.core.units import MICRO
from deepvm.errors import RequestError

_SHARE = re.compile(r"(?:(?P<glob>[^=]+)=)?\s*(?P<number>\d{1,2}(?:\.\d{1,4})?)\s*%\s*", re.ASCII)


@dataclass(frozen=True)
class ReservedPool:
    """VMs that are reserved: so many of one type in a region, at $/h each, until a moment (UTC), None for no end.

    ``kind``: ``reservation`` or ``capacity-block``. ``zone``: id of the only zone, empty if unknown.
    """

    name: str
    instance_type: str
    count: int
    usd_per_hour: Decimal
    until: datetime | None = None
    region: str = ""
    zone: str = ""
    kind: str = "reservation"


@dataclass(frozen=True)
class SavingsPlan:
    """A discount on the on-demand prices of types by a glob, 0 to 1."""

    share: Decimal
    glob: str = "*"

    def __str__(self) -> str:
        """``28 % on p5.*``."""
        return f"{(self.share * 100).normalize():f} % on {'all types' if self.glob == '*' else self.glob}"


def read_savings_plan(text: str) -> SavingsPlan:
    """Read ``28%`` or ``p5.*=28%``. Raises a RequestError."""
    match = _SHARE.fullmatch(text)
    share = Decimal(match["number"]) / 100 if match else Decimal(0)
    if match is None or not share:
        raise RequestError("savings_plan", text, "a discount above 0 % and below 100 %, such as 28% or 'p5.*=28%'")
    return SavingsPlan(share, (match["glob"] or "*").strip())


def with_savings(catalog: Catalog, plans: Iterable[SavingsPlan]) -> Catalog:
    """The catalog with discounted on-demand prices, rounded up to micro-dollars; of several plans the best counts.

    Raises a RequestError for a plan that no type with an on-demand price goes with.
    """
    plans = tuple(plans)
    for plan in plans:
        if not any(i.on_demand_usd_per_hour and fnmatchcase(i.name, plan.glob) for i in catalog):
            allowed = f"a type of catalog {catalog.name} with an on-demand price, or a glob of some"
            raise RequestError("savings_plan", plan.glob, allowed)
    return replace(catalog, instances=tuple(_discounted(i, plans) for i in catalog)) if plans else catalog


def _discounted(instance: InstanceType, plans: tuple[SavingsPlan, ...]) -> InstanceType:
    share = max((p.share for p in plans if fnmatchcase(instance.name, p.glob)), default=Decimal(0))
    if not share or instance.on_demand_usd_per_hour is None:
        return instance
    price = (instance.on_demand_usd_per_hour * (1 - share)).quantize(MICRO, rounding=ROUND_CEILING)
    return replace(instance, on_demand_usd_per_hour=price, discount=share)


def with_reserved(catalog: Catalog, pools: Iterable[ReservedPool], now: datetime) -> tuple[Catalog, tuple[str, ...]]:
    """The catalog with a type for each pool of its region that has not ended; why others are left out, and doubts.

    ``now``: UTC. Raises a RequestError for a pool of a type that the catalog does not have, or two of one name.
    """
    added, left = list[InstanceType](), list[str]()
    pools = tuple(pools)
    judged = Plausibility({i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour, None) for i in catalog})
    refuse_twice("reserved", (p.name for p in pools))
    for pool in pools:
        if pool.region and catalog.region and pool.region != catalog.region:
            left.append(f"reserved pool {pool.name} is in {pool.region}, not in {catalog.region}")
        elif pool.until is not None and pool.until <= now:
            left.append(f"reserved pool {pool.name} ended at {pool.until:%Y-%m-%d %H:%M} UTC")
        else:
            added.append(_of_pool(catalog, pool, now))
            doubt = judged.on_demand(pool.instance_type, pool.usd_per_hour)
            if doubt is not None:
                left.append(f"reserved pool {pool.name}: is its price right? {doubt}")
    return (replace(catalog, instances=(*catalog.instances, *added)) if added else catalog), tuple(left)


def _of_pool(catalog: Catalog, pool: ReservedPool, now: datetime) -> InstanceType:
    base = catalog.by_name.get(pool.instance_type)
    if base is None:
        raise RequestError("reserved", pool.instance_type, f"a type of catalog {catalog.name}")
    left_s = None if pool.until is None else (pool.until - now).total_seconds()
    until = "" if pool.until is None else f"{pool.until:%Y-%m-%d %H:%M} UTC"
    return replace(
        base,
        name=f"{base.name}@{pool.name}",
        on_demand_usd_per_hour=pool.usd_per_hour,
        spot_usd_per_hour=None,
        spot_zones=(),
        zones=(pool.zone,) if pool.zone else base.zones,
        interruption_band=None,
        known_life=None,
        discount=Decimal(0),
        quota_family=f"reserved pool {pool.name}",
        reserved=Reservation(pool.name, base.name, pool.count, pool.kind, left_s, until),
    )
