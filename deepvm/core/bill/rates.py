"""Rates of a cloud besides VMs, each with source and date; unknown ones are None or empty."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

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

    @property
    def of_spot(self) -> Decimal:
        """Of a spot VM, $/h."""
        if self.spot_usd_per_hour is None:
            return self.usd_per_hour
        return self.spot_usd_per_hour


class NatRate(NamedTuple):
    """A NAT gateway: $/h in all, per VM (for at most ``most_vms`` VMs), and per GB."""

    usd_per_hour: Decimal
    usd_per_gb: Decimal
    source: RateSource
    usd_per_vm_hour: Decimal = Decimal(0)
    most_vms: int = 0

    def usd_per_hour_of(self, vms: int) -> Decimal:
        """With so many VMs behind it, $/h."""
        return self.usd_per_hour + min(vms, self.most_vms) * self.usd_per_vm_hour


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
            if tier.up_to_gb is None:
                upper = gb
            else:
                upper = min(gb, tier.up_to_gb)
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
    def borrowed(self) -> str:
        """The region whose rates these are, if the VMs are in another one; else empty."""
        if self.region and self.asked_region and self.region != self.asked_region:
            return self.region
        return ""
