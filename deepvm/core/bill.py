"""The bill besides VMs: the costs, the rate of each, and what is not counted.

It is computed only here, so that every answer, document and page has the same figures. Clouds bill
a month as 730 hours. Traffic is counted as if nothing of an account's free allowance were left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import NamedTuple

from deepvm.core.extras import (
    ADDRESSES,
    BOOT,
    BUCKET,
    COSTS,
    DISK,
    EGRESS,
    NAT,
    Extras,
    Surcharge,
)
from deepvm.core.lifetimes import PREPARATION_S
from deepvm.core.spelling import one_of
from deepvm.core.units import MICRO, MICRO_USD, counted, format_seconds
from deepvm.errors import RequestError

HOURS_A_MONTH = 730
"""By which clouds divide monthly prices."""


class RateSource(NamedTuple):
    """A rate's source; ``date``: ISO 8601; ``official``: by the cloud itself, not a copy."""

    url: str
    date: str
    official: bool = False

    def __str__(self) -> str:
        """``https://..., 2026-10-16, not the cloud's own page``."""
        return f"{self.url}, {self.date}" + ("" if self.official else ", not the cloud's own page")


class DiskRate(NamedTuple):
    """One kind of disk, by the size that is provided."""

    kind: str
    usd_per_gb_month: Decimal
    source: RateSource


class AddressRate(NamedTuple):
    """A public IPv4 address of a VM, $/h; ``spot_usd_per_hour``: of a spot VM, where it differs."""

    usd_per_hour: Decimal
    source: RateSource
    spot_usd_per_hour: Decimal | None = None


class NatRate(NamedTuple):
    """A NAT gateway: $/h in all, per VM (for at most ``most_vms`` VMs), and per GB."""

    usd_per_hour: Decimal
    usd_per_gb: Decimal
    source: RateSource
    usd_per_vm_hour: Decimal = Decimal(0)
    most_vms: int = 0


class Tier(NamedTuple):
    """Traffic of a month up to ``up_to_gb`` in all, None for all the rest."""

    up_to_gb: Decimal | None
    usd_per_gb: Decimal


class EgressRate(NamedTuple):
    """Traffic to the internet; ``free_gb_per_month``: shared by the whole account."""

    tiers: tuple[Tier, ...]
    source: RateSource
    free_gb_per_month: Decimal = Decimal(0)

    def usd(self, gb: Decimal) -> Decimal:
        """What so much in a month costs where nothing is free."""
        total = Decimal(0)
        below = Decimal(0)
        for tier in self.tiers:
            upper = gb if tier.up_to_gb is None else min(gb, tier.up_to_gb)
            total += max(upper - below, Decimal(0)) * tier.usd_per_gb
            below = max(below, upper)
        return total


class BucketRate(NamedTuple):
    """Objects in a bucket, by what they take; requests come on top."""

    usd_per_gb_month: Decimal
    source: RateSource


@dataclass(frozen=True)
class Rates:
    """What a cloud charges besides VMs.

    ``region``: where the rates hold, empty for everywhere. ``asked_region``: that of the VMs.
    ``disks``: the usual kind first.
    """

    cloud: str
    region: str = ""
    asked_region: str = ""
    disks: tuple[DiskRate, ...] = ()
    address: AddressRate | None = None
    nat: NatRate | None = None
    egress: EgressRate | None = None
    bucket: BucketRate | None = None

    @property
    def other_region(self) -> str:
        """The region whose rates these are, if the VMs are in another one; else empty."""
        if self.region and self.asked_region and self.region != self.asked_region:
            return self.region
        return ""


BOOT_S = sum(PREPARATION_S) / 2
"""From when a VM is billed until it trains: the mean of the Spotify thesis, 6.2.2."""
_OPTIONS = {DISK: "--disk", EGRESS: "--egress", BUCKET: "--bucket", NAT: "--nat"}


@dataclass(frozen=True)
class BillItem:
    """One cost: by the hour, or once for all the time.

    ``what``: how it is counted, in words. ``source``: who says what it costs, and when; empty where
    it follows from the VMs' own prices.
    """

    name: str
    what: str
    usd_per_hour: Decimal = Decimal(0)
    usd_once: Decimal = Decimal(0)
    source: RateSource | None = None


