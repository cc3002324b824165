"""What clouds charge besides VMs, from ``data/rates/CLOUD.json``: one file for each cloud, found by its name."""

from __future__ import annotations

import json
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
from deepvm.io.user_dirs import data_folder


def rates_of(cloud: str, region: str = "") -> Rates | None:
    """The rates of a cloud for VMs in a region; None where no file says any."""
    found = _read(cloud)
    return None if found is None else replace(found, asked_region=region)


@lru_cache(maxsize=16)
def _read(cloud: str) -> Rates | None:
    file = data_folder() / "rates" / f"{cloud}.json"
    if not file.is_file():
        return None
    raw = json.loads(file.read_text(encoding="utf-8"))
    looked_up, address, nat = raw["looked_up"], raw.get("address"), raw.get("nat")
    egress, bucket = raw.get("egress"), raw.get("bucket")
    return Rates(
        cloud=raw["cloud"],
        region=raw["region"],
        disks=tuple(
            DiskRate(d["kind"], Decimal(d["usd_per_gb_month"]), _source(d, looked_up))
            for d in raw.get("disks", ())
        ),
        address=address
        and AddressRate(
            Decimal(address["usd_per_hour"]),
            _source(address, looked_up),
            _usd(address.get("usd_per_hour_spot")),
        ),
        nat=nat
        and NatRate(
            Decimal(nat["usd_per_hour"]),
            Decimal(nat["usd_per_gb"]),
            _source(nat, looked_up),
            _usd(nat.get("usd_per_vm_hour")) or Decimal(0),
            nat.get("most_vms", 0),
        ),
        egress=egress
        and EgressRate(
            tuple(Tier(_usd(t["up_to_gb"]), Decimal(t["usd_per_gb"])) for t in egress["tiers"]),
            _source(egress, looked_up),
            Decimal(egress["free_gb_per_month"]),
        ),
        bucket=bucket
        and BucketRate(Decimal(bucket["usd_per_gb_month"]), _source(bucket, looked_up)),
    )


def _source(entry: Mapping[str, Any], looked_up: str) -> RateSource:
    return RateSource(entry["source"], entry["as_of"] or looked_up, entry["official"])


def _usd(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
