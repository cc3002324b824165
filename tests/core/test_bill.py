"""The bill besides VMs, against sums by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from deepvm.core.bill import (
    BOOT_S,
    AddressRate,
    Bill,
    BucketRate,
    DiskRate,
    EgressRate,
    NatRate,
    Rates,
    RateSource,
    RentedVms,
    Tier,
    bill_of,
    refuse_unknown_disk,
)
from deepvm.core.extras import COSTS, Extras
from deepvm.errors import RequestError

SOURCE = RateSource("https://example.org/prices", "2026-10-16")
RATES = Rates(
    "mars",
    region="olympus-1",
    disks=(DiskRate("ssd", Decimal("0.08"), SOURCE), DiskRate("hdd", Decimal("0.04"), SOURCE)),
    address=AddressRate(Decimal("0.005"), SOURCE, Decimal("0.0025")),
    nat=NatRate(Decimal("0.045"), Decimal("0.045"), SOURCE),
    egress=EgressRate(
        (
            Tier(Decimal(1000), Decimal("0.12")),
            Tier(Decimal(3000), Decimal("0.11")),
            Tier(None, Decimal("0.08")),
        ),
        SOURCE,
    ),
    bucket=BucketRate(Decimal("0.023"), SOURCE),
)
VMS = RentedVms(spot=7, on_demand=1, usd_per_hour=Decimal("3.00"))


def items(
    rates: Rates = RATES, vms: RentedVms = VMS, **extras: Any
) -> dict[str, tuple[Decimal, Decimal]]:
    found = bill_of(vms, rates, Extras.parse(**extras)).items
    return {i.name: (i.usd_per_hour, i.usd_once) for i in found}


def bill(rates: Rates = RATES, vms: RentedVms = VMS, **extras: Any) -> Bill:
    return bill_of(vms, rates, Extras.parse(**extras))


def left(found: Bill) -> dict[str, str]:
    return {part.name: part.why for part in found.not_counted}


def test_disks_are_of_each_vm_and_months_have_730_hours() -> None:
    assert items(disk="200GB")["disk"] == (
        Decimal("0.175344"),
        0,
    )  # 8 x 200 x 0.08 / 730, in whole micro-dollars for each
    assert items(disk="200GB", disk_type="hdd")["disk"] == (Decimal("0.087672"), 0)


def test_an_unknown_kind_of_disk_names_those_that_there_are() -> None:
    wrong, right = (
        Extras.parse(disk="1GB", disk_type="ssf"),
        Extras.parse(disk="1GB", disk_type="hdd"),
    )
    with pytest.raises(RequestError, match="ssd or hdd|hdd, ssd|ssd, hdd"):
        refuse_unknown_disk([RATES, Rates("venus")], wrong)
    with pytest.raises(RequestError, match="no rates of disks are known for venus"):
        refuse_unknown_disk([Rates("venus")], right)
    refuse_unknown_disk([Rates("venus"), RATES], right)  # one of several clouds has it
    assert (
        left(bill(Rates("venus"), disk="1GB", disk_type="hdd"))["disk"]
        == "no rate of hdd is known for venus"
    )


def test_addresses_cost_by_market() -> None:
    assert items()["addresses"] == (Decimal("0.0225"), 0)  # 7 x 0.0025 + 0.005


def test_a_gateway_takes_the_place_of_addresses_and_counts_what_goes_through() -> None:
    found = items(nat=True, egress="100GB")
    assert "addresses" not in found
    assert found["nat"] == (Decimal("0.050"), Decimal("4.5"))  # 0.045 + its address; 100 x 0.045


def test_a_gateway_may_cost_by_vm_up_to_a_limit() -> None:
    rates = Rates("mars", nat=NatRate(Decimal(0), Decimal(0), SOURCE, Decimal("0.0014"), 5))
    assert items(rates, nat=True)["nat"] == (Decimal("0.0070"), 0)


def test_traffic_is_counted_by_tiers() -> None:
    assert items(egress="500GB")["egress"] == (0, Decimal(60))
    # 1000 x 0.12 + 2000 x 0.11 + 1000 x 0.08
    assert items(egress="4TB")["egress"] == (0, Decimal(420))


def test_each_month_begins_at_the_first_tier() -> None:
    two_months = RentedVms(7, 1, Decimal(3), hours=1460)
    # 2 x (1000 x 0.12 + 1000 x 0.11)
    assert items(vms=two_months, egress="4TB")["egress"] == (0, Decimal(460))


def test_a_bucket_costs_while_the_cluster_runs() -> None:
    assert items(bucket="730GB")["bucket"] == (Decimal("0.023"), 0)


def test_boot_minutes_are_in_the_bill_of_a_job_already() -> None:
    assert items()["boot"] == (0, Decimal("0.136"))  # 163.2 s of $3/h
    assert pytest.approx(163.2) == BOOT_S
    job = bill(vms=RentedVms(7, 1, Decimal(3), hours=10))
    assert "boot" not in {i.name for i in job.items}
    assert next(p for p in job.not_counted if p.name == "boot").included


def test_what_is_not_counted_is_named_with_the_reason() -> None:
    found = left(bill(egress="1GB", exclude_cost="boot, addresses"))
    assert found["disk"] == "--disk says how much"
    assert found["boot"] == found["addresses"] == "excluded by --exclude-cost"
    assert "egress" not in found and "nat" not in found


def test_what_nobody_knows_is_named() -> None:
    found = left(bill(Rates("venus"), disk="10GB", egress="1GB"))
    assert {found[name] for name in ("disk", "egress", "addresses", "bucket")} == {
        "no rate is known for venus"
    }


def test_each_cost_can_be_left_out() -> None:
    for name in COSTS:
        everything: dict[str, Any] = {
            "disk": "1GB",
            "egress": "1GB",
            "bucket": "1GB",
            "nat": name == "nat",
        }
        with_it, without = items(**everything), items(**everything, exclude_cost=[name])
        assert with_it.keys() - without.keys() == {name}


def test_all_costs_can_be_left_out() -> None:
    found = bill(disk="1GB", exclude_cost="all")
    assert not found.items and found.total_usd_per_hour == 3


def test_an_unknown_cost_is_refused() -> None:
    with pytest.raises(RequestError, match=r"exclude_cost.*disc"):
        Extras.parse(exclude_cost="disk,disc")


def test_no_disk_is_an_answer() -> None:
    for nothing in ["0", "0GB", "0.0 TB", "0GiB", 0]:
        found = bill(disk=nothing, egress=nothing)
        assert "disk" not in left(found) and "egress" not in left(found)


def test_totals() -> None:
    found = bill(disk="200GB", egress="500GB", exclude_cost="boot")
    assert found.usd_per_hour == Decimal("0.175344") + Decimal("0.0225")
    assert found.usd_once == 60
    assert found.total_usd_per_hour == Decimal("3.197844")
    assert found.usd_of(10) == Decimal("61.97844")


def test_rates_of_another_region_are_named() -> None:
    assert bill().other_region == ""
    elsewhere = Rates("mars", region="olympus-1", asked_region="tharsis-1")
    assert bill(elsewhere).other_region == "olympus-1"
    assert bill(Rates("mars", region="olympus-1", asked_region="olympus-1")).other_region == ""


def test_what_is_asked_for_and_has_no_known_rate_is_told_from_what_is_not_asked_for() -> None:
    found = bill(Rates("venus"), egress="1GB")
    assert {part.name for part in found.not_counted if part.unknown} == {"egress", "addresses"}
    assert not any(part.unknown for part in bill().not_counted)
