"""Rates of clouds for costs besides VMs, from ``data/rates/CLOUD.json``."""

from dataclasses import replace
from decimal import Decimal
from functools import cache
from typing import Any

from deepvm.core.bill import (
    AddressRate,
    BucketRate,
    DiskRate,
    EgressRate,
    NatRate,
    Rates,
    RateSource,
    Tier,
)
from deepvm.core.json_types import JsonObject
from deepvm.io.user_dirs import data_folder, read_data

_PARTS = {"address": AddressRate, "nat": NatRate, "egress": EgressRate, "bucket": BucketRate}


def rates_of(cloud: str, region: str = "") -> Rates | None:
    """The rates of a cloud for VMs in a region; None for clouds without a file."""
    if not (data_folder() / "rates" / f"{cloud}.json").is_file():
        return None
    return replace(_read(cloud), asked_region=region)


@cache
def _read(cloud: str) -> Rates:
    raw = read_data(f"rates/{cloud}.json")
    looked_up = raw["looked_up"]
    parts = {n: _rate(kind, raw[n], looked_up) for n, kind in _PARTS.items() if raw.get(n)}
    disks = tuple(_rate(DiskRate, disk, looked_up) for disk in raw.get("disks", ()))
    return Rates(raw["cloud"], raw["region"], disks=disks, **parts)


def _rate(kind: Any, raw: JsonObject, looked_up: str) -> Any:
    values = {name: raw[name] for name in kind._fields if name in raw}
    for name, value in values.items():
        if isinstance(value, str) and "Decimal" in str(kind.__annotations__[name]):
            values[name] = Decimal(value)
    if "tiers" in values:
        values["tiers"] = tuple(_rate(Tier, tier, looked_up) for tier in raw["tiers"])
    if "source" in values:
        values["source"] = RateSource(raw["source"], raw["as_of"] or looked_up)
    return kind(**values)
