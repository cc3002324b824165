"""Commitments of users: reserved VMs (a pool with a price and an end), and savings plans.

A reservation or capacity block becomes a type of its own, ``p5.48xlarge@POOL``, with the pool's
price instead of the on-demand price, without a spot price, and with as many VMs as the pool
has. A savings plan is a discount on on-demand prices; what it costs when nothing runs is not
counted.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from fnmatch import fnmatchcase

from deepvm.core.cluster.instances import Catalog, InstanceType, Reservation, refuse_twice
from deepvm.core.cluster.prices import PricedType, PriceSanityCheck
from deepvm.core.units import MICRO
from deepvm.errors import RequestError
from deepvm.records import dataclass, replace

_SHARE = re.compile(r"(?:(?P<glob>[^=]+)=)?\s*(?P<number>\d{1,2}(?:\.\d{1,4})?)\s*%\s*", re.ASCII)


CAPACITY_BLOCK = "capacity-block"
# How long before the end of a capacity block AWS starts to terminate its VMs:
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/capacity-blocks-monitor.html, 2026
_CLEARED = timedelta(minutes=30)


@dataclass(frozen=True)
class ReservedPool:
    """VMs that are reserved: so many of one type in a region, at $/h each."""

    name: str
    instance_type: str
    count: int
    usd_per_hour: Decimal
    until: datetime | None = None  # UTC; None for no end
    region: str = ""
    zone: str = ""  # id of the only zone
    kind: str = "reservation"  # or capacity-block
    begins: datetime | None = None  # UTC; None for always

    @property
    def usable_until(self) -> datetime | None:
        """When its VMs are terminated, before the end of a capacity block; None for never."""
        if self.until is not None and self.kind == CAPACITY_BLOCK:
            return self.until - _CLEARED
        return self.until


@dataclass(frozen=True)
class SavingsPlan:
    """A discount on the on-demand prices of types by a glob, 0 to 1."""

    share: Decimal
    glob: str = "*"

    def __str__(self) -> str:
        if self.glob == "*":
            types = "all types"
        else:
            types = self.glob
        return f"{(self.share * 100).normalize():f} % on {types}"


def read_savings_plan(text: str) -> SavingsPlan:
    """Read ``28%`` or ``p5.*=28%``. Raises a RequestError."""
    match = _SHARE.fullmatch(text)
    if match is None or not Decimal(match["number"]):
        raise RequestError(
            "savings_plan", text, "a discount above 0 % and below 100 %, such as 28% or 'p5.*=28%'"
        )
    return SavingsPlan(Decimal(match["number"]) / 100, (match["glob"] or "*").strip())


def with_savings(catalogs: Iterable[Catalog], plans: Iterable[SavingsPlan]) -> tuple[Catalog, ...]:
    """The catalogs with the best discount on on-demand prices, rounded up to micro-dollars.

    Raises a RequestError for a plan that no type with an on-demand price goes with.
    """
    plans = tuple(plans)
    catalogs = tuple(catalogs)
    for plan in plans:
        if not any(
            i.on_demand_usd_per_hour and fnmatchcase(i.name, plan.glob) for c in catalogs for i in c
        ):
            raise RequestError(
                "savings_plan",
                plan.glob,
                f"a type of {_named(catalogs)} with an on-demand price, or a glob of some",
            )
    if not plans:
        return catalogs
    return tuple(replace(c, instances=tuple(_discounted(i, plans) for i in c)) for c in catalogs)


def _named(catalogs: Sequence[Catalog]) -> str:
    return f"catalog {', '.join(c.name for c in catalogs)}"


def _discounted(instance: InstanceType, plans: tuple[SavingsPlan, ...]) -> InstanceType:
    share = max((p.share for p in plans if fnmatchcase(instance.name, p.glob)), default=Decimal(0))
    if not share or instance.on_demand_usd_per_hour is None:
        return instance
    price = (instance.on_demand_usd_per_hour * (1 - share)).quantize(MICRO, rounding=ROUND_CEILING)
    return replace(instance, on_demand_usd_per_hour=price, discount=share)


def with_reserved(
    catalogs: Iterable[Catalog], pools: Iterable[ReservedPool], now: datetime
) -> tuple[tuple[Catalog, ...], tuple[str, ...]]:
    """The catalogs with a type for each usable pool of their region, and notes.

    The notes say why pools are in no catalog, and which figures look wrong. Raises a RequestError
    for a pool of a type that no catalog has, or two of one name.
    """
    pools = tuple(pools)
    catalogs = tuple(catalogs)
    refuse_twice("reserved", (p.name for p in pools))
    added: list[list[InstanceType]] = [[] for _ in catalogs]
    notes = []
    for pool in pools:
        of_type = [c for c in catalogs if pool.instance_type in c.by_name]
        in_region = [
            c for c in of_type if not pool.region or pool.region == c.region or not c.region
        ]
        if not of_type:
            raise RequestError("reserved", pool.instance_type, f"a type of {_named(catalogs)}")
        name = f"reserved pool {pool.name}"
        if not in_region:
            others = ", ".join(c.region for c in of_type)
            notes.append(f"{name} is in {pool.region}, not in {others}")
        elif (end := pool.usable_until) is not None and end <= now:
            notes.append(f"{name} ended at {_in_words(end)}{_before_its_end(pool)}")
        elif pool.begins is not None and pool.begins > now:
            notes.append(f"{name} starts at {_in_words(pool.begins)}: plan again then")
        else:
            for catalog, more in zip(catalogs, added, strict=True):
                if catalog in in_region:
                    more.append(_of_pool(catalog[pool.instance_type], pool, now))
                    notes += _doubts(catalog, pool)
    both = zip(catalogs, added, strict=True)
    extended = [replace(c, instances=(*c.instances, *more)) if more else c for c, more in both]
    return tuple(extended), tuple(dict.fromkeys(notes))


def _doubts(catalog: Catalog, pool: ReservedPool) -> Iterator[str]:
    judged = PriceSanityCheck(
        {i.name: PricedType(i.vcpus, i.on_demand_usd_per_hour) for i in catalog}
    )
    doubt = judged.on_demand(pool.instance_type, pool.usd_per_hour)
    if doubt is not None:
        yield f"reserved pool {pool.name}: is its price right? {doubt}"
    known = catalog[pool.instance_type].zones
    if pool.zone and known and pool.zone not in known:
        yield (
            f"reserved pool {pool.name}: is its zone right? {pool.instance_type} is offered in"
            f" {', '.join(known)}"
        )


def _in_words(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _before_its_end(pool: ReservedPool) -> str:
    if pool.usable_until != pool.until:
        return f", {_CLEARED.seconds // 60} min before the block"
    return ""


def _of_pool(base: InstanceType, pool: ReservedPool, now: datetime) -> InstanceType:
    left_s = None
    until = ""
    if (end := pool.usable_until) is not None:
        left_s = (end - now).total_seconds()
        until = f"{_in_words(end)}{_before_its_end(pool)}"
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
        # A quota of its own (Catalog.pool_quotas) keeps plans within the number of reserved VMs.
        quota_family=f"reserved pool {pool.name}",
        reserved=Reservation(pool.name, base.name, pool.count, pool.kind, left_s, until),
    )