@dataclass(frozen=True)
class UncountedCost:
    """A cost that the bill leaves out, and why.

    ``included``: because it is part of another figure. ``unknown``: there is such a cost, and
    the rate is unknown.
    """

    name: str
    why: str
    included: bool = False
    unknown: bool = False


@dataclass(frozen=True)
class RentedVms:
    """A cluster's VMs by market and their total $/h; ``hours``: of the job, None if unknown."""

    spot: int
    on_demand: int
    usd_per_hour: Decimal
    hours: float | None = None

    @property
    def count(self) -> int:
        """All VMs."""
        return self.spot + self.on_demand


@dataclass(frozen=True)
class Bill:
    """What a cluster costs besides its VMs, and with them.

    Attributes:
        usd_per_hour: of all items by the hour, without the VMs. usd_once: of those paid once.
        total_usd_per_hour: VMs and what comes besides them.
        doubtful: the items whose rates are copies, and not from the cloud itself.
        other_region: the region whose rates these are, if the VMs are in another one.
        counted: whether the budget and what a job costs are of all of it, see
            :attr:`Extras.counted`.
    """

    items: tuple[BillItem, ...]
    not_counted: tuple[UncountedCost, ...]
    usd_per_hour: Decimal
    usd_once: Decimal
    total_usd_per_hour: Decimal
    doubtful: tuple[str, ...]
    other_region: str = ""
    counted: bool = False

    def usd_of(self, hours: float) -> Decimal:
        """What a job of so many hours costs besides its VMs."""
        return _exact(self.usd_per_hour * Decimal(str(hours)) + self.usd_once)


def bill_of(vms: RentedVms, rates: Rates, extras: Extras) -> Bill:
    """The bill of a cluster besides its VMs."""
    lines = tuple(_lines(vms, rates, extras))
    items = tuple(line for line in lines if isinstance(line, BillItem))
    by_hour = sum((item.usd_per_hour for item in items), Decimal(0))
    return Bill(
        items,
        tuple(line for line in lines if isinstance(line, UncountedCost)),
        by_hour,
        sum((item.usd_once for item in items), Decimal(0)),
        vms.usd_per_hour + by_hour,
        tuple(i.name for i in items if i.source is not None and not i.source.official),
        rates.other_region,
        extras.counted,
    )


def surcharge_of(rates: Rates | None, extras: Extras) -> Surcharge:
    """What the planner adds to prices; 0 where the bill does not count.

    Google's NAT gateway costs no more for the 33rd VM: for larger clusters it is a little less than
    is added.
    """
    if rates is None or not extras.counted:
        return Surcharge()
    # The bills of no VM, of one spot VM, of one on-demand VM
    none, spot, on_demand = (
        bill_of(RentedVms(*vms, Decimal(0), hours=1), rates, extras)
        for vms in ((0, 0), (1, 0), (0, 1))
    )
    # The bill is linear in the VMs of each market, so two differences give the cost of each VM.
    base, with_spot, with_on_demand = (
        int(bill.usd_per_hour * MICRO_USD) for bill in (none, spot, on_demand)
    )
    return Surcharge(with_spot - base, with_on_demand - base, base, none.usd_once)


def _lines(vms: RentedVms, rates: Rates, extras: Extras) -> Iterator[BillItem | UncountedCost]:
    """Each cost, or why it is not counted; those of 0 and unused gateways are not named."""
    disk = _disk(rates, extras)
    known = {
        DISK: disk,
        ADDRESSES: rates.address,
        NAT: rates.nat,
        EGRESS: rates.egress,
        BUCKET: rates.bucket,
    }
    unneeded = {ADDRESSES if extras.nat else NAT, DISK if extras.disk_gb == 0 else ""}
    for name in COSTS:
        if name in unneeded:
            continue
        if name in extras.excluded:
            yield UncountedCost(name, "excluded by --exclude-cost")
        elif name == BOOT:
            yield _boot(vms)
        elif known[name] is None:
            kind = f" of {extras.disk_kind}" if name == DISK and extras.disk_kind else ""
            asked = name == ADDRESSES or name in extras.given
            yield UncountedCost(name, f"no rate{kind} is known for {rates.cloud}", unknown=asked)
        elif name in _OPTIONS and name not in extras.given:
            yield UncountedCost(name, f"{_OPTIONS[name]} says how much")
        else:
            yield _item(name, vms, rates, extras)


