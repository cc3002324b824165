"""What clouds charge besides VMs, from ``data/rates/CLOUD.json``.

There is one file for each cloud, found by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from typing import Any

from deepvm.core.bill.rates import (
    AddressRate,
    BucketRate,
    DiskRate,
    EgressRate,
    NatRate,
    Rates,
    RateSource,
    Tier,
)
from deepvm.io.user_dirs import data_folder, read_data

_PARTS = {"address": AddressRate, "nat": NatRate, "egress": EgressRate, "bucket": BucketRate}


def rates_of(cloud: str, region: str = "") -> Rates | None:
    """The rates of a cloud for VMs in a region; None where no file says any."""
    found = _read(cloud)
    if found is None:
        return None
    return replace(found, asked_region=region)


@lru_cache(maxsize=16)
def _read(cloud: str) -> Rates | None:
    if not (data_folder() / "rates" / f"{cloud}.json").is_file():
        return None
    raw = read_data(f"rates/{cloud}.json")
    looked_up = raw["looked_up"]
    parts = {n: _rate(kind, raw[n], looked_up) for n, kind in _PARTS.items() if raw.get(n)}
    disks = tuple(_rate(DiskRate, disk, looked_up) for disk in raw.get("disks", ()))
    return Rates(raw["cloud"], raw["region"], disks=disks, **parts)


def _rate(kind: Any, raw: Mapping[str, Any], looked_up: str) -> Any:
    """A rate of its JSON object: texts that are amounts become numbers."""
    values: dict[str, Any] = {}
    for name, hint in kind.__annotations__.items():
        value = raw.get(name)
        if name == "source":
            value = RateSource(raw["source"], raw["as_of"] or looked_up, raw["official"])
        elif name == "tiers":
            value = tuple(_rate(Tier, tier, looked_up) for tier in raw["tiers"])
        elif isinstance(value, str) and "Decimal" in str(hint):
            value = Decimal(value)
        if name in raw:
            values[name] = value
    return kind(**values)
