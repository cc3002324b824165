"""What changed between two catalogs: judged by an oracle that knows only what is reported."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields, replace
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.builders import catalog, cpu_type, gpu_type, paper, simulated

from deepvm.catalog.diff import CatalogDiff, FigureChange, PriceChange, diff_catalogs
from deepvm.core.cluster.instances import (
    Catalog,
    Gpu,
    InstanceType,
    Market,
    Quota,
    Reservation,
    ZonePrice,
)
from deepvm.core.cluster.memory_nodes import REAL_NODES, SaturationTable
from deepvm.core.cluster.provenance import Provenance
from deepvm.core.cluster.speedup import HybridSpeedup, MeasuredSpeedup, RingSpeedup
from deepvm.core.lifetimes import KnownLifetime
from deepvm.documents.build import document_of
from deepvm.reports import documents
from deepvm.reports.prices.types import csv_rows
from deepvm.reports.text import print_text

PRICES = st.decimals("0.000001", "100000", places=6, allow_nan=False)
ZONES = st.dictionaries(st.sampled_from(["use1-az1", "use1-az2", "use1-az4"]), PRICES, max_size=3)


@st.composite
def instances(draw: st.DrawFn, name: str) -> InstanceType:
    spot, on_demand = draw(st.none() | PRICES), draw(PRICES)
    zones = tuple(ZonePrice(z, p) for z, p in sorted(draw(ZONES).items(), key=lambda row: row[1]))
    spot = zones[0].usd_per_hour if zones else spot
    vcpus, gibs = draw(st.integers(1, 8)), draw(st.none() | st.floats(1, 4))
    build = draw(st.sampled_from([gpu_type, cpu_type]))
    return build(
        name,
        spot_usd_per_hour=spot,
        on_demand_usd_per_hour=on_demand,
        spot_zones=zones,
        vcpus=vcpus,
        memory_gib=gibs,
    )


@st.composite
def catalogs(draw: st.DrawFn) -> Catalog:
    names = draw(
        st.lists(
            st.sampled_from(["a", "b", "A", "a ".strip() + ".x", "c"]), min_size=1, unique=True
        )
    )
    quotas = tuple(
        Quota("P", m, n)
        for m, n in draw(st.dictionaries(st.sampled_from(Market), st.integers(0, 9))).items()
    )
    return catalog(
        *(draw(instances(n)) for n in names),
        quotas=quotas,
        region=draw(st.sampled_from(["", "us-east-1"])),
    )


Prices = dict[tuple[str, str, str], Decimal]


def prices(of: Catalog) -> Prices:
    found = {}
    for i in of:
        for market in Market:
            price = i.usd_per_hour(market)
            if price is not None:
                found[i.name, market.value, ""] = price
        found.update({(i.name, "spot", z.zone): z.usd_per_hour for z in i.spot_zones})
    return found


@given(catalogs(), catalogs())
def test_the_reported_changes_lead_from_old_to_new(old: Catalog, new: Catalog) -> None:
    diff = diff_catalogs(old, new)
    told: Prices = prices(old)
    for instance in diff.removed:
        told = {key: price for key, price in told.items() if key[0] != instance.name}
    for change in diff.prices:
        key = (change.instance_type, change.market.value, change.zone)
        assert told.get(key) == change.old  # nothing is said about a price that was another
        assert change.old != change.new
        told.pop(key, None)
        if change.new is not None:
            told[key] = change.new
    for instance in diff.added:
        told.update(prices(catalog(instance)))
    assert told == prices(new)
    assert {i.name for i in old} - {i.name for i in diff.removed} | {
        i.name for i in diff.added
    } == {i.name for i in new}


@given(catalogs(), catalogs())
def test_the_document_leads_there_too(old: Catalog, new: Catalog) -> None:
    """The same through JSON: floats carry the exact prices."""
    document = json.loads(
        documents.to_json(document_of("prices.CatalogDiff", diff_catalogs(old, new)))
    )
    told = {
        k: v
        for k, v in prices(old).items()
        if k[0] not in {i["instance_type"] for i in document["removed"]}
    }
    for change in document["prices"]:
        key = (change["instance_type"], change["market"], change["zone"] or "")
        told.pop(key, None)
        if change["new_usd_per_hour"] is not None:
            told[key] = Decimal(str(change["new_usd_per_hour"])).quantize(Decimal("0.000001"))
    added = {i["instance_type"] for i in document["added"]}
    assert told == {k: v for k, v in prices(new).items() if k[0] not in added}
    assert document["schema_version"] == "deepvm.diff/1" and document["changed"] == bool(
        document["added"] or document["removed"] or document["prices"] or document["figures"]
    )


@given(catalogs())
def test_nothing_differs_from_itself(one: Catalog) -> None:
    assert diff_catalogs(one, one).empty
    renamed = replace(one, name="other", provenance=replace(one.provenance, kind="live"))
    assert diff_catalogs(one, renamed).empty


@given(catalogs(), catalogs())
def test_backwards_it_is_the_opposite(old: Catalog, new: Catalog) -> None:
    there, back = diff_catalogs(old, new), diff_catalogs(new, old)
    assert there.added == back.removed and there.removed == back.added
    assert set(there.prices) == {replace(p, old=p.new, new=p.old) for p in back.prices}
    assert set(there.figures) == {replace(f, old=f.new, new=f.old) for f in back.figures}


@given(catalogs(), catalogs())
def test_the_largest_change_comes_first(old: Catalog, new: Catalog) -> None:
    changes = diff_catalogs(old, new).prices
    sized = [abs(c.percent) for c in changes if c.percent is not None]
    assert sized == sorted(sized, reverse=True)
    known = [c.percent is None for c in changes]
    assert known == sorted(known, reverse=True)


def only(old: Catalog, new: Catalog) -> CatalogDiff:
    return diff_catalogs(old, new)


def report(diff: CatalogDiff, old: str = "", new: str = "") -> None:
    print_text("catalog_diff", diff=diff, old=old, new=new)


def test_a_price_in_dollars_and_percent() -> None:
    old, new = catalog(gpu_type()), catalog(gpu_type(spot_usd_per_hour="0.33"))
    (change,) = only(old, new).prices
    assert change == PriceChange("gpu.xlarge", Market.SPOT, Decimal("0.3"), Decimal("0.33"))
    assert (change.difference, change.percent) == (Decimal("0.03"), Decimal(10))


def test_money_is_exact() -> None:
    """0.1 + 0.2 in binary is not 0.3; the difference of these prices is exactly a tenth."""
    old, new = (
        catalog(cpu_type(spot_usd_per_hour="0.2")),
        catalog(cpu_type(spot_usd_per_hour="0.3")),
    )
    (change,) = only(old, new).prices
    assert (
        change.difference == Decimal("0.1")
        and document_of("prices.CatalogDiff", only(old, new))["prices"][0]["change_usd_per_hour"]
        == 0.1
    )


def test_a_market_that_opens_or_closes() -> None:
    old, new = catalog(cpu_type(spot_usd_per_hour=None)), catalog(cpu_type())
    (change,) = only(old, new).prices
    assert (change.old, change.new, change.difference, change.percent) == (
        None,
        Decimal("0.1"),
        None,
        None,
    )
    assert only(new, old).prices[0].new is None


def test_names_are_compared_exactly() -> None:
    diff = only(catalog(cpu_type("c5.xlarge")), catalog(cpu_type("C5.xlarge")))
    assert [i.name for i in diff.added] == ["C5.xlarge"] and [i.name for i in diff.removed] == [
        "c5.xlarge"
    ]


_OTHER: dict[str, Any] = {
    "vcpus": 5,
    "memory_gib": 17.0,
    "network_gbps": 26.0,
    "eflops": 101.0,
    "quota_family": "P",
    "note": "odd",
    "network_baseline_gbps": 5.0,
    "eflops_basis": "estimated",
    "speedup_basis": "T4's",
    "cpu_architecture": "arm64",
    "burstable": True,
    "current_generation": False,
    "interruption_band": 3,
    "zones": ("use1-az1",),
    "unusable": "a share of a GPU",
    "eflops_source": "measured here",
    "default_speedup": "measured",
    "known_life": KnownLifetime(1.0, 2.0, 3.0, 4, 5, 6.0),
    "reserved": Reservation("block", "gpu.xlarge", 2, "capacity-block"),
    "discount": Decimal("0.28"),
}


def test_every_figure_of_a_type_is_compared() -> None:
    """Also one that is added later: then this test asks for another value of it."""
    for name in [
        f.name
        for f in fields(InstanceType)
        if f.name
        not in (
            "name",
            "gpu",
            "speedups",
            "on_demand_usd_per_hour",
            "spot_usd_per_hour",
            "spot_zones",
        )
    ]:
        diff = only(catalog(gpu_type()), catalog(gpu_type(**{name: _OTHER[name]})))
        (change,) = diff.figures
        assert (change.instance_type, change.figure) == (
            "gpu.xlarge",
            name,
        ) and change.old != change.new


def figures(old: Catalog, new: Catalog) -> list[FigureChange]:
    return list(only(old, new).figures)


def test_gpus() -> None:
    assert figures(catalog(gpu_type()), catalog(gpu_type(gpu=Gpu("T4", 2, 16.0)))) == [
        FigureChange("gpu.xlarge", "gpu.count", 1, 2),
        FigureChange("gpu.xlarge", "gpu.memory_gib", None, 16.0),
    ]
    assert figures(catalog(gpu_type()), catalog(gpu_type(gpu=None))) == [
        FigureChange("gpu.xlarge", "gpu", "1 x T4", None)
    ]


def test_curves() -> None:
    ring = RingSpeedup(0.1, 0.01)
    measured = MeasuredSpeedup(((1.0, 1.0), (2.0, 1.9)), ring, workload="bert")
    old = catalog(gpu_type(speedups=(HybridSpeedup(0.1, 10.0, 5.0), ring)))
    new = catalog(gpu_type(speedups=(HybridSpeedup(0.1, 10.0, 5.5), measured)))
    found = figures(old, new)
    assert [f.figure for f in found] == [
        "speedup hybrid",
        "speedup ring",
        "speedup measured of bert",
    ]
    assert (found[0].old, found[0].new) == (
        "S(2) 1.5, S(4) 1.75, S(8) 2.25, S(16) 3.228, S(32) 4.501, a 0.1, b 10, c 5",
        "S(2) 1.65, S(4) 1.925, S(8) 2.475, S(16) 3.551, S(32) 4.951, a 0.1, b 10, c 5.5",
    )
    assert found[1].new is None and found[2].old is None
    reordered = catalog(gpu_type(speedups=tuple(reversed(old.instances[0].speedups))))
    assert figures(old, reordered) == []


def test_figures_of_the_catalog() -> None:
    old = catalog(gpu_type(), quotas=(Quota("P", Market.SPOT, 8),), region="us-east-1")
    new = catalog(
        gpu_type(),
        quotas=(Quota("P", Market.SPOT, 9, in_use=4), Quota("P", Market.ON_DEMAND, 0)),
        region="us-east-2",
        n_sat=SaturationTable((0.3, 1.7), (3, 13)),
        provenance=Provenance("file", date(2026, 8, 10), "somebody", basis="p95"),
        memory_nodes=REAL_NODES,
    )
    found = {f.figure: (f.old, f.new) for f in figures(old, new)}
    assert found["region"] == ("us-east-1", "us-east-2")
    assert found["prices_as_of"] == (None, "2026-08-10") and found["source"] == ("", "somebody")
    assert found["basis"] == ("", "p95")
    assert found["memory_nodes"] == ("paper", "real")
    assert found["n_sat at 1.7 Gbit/s"] == (12, 13) and found["n_sat at 25 Gbit/s"] == (28, None)
    assert "n_sat at 0.3 Gbit/s" not in found
    assert found["quota P spot (vCPUs)"] == (8, 9) and found["quota P spot (vCPUs in use)"] == (
        None,
        4,
    )
    assert found["quota P on-demand (vCPUs)"] == (None, 0)


def test_since_when_and_under_which_name_says_nothing_about_a_price() -> None:
    old = catalog(
        gpu_type(
            spot_zones=(
                ZonePrice("use1-az1", Decimal("0.3"), "us-east-1a", "2026-08-10T00:00:00Z"),
            )
        )
    )
    new = catalog(
        gpu_type(
            spot_zones=(
                ZonePrice("use1-az1", Decimal("0.3"), "us-east-1f", "2026-08-11T00:00:00Z"),
            )
        )
    )
    assert only(old, new).empty


def test_csv_has_every_change() -> None:
    diff = only(
        paper(), replace(simulated(), instances=(*simulated().instances, gpu_type("g4dn.xlarge")))
    )
    rows = list(csv.DictReader(io.StringIO(documents.to_csv(*csv_rows(diff)))))
    told = [r["change"] for r in rows]
    assert (
        told.count("price") == len(diff.prices) == 2
        and told.count("figure") == len(diff.figures) > 0
    )
    assert told.count("added") == 2 * len(diff.added) and told.count("removed") == 2 * len(
        diff.removed
    )
    spot = next(r for r in rows if r["change"] == "price" and r["market"] == "spot")
    assert (spot["old"], spot["new"], spot["difference"]) == ("0.1578", "0.3", "0.1422")
    assert float(spot["percent"]) == pytest.approx(90.1141)


def test_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    old = catalog(gpu_type(), cpu_type(), region="us-east-1")
    new = catalog(
        gpu_type(spot_usd_per_hour="0.36", on_demand_usd_per_hour="0.9", note="x" * 100),
        cpu_type("new.xlarge", spot_usd_per_hour=None),
        region="us-east-1",
    )
    report(only(old, new))
    out = capsys.readouterr().out
    assert out.splitlines()[0] == (
        "From test (us-east-1, undated, 2 types) to test (us-east-1, undated, 2 types)."
    )
    assert "Added: 1 type\n" in out and "new.xlarge  -              0.2         -\n" in out
    assert "Removed: 1 type\n" in out and "cpu.xlarge" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "gpu.xlarge spot 0.3 0.36 +0.06 +20.00" in lines
    assert "gpu.xlarge on-demand 1 0.9 -0.1 -10.00" in lines
    assert lines.index("gpu.xlarge spot 0.3 0.36 +0.06 +20.00") < lines.index(
        "gpu.xlarge on-demand 1 0.9 -0.1 -10.00"
    )
    assert (
        "Figures: 1 change" in out
        and "\ngpu.xlarge, note\n  old: -\n  new: " + "x" * 100 + "\n" in out
    )
    report(only(old, replace(new, region="eu-west-1")))
    assert "The regions differ" in capsys.readouterr().out
    report(only(old, old))
    assert "No difference" in capsys.readouterr().out
    report(only(old, new), "monday.json", "test")
    assert capsys.readouterr().out.startswith(
        "From monday.json: test (us-east-1, undated, 2 types) to test (us-east-1"
    )


def test_the_report_shows_zones_when_they_changed(capsys: pytest.CaptureFixture[str]) -> None:
    old = catalog(gpu_type(spot_zones=(ZonePrice("use1-az4", Decimal("0.3")),)))
    new = catalog(
        gpu_type(spot_usd_per_hour="0.31", spot_zones=(ZonePrice("use1-az4", Decimal("0.31")),))
    )
    report(only(old, new))
    out = capsys.readouterr().out
    assert "zone" in out and "use1-az4" in out