def _item(name: str, vms: RentedVms, rates: Rates, extras: Extras) -> BillItem:
    """A cost whose rate and amount are known."""
    if name == DISK:
        disk = _disk(rates, extras)
        assert disk is not None and extras.disk_gb is not None
        usd = vms.count * _per_hour(extras.disk_gb * disk.usd_per_gb_month)
        text = (
            f"{counted(vms.count, 'disk')} of {_in_gb(extras.disk_gb)} {disk.kind},"
            f" {disk.usd_per_gb_month:f} $ a GB and month"
        )
        return BillItem(name, text, usd, source=disk.source)
    if name == ADDRESSES:
        address = rates.address
        assert address is not None
        spot = address.spot_usd_per_hour
        spot = address.usd_per_hour if spot is None else spot
        prices = [(vms.spot, spot), (vms.on_demand, address.usd_per_hour)]
        usd = sum((count * price for count, price in prices), Decimal(0))
        each = " or ".join(dict.fromkeys(f"{price:f}" for count, price in prices if count))
        text = counted(vms.count, "public IPv4 address", "public IPv4 addresses")
        return BillItem(name, f"{text}, {each} $/h each", usd, source=address.source)
    if name == NAT:
        nat = rates.nat
        assert nat is not None
        usd = nat.usd_per_hour + min(vms.count, nat.most_vms) * nat.usd_per_vm_hour
        if rates.address is not None:
            usd += rates.address.usd_per_hour
        through = (extras.egress_gb or Decimal(0)) * nat.usd_per_gb
        text = f"a NAT gateway with its address, {nat.usd_per_gb:f} $ a GB"
        return BillItem(name, text, usd, _exact(through), nat.source)
    if name == EGRESS:
        egress = rates.egress
        assert egress is not None and extras.egress_gb is not None
        months = Decimal(str(max((vms.hours or 0.0) / HOURS_A_MONTH, 1.0)))
        usd = months * egress.usd(extras.egress_gb / months)
        text = f"{_in_gb(extras.egress_gb)} to the internet"
        if free := egress.free_gb_per_month:
            text += f"; an account's free {free:f} GB a month may be used up"
        return BillItem(name, text, usd_once=_exact(usd), source=egress.source)
    bucket = rates.bucket
    assert bucket is not None and extras.bucket_gb is not None
    text = (
        f"{_in_gb(extras.bucket_gb)} in a bucket, {bucket.usd_per_gb_month:f} $ a GB and month,"
        " without requests"
    )
    usd = _per_hour(extras.bucket_gb * bucket.usd_per_gb_month)
    return BillItem(name, text, usd, source=bucket.source)


def _boot(vms: RentedVms) -> BillItem | UncountedCost:
    if vms.hours is not None:
        return UncountedCost(BOOT, "in the job's time and bill already", included=True)
    once = _exact(vms.usd_per_hour * Decimal(str(BOOT_S)) / 3600)
    text = f"all VMs for {format_seconds(BOOT_S, digits=2)} before they train"
    return BillItem(BOOT, text, usd_once=once)


def refuse_unknown_disk(every: Iterable[Rates], extras: Extras) -> None:
    """Raise a RequestError for a kind of disk that none of some clouds is known to have."""
    known = tuple(every)
    kinds = list(dict.fromkeys(d.kind for rates in known for d in rates.disks))
    if extras.disk_kind and known and extras.disk_kind not in kinds:
        clouds = ", ".join(dict.fromkeys(rates.cloud for rates in known))
        if kinds:
            allowed = one_of(extras.disk_kind, kinds)
        else:
            allowed = f"none: no rates of disks are known for {clouds}"
        raise RequestError("disk_type", extras.disk_kind, allowed)


def _disk(rates: Rates, extras: Extras) -> DiskRate | None:
    """The kind of disk that is wanted, None where no rate is known."""
    return next((d for d in rates.disks if extras.disk_kind in ("", d.kind)), None)


def _per_hour(usd_per_month: Decimal) -> Decimal:
    return _exact(usd_per_month / HOURS_A_MONTH)


def _exact(usd: Decimal) -> Decimal:
    return usd.quantize(MICRO, rounding=ROUND_HALF_UP)


def _in_gb(gb: Decimal) -> str:
    rounded = float(f"{float(gb):.4g}")
    return f"{rounded:g} GB"
