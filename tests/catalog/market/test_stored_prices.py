"""Past prices from a clone of a public catalog: repositories that the tests make themselves."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from support.stored_catalog import HEADER, NOW, Clone, row

from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets
from deepvm.catalog.market.stored_prices import SOURCE, read_stored_prices
from deepvm.errors import DataError, MissingDataError


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "skypilot-catalog")


def test_versions_become_a_history(clone: Clone) -> None:
    clone.store(40, row("g4dn.xlarge", "0.15"))
    clone.store(10, row("g4dn.xlarge", "0.16"), row("g4dn.xlarge", "0.21", "use1-az2"), row("p3.2xlarge", ""))
    clone.store(5, row("g4dn.xlarge", "0.16"), row("g4dn.xlarge", "9", "usw2-az1", "us-west-2"))
    clone.store(1, row("g4dn.xlarge", "0.1234567"), row("g4dn.xlarge", "0.25", "use1-az2"))
    found = read_stored_prices(clone.folder, "aws", "us-east-1", 30, NOW)

    def at(days: float) -> int:
        return int((NOW - timedelta(days=days)).timestamp())

    assert found.signal.data == {
        "g4dn.xlarge": {
            "use1-az1": [[at(40), "0.15"], [at(10), "0.16"], [at(1), "0.123457"]],
            "use1-az2": [[at(10), "0.21"], [at(1), "0.25"]],
        }
    }
    assert (found.signal.kind, found.signal.source) == ("history:30", SOURCE)
    assert found.versions == 3
    assert found.sold == {"g4dn.xlarge": {"use1-az1": 3, "use1-az2": 2}}
    assert (found.first, found.last) == (NOW - timedelta(days=10), NOW - timedelta(days=1))
    west = read_stored_prices(clone.folder, "aws", "us-west-2", 30, NOW)
    assert west.sold == {"g4dn.xlarge": {"usw2-az1": 1}}


def test_rows_that_cannot_be_are_left_out_and_counted(clone: Clone) -> None:
    bad = [row("a", "0"), row("b", "-1"), row("c", "nan"), row("d", "cheap"), row("e", "Infinity")]
    doubled = [row("f", "0.5"), row("f", "0.6")]
    clone.store(2, row("g4dn.xlarge", "0.16"), *bad, *doubled, "broken,us-east-1,")
    clone.store(1, text="<html>us-east-1</html>\n")
    found = read_stored_prices(clone.folder, "aws", "us-east-1", 30, NOW)
    assert set(found.signal.data) == {"g4dn.xlarge", "f"}
    assert found.signal.data["f"]["use1-az1"][0][1] == "0.5"
    wanted = {"price not above 0": 5, "doubled row": 1, "broken row": 1, "unreadable version": 1}
    assert found.signal.refused == wanted
    assert found.versions == 1


def test_the_newest_schema_counts_and_other_clouds_do_not(clone: Clone) -> None:
    for path, price in (("v5/aws", "0.1"), ("v8/aws", "0.2"), ("v8/gcp", "0.3")):
        file = clone.folder / "catalogs" / path / "vms.csv"
        file.parent.mkdir(parents=True)
        file.write_text(f"{HEADER}\n{row('g4dn.xlarge', price)}\n")
    clone.store(1, row("g4dn.xlarge", "0.2"))
    (points,) = read_stored_prices(clone.folder, "aws", "us-east-1", 30, NOW).signal.data["g4dn.xlarge"].values()
    assert [price for _, price in points] == ["0.2"]


def test_what_is_no_clone_or_too_old(clone: Clone, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        read_stored_prices(tmp_path / "none", "aws", "us-east-1", 30, NOW)
    (tmp_path / "plain").mkdir()
    with pytest.raises(DataError, match="not a git repository"):
        read_stored_prices(tmp_path / "plain", "aws", "us-east-1", 30, NOW)
    clone.store(100, row("g4dn.xlarge", "0.15"))
    with pytest.raises(MissingDataError, match=r"last 30 days: the newest is of 2026-08-12; 'git pull'"):
        read_stored_prices(clone.folder, "aws", "us-east-1", 30, NOW)
    with pytest.raises(MissingDataError, match=r"has no catalogs/v\*/gcp/vms.csv"):
        read_stored_prices(clone.folder, "gcp", "us-east1", 30, NOW)
    clone.store(1, row("g4dn.xlarge", "0.16"))
    with pytest.raises(MissingDataError, match="have no spot prices of eu-west-1"):
        read_stored_prices(clone.folder, "aws", "eu-west-1", 30, NOW)


def test_no_version_that_can_be_read(clone: Clone) -> None:
    clone.store(0.5, text="<html></html>\n")
    with pytest.raises(DataError, match="none of 1 versions"):
        read_stored_prices(clone.folder, "aws", "us-east-1", 1, NOW)


def test_a_partial_clone_fetches_nothing(clone: Clone, tmp_path: Path) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    clone.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    clone.git("clone", "--quiet", "--no-checkout", "--filter=blob:none", f"file://{clone.folder}", str(partial))
    with pytest.raises(DataError):
        read_stored_prices(partial, "aws", "us-east-1", 30, NOW)


def test_another_repository_in_the_environment_is_not_read(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert read_stored_prices(clone.folder, "aws", "us-east-1", 30, NOW).versions == 1


def test_a_price_basis_over_it_without_an_account(clone: Clone) -> None:
    for days, price in ((9, "0.20"), (6, "0.30"), (3, "0.22")):
        clone.store(days, row("g4dn.xlarge", price), row("g4dn.xlarge", "0.25", "use1-az2"))
    for basis, cheapest in (("p50", "0.22"), ("max", "0.25")):
        request = MarketRequest(
            prices="snapshot", price_basis=basis, days=30, price_history=os.fspath(clone.folder), offline=True
        )
        (catalog,) = open_markets(["us-east-1"], request, now=NOW)
        kind = catalog.by_name["g4dn.xlarge"]
        assert kind.spot_usd_per_hour == Decimal(cheapest)
        assert catalog.provenance.basis == f"{basis} of 30 days"
        assert SOURCE in catalog.provenance.source
    assert {z.zone for z in kind.spot_zones} == {"use1-az1", "use1-az2"}
    (one,) = open_markets(["us-east-1"], replace(request, zone="use1-az2"), now=NOW)
    assert [z.zone for z in one.by_name["g4dn.xlarge"].spot_zones] == ["use1-az2"]
