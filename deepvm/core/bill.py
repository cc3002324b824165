"""The bill besides VMs: the costs, the rate of each, and what is not counted.

It is computed only here, so that every answer, document and page has the same figures. Clouds bill
a month as 730 hours. Traffic is counted as if nothing of an account's free allowance were left.
"""

from collections.abc import Iterable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

from deepvm.core.extras import ADDRESSES, BOOT, BUCKET, COSTS, DISK, EGRESS, NAT, Extras, Surcharge
from deepvm.core.lifetimes import PREPARATION_S
from deepvm.core.spelling import one_of
from deepvm.core.units import MICRO, MICRO_USD, counted, format_seconds
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.records import dataclass

HOURS_A_MONTH = 730  # By which clouds divide monthly prices


class RateSource(NamedTuple):
    """Where a cloud itself states a rate; ``date``: ISO 8601."""

    url: str
    date: str

    @property
    def official(self) -> bool:
        """Plans have this key from when rates could be of others."""
        return True

    def __str__(self) -> str:
        """``https://..., 2026-10-16``."""
        return f"{self.url}, {self.date}"


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
    """What a cloud charges besides VMs."""

    cloud: str
    region: str = ""  # where, empty for everywhere
    asked_region: str = ""  # that of the VMs
    disks: tuple[DiskRate, ...] = ()  # the usual kind first
    address: AddressRate | None = None
    nat: NatRate | None = None
    egress: EgressRate | None = None
    bucket: BucketRate | None = None


# From when a VM is billed until it trains: the mean of the Spotify thesis, 6.2.2
BOOT_S = sum(PREPARATION_S) / 2
_OPTIONS = {DISK: "--disk", EGRESS: "--egress", BUCKET: "--bucket", NAT: "--nat"}


@dataclass(frozen=True)
class BillItem:
    """One cost, by the hour or once; ``what``: how it is counted; ``source``: none if of VMs."""

    name: str
    what: str
    usd_per_hour: Decimal = Decimal(0)
    usd_once: Decimal = Decimal(0)
    source: RateSource | None = None


@dataclass(frozen=True)
class UncountedCost:
    """A cost that the bill leaves out; ``included``: in another figure; ``unknown``: its rate."""

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
        return self.spot + self.on_demand


@dataclass(frozen=True)
class Bill:
    """What a cluster costs besides its VMs, and with them."""

    items: tuple[BillItem, ...]
    not_counted: tuple[UncountedCost, ...]
    usd_per_hour: Decimal  # without the VMs
    usd_once: Decimal
    total_usd_per_hour: Decimal
    other_region: str = ""
    counted: bool = False  # whether the budget is for all of it, see Extras.counted

    def usd_of(self, hours: float) -> Decimal:
        """What a job of so many hours costs besides its VMs."""
        return _exact(self.usd_per_hour * Decimal(str(hours)) + self.usd_once)


def bill_of(vms: RentedVms, rates: Rates, extras: Extras) -> Bill:
    """The bill of a cluster besides its VMs."""
    lines = tuple(_lines(vms, rates, extras))
    items = tuple(line for line in lines if isinstance(line, BillItem))
    by_hour = sum((item.usd_per_hour for item in items), Decimal(0))
    other_region = ""
    if rates.asked_region not in ("", rates.region):
        other_region = rates.region
    return Bill(
        items,
        tuple(line for line in lines if isinstance(line, UncountedCost)),
        by_hour,
        sum((item.usd_once for item in items), Decimal(0)),
        vms.usd_per_hour + by_hour,
        other_region,
        extras.counted,
    )


