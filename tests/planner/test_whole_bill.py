"""A budget for everything: once users say something of disks and the like, the planner pays for
them, too.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from support.builders import catalog, cpu_type, gpu_type, hybrid

from deepvm import recommend
from deepvm.core.bill import (
    AddressRate,
    BucketRate,
    DiskRate,
    EgressRate,
    NatRate,
    Rates,
    RateSource,
    RentedVms,
    Tier,
    bill_of,
    surcharge_of,
)
from deepvm.core.cluster.cluster import Recommendation
from deepvm.core.cluster.instances import Catalog
from deepvm.core.extras import Extras, Surcharge
from deepvm.planner.recommend import Recommendations
from deepvm.planner.regions import compare

SOURCE = RateSource("https://example.org", "2026-11-27")
RATES = Rates(
    "mars",
    disks=(DiskRate("ssd", Decimal("0.08"), SOURCE),),
    address=AddressRate(Decimal("0.005"), SOURCE, Decimal("0.0025")),
    nat=NatRate(Decimal("0.045"), Decimal("0.045"), SOURCE, Decimal("0.0014"), 32),
    egress=EgressRate((Tier(None, Decimal("0.09")),), SOURCE),
    bucket=BucketRate(Decimal("0.023"), SOURCE),
)
SMALL = gpu_type("small", spot_usd_per_hour="0.3", speedups=hybrid())
LARGE = gpu_type("large", spot_usd_per_hour="0.65", eflops=200.0, speedups=hybrid())
ALL = {"disk": "1TB", "bucket": "10TB", "egress": "100GB"}


def mars(**changes: Any) -> Catalog:
    return catalog(SMALL, LARGE, cpu_type(), **{"rates": RATES, **changes})


def asked(budget: str = "2", **options: Any) -> Recommendations:
    return recommend(mars(), budget, **{"quotas": (), "rank": "machines", **options})


def test_what_is_added_to_prices_is_what_the_bill_says() -> None:
    for extras in [ALL, {"disk": "37GB"}, {"disk": "3GB", "nat": True}, {"egress": "1GB"}]:
        said = Extras.parse(**extras)
        added = surcharge_of(RATES, said)
        for spot, on_demand in ((0, 1), (7, 1), (8, 0), (20, 12)):
            items = bill_of(RentedVms(spot, on_demand, Decimal(1), hours=1), RATES, said).items
            micro_usd = spot * added.spot + on_demand * added.on_demand + added.cluster
            assert sum(i.usd_per_hour for i in items) == Decimal(micro_usd) / 1_000_000
            assert sum(i.usd_once for i in items) == added.once_usd


def test_nothing_is_added_where_nothing_is_said_or_known() -> None:
    assert (
        surcharge_of(RATES, Extras()) == surcharge_of(None, Extras.parse(disk="1TB")) == Surcharge()
    )
    without = surcharge_of(RATES, Extras.parse(**ALL, exclude_cost="all"))
    assert without == Surcharge()
    plain, excluded = asked(), asked(disk="1TB", exclude_cost="all")
    assert plain[0].cluster == excluded[0].cluster
    assert plain[0].counted_usd_per_hour == plain[0].usd_per_hour


def test_the_budget_is_for_all() -> None:
    for solver in ["ilp", "frontier"]:
        for architecture in ["spot-storage", "single-anchor", "tiering", "on-demand"]:
            found = asked("3.5", **ALL, solver=solver, architecture=architecture, top=5, rank=None)
            assert found and not found.doubt
            for r in found:
                assert r.bill is not None and r.bill.counted
                assert (
                    r.usd_per_hour
                    < r.counted_usd_per_hour
                    == r.bill.total_usd_per_hour
                    <= Decimal("3.5")
                )
                assert r.usd_per_work == pytest.approx(float(r.counted_usd_per_hour) / r.throughput)
            larger = found.next_change
            assert (
                larger is not None
                and larger.budget == larger.recommendation.counted_usd_per_hour > Decimal("3.5")
            )


def names(found: Recommendations) -> list[str]:
    return [r.cluster.gpu.name for r in found]


@pytest.mark.parametrize(
    "options", [{"objective": "cost-per-work"}, {"objective": "total-cost", "work": 50}]
)
def test_disks_of_many_small_vms_change_the_order(options: dict[str, Any]) -> None:
    """At 0.30 and $0.65/h the small ones are cheaper for the same work.

    With 1 TB each, $0.11/h, they are not.
    """
    with_disks: dict[str, Any] = {"architecture": "spot-storage", "rank": None, **options}
    assert names(asked(**with_disks))[0] == "small"
    assert names(asked(disk="1TB", **with_disks))[0] == "large"


def test_what_is_paid_once_is_part_of_the_total_budget() -> None:
    """1 TB of traffic is $90."""
    job: dict[str, Any] = {
        "work": 50,
        "architecture": "spot-storage",
        "rank": None,
        "objective": "makespan",
    }
    with_traffic: Recommendation = asked("100", egress="1TB", **job)[0]
    assert (
        with_traffic.outlook is not None
        and with_traffic.whole_usd == with_traffic.outlook.cost_usd > 90
    )
    limit = Decimal(str(round(with_traffic.outlook.cost_usd - 1, 2)))
    less = asked("100", egress="1TB", total_budget=limit, **job)
    assert less[0].outlook is not None and 90 < less[0].outlook.cost_usd <= limit
    none = asked("100", egress="1TB", total_budget=80, **job)
    assert not none and none.infeasible is not None and none.infeasible.constraint == "total-budget"


def test_regions_are_compared_by_what_counts() -> None:
    """The region with the cheaper VMs has dear disks."""
    dear = Rates("mars", disks=(DiskRate("ssd", Decimal("0.80"), SOURCE),))
    here = mars(name="mars-here", region="here")
    cheap = catalog(
        gpu_type("small", spot_usd_per_hour="0.29", speedups=hybrid()),
        name="mars-there",
        region="there",
        rates=dear,
    )

    def first(**options: Any) -> str:
        fixed: dict[str, Any] = {
            "architecture": "spot-storage",
            "objective": "cost-per-work",
            "quotas": (),
        }
        answers = [
            recommend(c, 2, instance_type="small", **fixed, **options) for c in (here, cheap)
        ]
        return compare(answers).answers[0].catalog.region

    assert first() == "there"
    assert first(disk="1TB") == "here"


@pytest.mark.parametrize("rates", [None, Rates("venus")])
def test_disks_that_nobody_knows_the_price_of_do_not_win(rates: Rates | None) -> None:
    """Counted as nothing they would.

    A cluster that is more than a quarter cheaper comes first all the same.
    """

    def first(spot_usd: str, **options: Any) -> str:
        other = gpu_type("small", spot_usd_per_hour=spot_usd, speedups=hybrid())
        here, there = (
            mars(name="mars-here", region="here"),
            catalog(other, name="venus-there", region="there", rates=rates),
        )
        fixed: dict[str, Any] = {
            "architecture": "spot-storage",
            "objective": "cost-per-work",
            "quotas": (),
        }
        answers = [
            recommend(c, 2, instance_type="small", **fixed, **options) for c in (here, there)
        ]
        return compare(answers).answers[0].catalog.region

    assert first("0.29") == first("0.29", disk="0GB", exclude_cost="all") == "there"
    assert first("0.35", disk="1TB") == "here"
    assert first("0.2", disk="1TB") == "there"


def test_what_is_too_dear_in_all_says_so() -> None:
    none = asked("0.35", disk="1TB", architecture="spot-storage")
    assert not none and none.infeasible is not None
    assert "/h in all (" in none.infeasible.reason
