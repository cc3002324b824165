"""What ships of rates: each with its source and date, and against two clouds' bills by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from deepvm import load_catalog, recommend
from deepvm.catalog.published.cloud_rates import rates_of
from deepvm.core.bill import RentedVms, bill_of
from deepvm.core.extras import Extras
from deepvm.io.user_dirs import data_folder

FILES = sorted((data_folder() / "rates").glob("*.json"))
OWN_PAGES: dict[str, tuple[str, ...]] = {
    "aws": ("aws.amazon.com/", "docs.aws.amazon.com/", "raw.githubusercontent.com/aws/"),
    "azure": ("azure.microsoft.com/", "learn.microsoft.com/"),
    "gcp": ("cloud.google.com/", "docs.cloud.google.com/"),
    "lambda": ("lambda.ai/", "docs.lambda.ai/"),
    "nebius": ("docs.nebius.com/",),
    "runpod": ("docs.runpod.io/",),
}
"""Where each cloud speaks for itself."""
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d)?)?")


def rates_in(part: Any) -> Iterator[dict[str, Any]]:
    """Every object that states a rate."""
    if isinstance(part, dict):
        if "source" in part:
            yield part
        for value in part.values():
            yield from rates_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from rates_in(value)


def test_there_are_rates_of_six_clouds() -> None:
    assert {f.stem for f in FILES} == {"aws", "azure", "gcp", "lambda", "nebius", "runpod"}


def test_each_rate_says_where_it_was_read_and_when() -> None:
    for file in FILES:
        document = json.loads(file.read_text())
        assert document["schema_version"] == "deepvm.rates/1" and document["cloud"] == file.stem
        assert _DATE.fullmatch(document["looked_up"])
        for rate in rates_in(document):
            assert rate["source"].startswith("https://") and rate["says"]
            assert rate["as_of"] is None or _DATE.fullmatch(rate["as_of"])
            # Only what a cloud itself states: no blogs, no copies of price lists
            assert rate["source"].removeprefix("https://").startswith(OWN_PAGES[file.stem])


def test_rates_are_plausible() -> None:
    for file in FILES:
        rates = rates_of(file.stem)
        assert rates is not None
        for disk in rates.disks:
            assert Decimal("0.01") <= disk.usd_per_gb_month <= Decimal("0.5")
        assert len({d.kind for d in rates.disks}) == len(rates.disks)
        if rates.address is not None:
            spot = rates.address.spot_usd_per_hour
            assert spot is None or 0 < spot <= rates.address.usd_per_hour
            assert 0 < rates.address.usd_per_hour <= Decimal("0.02")
        if rates.bucket is not None:
            assert Decimal("0.005") <= rates.bucket.usd_per_gb_month <= Decimal("0.05")
        if rates.egress is not None:
            *bounded, last = rates.egress.tiers
            ends = [t.up_to_gb for t in bounded]
            assert (
                last.up_to_gb is None
                and None not in ends
                and ends == sorted(ends, key=lambda e: e or 0)
            )
            prices = [t.usd_per_gb for t in rates.egress.tiers]
            assert prices == sorted(prices, reverse=True) and prices[0] <= Decimal("0.2")


def test_the_page_has_every_rate_with_its_source() -> None:
    page = (data_folder().parent / "docs" / "internals" / "reference" / "rates.md").read_text()
    for file in FILES:
        document = json.loads(file.read_text())
        rows = [line for line in page.splitlines() if line.startswith(f"| {document['cloud']}")]
        rates = list(rates_in(document))
        assert len(rows) == len(rates), file.stem
        for rate in rates:
            figures = [v for k, v in rate.items() if k.startswith("usd") and v != "0"]
            figures += [t["usd_per_gb"] for t in rate.get("tiers", ())]
            assert any(rate["source"] in row and all(f in row for f in figures) for row in rows), (
                rate
            )


def test_a_cloud_without_a_file_has_no_rates() -> None:
    assert rates_of("mars") is None


def test_a_bill_of_aws_by_hand() -> None:
    rates = rates_of("aws", "us-east-1")
    assert rates is not None
    vms = RentedVms(8, 1, Decimal(10), hours=73)
    found = {
        i.name: i for i in bill_of(vms, rates, Extras.parse(disk="200GB", egress="50GB")).items
    }
    # 9 x 200 x 0.08 / 730, in whole micro-dollars for each
    assert found["disk"].usd_per_hour == Decimal("0.197262")
    assert found["addresses"].usd_per_hour == Decimal("0.045")  # 9 x 0.005
    assert found["egress"].usd_once == Decimal("4.5")  # 50 x 0.09
    assert all(item.source for item in found.values())


def test_a_bill_of_google_by_hand() -> None:
    rates = rates_of("gcp", "us-central1")
    assert rates is not None
    vms = RentedVms(40, 0, Decimal(10), hours=73)
    bill = bill_of(vms, rates, Extras.parse(egress="2048GB", nat=True))
    found = {i.name: i for i in bill.items}
    assert found["nat"].usd_per_hour == Decimal("0.0498")  # 32 x 0.0014 + 0.005
    assert found["nat"].usd_once == Decimal("92.16")  # 2048 x 0.045
    assert found["egress"].usd_once == Decimal("245.76")  # 2048 x 0.12


def test_a_rate_that_no_cloud_states_itself_is_named_as_not_counted() -> None:
    asked = Extras.parse(egress="1GB", bucket="1GB")
    for cloud, unknown in {
        "gcp": {"addresses"},
        "azure": {"addresses", "egress", "bucket"},
    }.items():
        rates = rates_of(cloud, "somewhere")
        assert rates is not None and "pd-balanced" not in {d.kind for d in rates.disks}
        left = bill_of(RentedVms(1, 0, Decimal(1)), rates, asked).not_counted
        reasons = {part.name: part.why for part in left if part.unknown}
        assert reasons == dict.fromkeys(unknown, f"no rate is known for {cloud}")


def test_a_cloud_without_rates_has_those_of_no_other_region() -> None:
    rates = rates_of("azure", "westeurope")
    assert rates is not None
    bill = bill_of(RentedVms(1, 0, Decimal(1)), rates, Extras())
    assert [item.name for item in bill.items] == ["boot"] and bill.other_region == ""


def test_the_market_of_a_cloud_knows_its_rates_and_every_recommendation_has_a_bill() -> None:
    catalog = load_catalog("aws-us-east-1", prices="snapshot")
    assert catalog.rates is not None and catalog.rates.cloud == "aws"
    found = recommend(catalog, 3, estimates=True, disk="100GB")
    for r in (*found, *(a.recommendation for a in found.alternatives)):
        assert r.bill is not None
        disk = next(i for i in r.bill.items if i.name == "disk")
        vms = r.cluster.gpu_count + (r.cluster.memory.count if r.cluster.memory else 0)
        assert disk.usd_per_hour == vms * Decimal("0.010959")  # 8 / 730
        assert r.bill.total_usd_per_hour == r.usd_per_hour + r.bill.usd_per_hour


def test_the_paper_has_no_rates() -> None:
    assert recommend(load_catalog("paper"), 3)[0].bill is None