def surcharge_of(rates: Rates | None, extras: Extras) -> Surcharge:
    """What the planner adds to prices; 0 where the bill does not count.

    A little too much for more than 32 VMs behind Google's NAT gateway.
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
    known: dict[str, Any] = {
        DISK: next((d for d in rates.disks if extras.disk_kind in ("", d.kind)), None),
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
        elif name == BOOT and vms.hours is not None:
            yield UncountedCost(BOOT, "in the job's time and bill already", included=True)
        elif name == BOOT:
            once = _exact(vms.usd_per_hour * Decimal(str(BOOT_S)) / 3600)
            text = f"all VMs for {format_seconds(BOOT_S, digits=2)} before they train"
            yield BillItem(BOOT, text, usd_once=once)
        elif known[name] is None:
            kind = f" of {extras.disk_kind}" if name == DISK and extras.disk_kind else ""
            asked = name == ADDRESSES or name in extras.given
            yield UncountedCost(name, f"no rate{kind} is known for {rates.cloud}", unknown=asked)
        elif name in _OPTIONS and name not in extras.given:
            yield UncountedCost(name, f"{_OPTIONS[name]} says how much")
        else:
            yield _item(name, known[name], vms, rates, extras)


def _item(name: str, rate: Any, vms: RentedVms, rates: Rates, extras: Extras) -> BillItem:
    """A cost whose rate and amount are known."""
    disk_gb, egress_gb, bucket_gb = (
        gb or Decimal(0) for gb in (extras.disk_gb, extras.egress_gb, extras.bucket_gb)
    )
    usd = once = Decimal(0)
    if name == DISK:
        usd = vms.count * _exact(disk_gb * rate.usd_per_gb_month / HOURS_A_MONTH)
        text = (
            f"{counted(vms.count, 'disk')} of {_in_gb(disk_gb)} {rate.kind},"
            f" ${rate.usd_per_gb_month:f} a GB and month"
        )
    elif name == ADDRESSES:
        if rate.spot_usd_per_hour is None:
            spot = rate.usd_per_hour
        else:
            spot = rate.spot_usd_per_hour
        prices = [(vms.spot, spot), (vms.on_demand, rate.usd_per_hour)]
        usd = sum((count * price for count, price in prices), Decimal(0))
        each = " or ".join(dict.fromkeys(f"{price:f}" for count, price in prices if count))
        text = counted(vms.count, "public IPv4 address", "public IPv4 addresses")
        text += f", ${each}/h each"
    elif name == NAT:
        usd = rate.usd_per_hour + min(vms.count, rate.most_vms) * rate.usd_per_vm_hour
        if rates.address is not None:
            usd += rates.address.usd_per_hour
        once = _exact(egress_gb * rate.usd_per_gb)
        text = f"a NAT gateway with its address, ${rate.usd_per_gb:f} a GB"
    elif name == EGRESS:
        months = Decimal(str(max((vms.hours or 0.0) / HOURS_A_MONTH, 1.0)))
        once = _exact(months * rate.usd(egress_gb / months))
        text = f"{_in_gb(egress_gb)} to the internet"
        if free := rate.free_gb_per_month:
            text += f"; an account's free {free:f} GB a month may be used up"
    else:
        usd = _exact(bucket_gb * rate.usd_per_gb_month / HOURS_A_MONTH)
        text = (
            f"{_in_gb(bucket_gb)} in a bucket, ${rate.usd_per_gb_month:f} a GB and month,"
            " without requests"
        )
    return BillItem(name, text, usd, once, rate.source)


def refuse_unknown_disk(every: Iterable[Rates], extras: Extras) -> None:
    """Raise a RequestError for a kind of disk that none of some clouds is known to have."""
    known = tuple(every)
    kinds = list(dict.fromkeys(d.kind for rates in known for d in rates.disks))
    if extras.disk_kind and known and extras.disk_kind not in kinds:
        clouds = ", ".join(dict.fromkeys(rates.cloud for rates in known))
        if not kinds:
            raise OptionMismatchError(
                "disk_type",
                extras.disk_kind,
                f"does not fit: no rates of disks are known for {clouds}",
            )
        raise RequestError("disk_type", extras.disk_kind, one_of(extras.disk_kind, kinds))


def _exact(usd: Decimal) -> Decimal:
    return usd.quantize(MICRO, rounding=ROUND_HALF_UP)


def _in_gb(gb: Decimal) -> str:
    return f"{float(f'{float(gb):.4g}'):g} GB"
