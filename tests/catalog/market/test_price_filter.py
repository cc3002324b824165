"""Prices that cannot be true, in what AWS says and in what users write."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.market.build_catalog import MarketRequest, RegionMarket, drop_implausible_prices
from deepvm.catalog.signals.signal import Signal, price_text
from deepvm.catalog.store import format_catalog, load_catalog
from deepvm.core.cluster.instances import Catalog
from deepvm.core.cluster.prices import IMPLAUSIBLE, PriceBasis, PricePoint
from deepvm.errors import MissingDataError
from deepvm.services.keywords import recommend

NOW = datetime(2026, 11, 23, 12, tzinfo=timezone.utc)
TINY = price_text("0.00000001")  # as a reader of AWS's replies keeps it
ZONES = {"use1-az1": ["0.21", ""], "use1-az2": ["0.19", ""]}


def _spec(vcpus: int, gpu: str = "") -> dict[str, Any]:
    more = (
        {"gpu": {"name": gpu, "manufacturer": "NVIDIA", "count": 1, "memory_gib": 16.0}}
        if gpu
        else {}
    )
    return {
        "vcpus": vcpus,
        "memory_gib": 16.0,
        "baseline_gbps": 5.0,
        "peak_gbps": 25.0,
        "arch": "x86_64",
    } | more


SPECS = {
    "g4dn.xlarge": _spec(4, "T4"),
    "g4dn.2xlarge": _spec(8, "T4"),
    "g4dn.4xlarge": _spec(16, "T4"),
    "g5.xlarge": _spec(4, "A10G"),
    "c5.xlarge": _spec(4),
}
ON_DEMAND = {
    "g4dn.xlarge": "0.526",
    "g4dn.2xlarge": "0.752",
    "g4dn.4xlarge": "1.204",
    "g5.xlarge": "1.006",
    "c5.xlarge": "0.17",
}
SPOT = {"g4dn.xlarge": ZONES, "g5.xlarge": {"use1-az1": ["0.40", ""]}}


def signals(origin: str = "live", **changes: Any) -> dict[str, Signal]:
    data = {"specs": SPECS, "on-demand": ON_DEMAND, "spot": SPOT} | changes
    found = {k.replace("_", "-"): v for k, v in data.items() if v is not None}
    return {k: Signal(k, "us-east-1", NOW, f"said {k}", v, origin=origin) for k, v in found.items()}


def joined(found: dict[str, Signal], **choice: Any) -> Catalog:
    return RegionMarket("us-east-1", found, MarketRequest(**choice), NOW).catalog()


def refused(catalog: Catalog, signal: str) -> int:
    origin = catalog.provenance.origin(signal)
    assert origin is not None
    return dict(origin.refused).get(IMPLAUSIBLE, 0)


def test_good_prices_stay_as_they_are() -> None:
    vcpus = {name: spec["vcpus"] for name, spec in SPECS.items()}
    on_demand = {name: Decimal(price) for name, price in ON_DEMAND.items()}
    spot = {
        "g4dn.xlarge": {zone: [PricePoint(0, Decimal(usd))] for zone, (usd, _) in ZONES.items()}
    }
    kept = deepcopy((on_demand, spot))
    assert drop_implausible_prices(vcpus, on_demand, spot) == {"on-demand": [], "spot": []}
    assert (on_demand, spot) == kept


@pytest.mark.parametrize("region", DEFAULT_CLOUD.snapshot_regions())
def test_the_snapshots_are_plausible(region: str) -> None:
    catalog = load_catalog(f"aws-{region}", prices="snapshot")
    assert not any("cannot be true" in note for note in catalog.provenance.notes)


def test_one_bad_zone_costs_that_zone_alone() -> None:
    for origin in ["live", "cache", "expired"]:
        spot = SPOT | {"g4dn.xlarge": ZONES | {"use1-az4": [TINY, ""], "use1-az5": ["999999", ""]}}
        catalog = joined(signals(origin, spot=spot))
        gpu = catalog["g4dn.xlarge"]
        assert gpu.spot_usd_per_hour == Decimal("0.19")
        assert [z.zone for z in gpu.spot_zones] == ["use1-az2", "use1-az1"]
        assert refused(catalog, "spot") == 2 and refused(catalog, "on-demand") == 0
        (note,) = catalog.provenance.notes
        assert "spot prices of us-east-1: 2 prices left out that cannot be true: " in note
        assert (
            "g4dn.xlarge on the spot market in use1-az4 at $0.000001/h is below 2 % of its"
            " on-demand"
            " price, $0.5260" in note
        )
        assert "use1-az5 at $999999.0000/h is above 10 times its on-demand price" in note


def test_a_type_whose_spot_prices_are_all_bad_has_none() -> None:
    catalog = joined(signals(spot=SPOT | {"g4dn.xlarge": {"use1-az1": [TINY, ""]}}))
    assert (
        catalog["g4dn.xlarge"].spot_usd_per_hour is None and catalog["g4dn.xlarge"].spot_zones == ()
    )
    assert catalog["g4dn.xlarge"].on_demand_usd_per_hour == Decimal("0.526")


def test_a_bad_on_demand_price_leaves_the_spot_price() -> None:
    for price in [TINY, "0.001", "5000", "1000000"]:
        catalog = joined(signals(on_demand=ON_DEMAND | {"g4dn.xlarge": price}))
        assert catalog["g4dn.xlarge"].on_demand_usd_per_hour is None
        assert catalog["g4dn.xlarge"].spot_usd_per_hour == Decimal("0.19")
        assert (
            refused(catalog, "on-demand") == 1
            and "g4dn.xlarge on demand at" in catalog.provenance.notes[0]
        )


def test_a_type_without_any_price_left_is_absent_with_the_reason() -> None:
    catalog = joined(signals(on_demand=ON_DEMAND | {"c5.xlarge": TINY}))
    assert "c5.xlarge" not in catalog.by_name
    assert catalog.absent["c5.xlarge"] == "c5.xlarge has no price in us-east-1"
    (note,) = catalog.provenance.notes
    assert "c5.xlarge on demand at $0.000001/h is below $0.0005/h" in note


def test_without_on_demand_prices_spot_prices_are_judged_by_each_other() -> None:
    spot = {
        name: {"use1-az1": ["0.2", ""], "use1-az2": [TINY, ""], "use1-az3": ["50000", ""]}
        for name in SPECS
    }
    catalog = joined(signals(on_demand=None, spot=spot))
    assert {i.spot_usd_per_hour for i in catalog} == {Decimal("0.2")}
    assert refused(catalog, "spot") == 2 * len(SPECS)
    assert "and 6 more" in catalog.provenance.notes[0]


def test_a_zone_with_a_bad_price_over_time_is_left_out() -> None:
    start = int((NOW - timedelta(days=10)).timestamp())
    zones = {"use1-az1": [[start - 5, "0.20"]], "use1-az2": [[start - 5, "999999"]]}
    found = signals() | {
        "history:10": Signal("history:10", "us-east-1", NOW, "said history", {"g4dn.xlarge": zones})
    }
    catalog = joined(found, price_basis=PriceBasis.MAX, days=10)
    assert [z.zone for z in catalog["g4dn.xlarge"].spot_zones] == ["use1-az1"]
    assert refused(catalog, "history:10") == 1


def test_a_bad_change_of_a_history_is_as_if_it_had_not_been() -> None:
    for basis in [PriceBasis.P50, PriceBasis.P95, PriceBasis.MAX]:
        start = int((NOW - timedelta(days=10)).timestamp())
        day = 86_400
        good = [[start - 5, "0.20"], [start + 6 * day, "0.25"]]
        bad = [[start + day, TINY], [start + 7 * day, "999999"]]
        kept = {"g4dn.xlarge": {"use1-az1": good}}
        spoilt = {"g4dn.xlarge": {"use1-az1": sorted(good + bad), "use1-az2": bad}}
        prices = []
        for history in (kept, spoilt):
            found = signals() | {
                "history:10": Signal("history:10", "us-east-1", NOW, "a history", history)
            }
            catalog = joined(found, price_basis=basis, days=10)
            prices.append([(z.zone, z.usd_per_hour) for z in catalog["g4dn.xlarge"].spot_zones])
        assert prices[0] == prices[1] and len(prices[0]) == 1
        assert refused(catalog, "history:10") == 4


def test_a_history_is_judged_by_all_zones_whichever_is_wanted() -> None:
    start = int((NOW - timedelta(days=10)).timestamp())
    wrong = [[start - 5, "900"], [start + 86_400, "0.20"]]
    zones = {"use1-az1": wrong, **{f"use1-az{n}": [[start - 5, "0.20"]] for n in (2, 3, 4)}}
    history = {name: zones for name in ("g4dn.xlarge", "g4dn.2xlarge", "g4dn.4xlarge")}
    found = signals(on_demand={"c5.xlarge": "0.17"}) | {
        "history:10": Signal("history:10", "us-east-1", NOW, "a history", history)
    }
    for zone in ("", "use1-az1"):
        catalog = joined(found, price_basis=PriceBasis.MAX, days=10, zone=zone)
        assert catalog["g4dn.xlarge"].spot_zones[0].usd_per_hour == Decimal("0.20")
        assert refused(catalog, "history:10") == 3


def test_nothing_but_bad_prices_is_an_error_that_says_so() -> None:
    """With what was refused, the bound, and what helps: to ask the same server again does not."""
    with pytest.raises(MissingDataError) as caught:
        joined(signals(spot=None, on_demand=dict.fromkeys(SPECS, TINY)))
    text = str(caught.value)
    assert (
        "no type has a price in region us-east-1 that can be true; on-demand prices of us-east-1:"
        in text
    )
    assert "at $0.000001/h is below $0.0005/h, less than any VM costs" in text
    assert "'--prices snapshot'" in text and "--catalog" in text
    assert "catalog refresh" not in text and caught.value.exit_code == 4


def test_bad_spot_prices_alone_end_with_the_same_advice() -> None:
    catalog = joined(signals(spot={name: {"use1-az1": [TINY, ""]} for name in SPECS}))
    found = recommend(catalog, "3", architecture="spot-storage").infeasible
    assert found is not None and found.constraint == "types"
    assert "without a spot price" in found.reason
    assert found.advice.startswith("use '--prices snapshot', or '--catalog' with a file of yours")
    assert found.advice.endswith(f"(refused as implausible: {len(SPECS)} prices)")


def test_such_a_price_never_leads_the_ranking() -> None:
    """A T4 for a millionth of a dollar would win against everything."""
    spot = SPOT | {"g4dn.xlarge": {"use1-az1": [TINY, ""]}, "g5.xlarge": {"use1-az1": ["0.40", ""]}}
    best = recommend(joined(signals(spot=spot)), "3")[0].cluster
    assert best.gpu.name == "g5.xlarge"
    for name in ON_DEMAND:
        found = joined(signals(on_demand=ON_DEMAND | {name: TINY}))
        for plan in recommend(found, "3").configurations:
            assert all(g.instance.micro_usd_per_hour(g.market) > 1000 for g in plan.cluster.groups)


def written(folder: Path, ending: str, **prices: Any) -> Path:
    """The paper's catalog as a user's file with other prices of g4dn.xlarge."""
    document = json.loads(format_catalog(load_catalog("paper"), ".json")[0])
    (row,) = [i for i in document["instances"] if i["instance_type"] == "g4dn.xlarge"]
    row |= prices
    path = folder / "mine.json"
    path.write_text(json.dumps(document))
    if ending == ".json":
        return path
    text, _ = format_catalog(load_catalog(path), ".csv")
    (folder / "mine.csv").write_text(text)
    return folder / "mine.csv"


@pytest.mark.parametrize(("ending", "place"), [(".json", "1: instances[1]."), (".csv", "26: ")])
def test_a_users_own_price_is_kept_and_doubted_with_its_place(
    tmp_path: Path, ending: str, place: str
) -> None:
    path = written(tmp_path, ending, spot_usd_per_hour=0.000001)
    catalog = load_catalog(path)
    assert catalog["g4dn.xlarge"].spot_usd_per_hour == Decimal("0.000001")
    (doubt,) = catalog.provenance.doubts
    assert (
        doubt.startswith(f"{path}:{place}")
        and "spot_usd_per_hour: $0.000001/h is below 2 % of its on-demand" in doubt
    )


def test_a_users_zone_and_on_demand_price(tmp_path: Path) -> None:
    zones = [{"zone": "a", "usd_per_hour": 0.1578}, {"zone": "b", "usd_per_hour": 90_000}]
    path = written(tmp_path, ".json", spot_zones=zones, on_demand_usd_per_hour=0.0001)
    doubts = load_catalog(path).provenance.doubts
    assert len(doubts) == 2
    assert any("on_demand_usd_per_hour: $0.0001/h is below $0.0005/h" in d for d in doubts)
    assert any("spot_zones[1].usd_per_hour: $90000.0000/h is above $10000/h" in d for d in doubts)


@pytest.mark.parametrize("name", ["paper", "simulated"])
def test_the_catalogs_that_come_with_deepvm_leave_no_doubt(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.json"
    path.write_text(format_catalog(load_catalog(name), ".json")[0])
    assert load_catalog(path).provenance.doubts == () == load_catalog(name).provenance.doubts


def test_many_doubts_are_counted(tmp_path: Path) -> None:
    types = [{"instance_type": f"x{i}", "vcpus": 4, "spot_usd_per_hour": 0.0001} for i in range(30)]
    path = tmp_path / "many.json"
    path.write_text(json.dumps({"schema_version": "deepvm.catalog/1", "instances": types}))
    doubts = load_catalog(path).provenance.doubts
    assert len(doubts) == 5 and doubts[-1] == f"{path}: 26 more prices like these"


def test_the_first_zone_has_the_type_s_price_and_is_not_doubted_again(tmp_path: Path) -> None:
    zones = [{"zone": "a", "usd_per_hour": 0.000001}, {"zone": "b", "usd_per_hour": 0.000002}]
    path = written(tmp_path, ".json", spot_usd_per_hour=0.000001, spot_zones=zones)
    doubts = load_catalog(path).provenance.doubts
    assert [d.split(": ")[1].rpartition(".g4dn")[2] for d in doubts] == [
        "instances[1].spot_usd_per_hour",
        "instances[1].spot_zones[1].usd_per_hour",
    ]


@pytest.mark.parametrize("name", ["g4dn.xlarge", "g5.xlarge"])
def test_of_two_prices_that_disagree_the_one_that_is_like_its_peers_stays(name: str) -> None:
    """The on-demand price is within the bounds of its peers, but a tenth of what the market asks on
    spot.
    """
    spot = {name: {"use1-az1": ["0.21", ""], "use1-az2": ["0.19", ""], "use1-az3": ["9000", ""]}}
    catalog = joined(signals(spot=spot, on_demand=ON_DEMAND | {name: "0.018"}))
    assert catalog[name].on_demand_usd_per_hour is None
    assert [z.usd_per_hour for z in catalog[name].spot_zones] == [Decimal("0.19"), Decimal("0.21")]
    assert refused(catalog, "on-demand") == 1 and refused(catalog, "spot") == 1
    assert (
        f"{name} on demand at $0.0180/h is below 1/10 of its spot price, $0.2100/h"
        in catalog.provenance.notes[0]
    )
