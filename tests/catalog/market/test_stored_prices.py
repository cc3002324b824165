"""Past prices from a clone of a public catalog: repositories that the tests make themselves."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from support.stored_catalog import HEADER, NOW, Clone, row

from deepvm.catalog.market import stored_prices
from deepvm.catalog.market.build_catalog import MarketRequest
from deepvm.catalog.market.open_markets import open_markets
from deepvm.catalog.market.stored_prices import UNREADABLE, StoredPrices, read_stored_prices
from deepvm.catalog.public.offers import CONFLICT, FAR_SPOT
from deepvm.errors import DataError, MissingDataError


def stored(folder: Path, region: str, days: int = 30, cloud: str = "aws") -> StoredPrices:
    """Of one region."""
    found = read_stored_prices(str(folder), cloud, [region], days, NOW)[region]
    found.check()
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path / "skypilot-catalog")


def test_versions_become_a_history(clone: Clone) -> None:
    clone.store(40, row("g4dn.xlarge", "0.15"))
    clone.store(
        10,
        row("g4dn.xlarge", "0.16"),
        row("g4dn.xlarge", "0.21", "use1-az2"),
        row("p3.2xlarge", ""),
    )
    clone.store(5, row("g4dn.xlarge", "0.16"), row("g4dn.xlarge", "0.9", "usw2-az1", "us-west-2"))
    clone.store(1, row("g4dn.xlarge", "0.1234567"), row("g4dn.xlarge", "0.25", "use1-az2"))
    found = stored(clone.folder, "us-east-1")

    def at(days: float) -> int:
        return int((NOW - timedelta(days=days)).timestamp())

    one = [(at(40), "0.15"), (at(10), "0.16"), (at(1), "0.123457")]
    two = [(at(10), "0.21"), (at(1), "0.25")]
    pools = {("g4dn.xlarge", "use1-az1"): one, ("g4dn.xlarge", "use1-az2"): two}
    assert found.changes == pools
    assert found.history.data == {"g4dn.xlarge": {"use1-az1": one, "use1-az2": two}}
    assert (found.history.kind, found.history.source) == ("history:30", StoredPrices.source)
    assert found.versions == 3
    assert found.sold == dict(zip(pools, (3, 2), strict=True))
    assert (found.first, found.last) == (NOW - timedelta(days=10), NOW - timedelta(days=1))
    west = stored(clone.folder, "us-west-2")
    assert west.sold == {("g4dn.xlarge", "usw2-az1"): 1}


def test_rows_that_cannot_be_are_left_out_and_counted(clone: Clone) -> None:
    bad = [row("a", "0"), row("b", "-1"), row("c", "nan"), row("d", "cheap"), row("e", "90")]
    doubled = [row("f", "0.5"), row("f", "0.6")]
    good = [row(f"t{n}.large", "0.1") for n in range(80)]
    clone.store(3, row("g4dn.xlarge", "0.16"), *good, *bad, *doubled, "broken,us-east-1,")
    clone.store(2, *bad, *doubled, *good[:5])  # too much is broken to trust the others
    clone.store(1, text="<html>us-east-1</html>\n")
    clone.store(0.5, text=f"{HEADER}\n{row('g4dn.xlarge', '0.1')}")  # breaks off
    found = stored(clone.folder, "us-east-1")
    assert {name for name, _ in found.changes} == {
        "g4dn.xlarge",
        *(f"t{n}.large" for n in range(80)),
    }
    assert found.history.refused == {FAR_SPOT: 1, CONFLICT: 2, "broken row": 1, UNREADABLE: 3}
    assert found.versions == 1


def test_the_newest_schema_counts_and_other_clouds_do_not(clone: Clone) -> None:
    for path, price in (("v5/aws", "0.1"), ("v8/aws", "0.2"), ("v8/gcp", "0.3")):
        file = clone.folder / "catalogs" / path / "vms.csv"
        file.parent.mkdir(parents=True)
        file.write_text(f"{HEADER}\n{row('g4dn.xlarge', price)}\n")
    clone.store(1, row("g4dn.xlarge", "0.2"))
    (points,) = stored(clone.folder, "us-east-1").changes.values()
    assert [price for _, price in points] == ["0.2"]


def test_what_is_no_clone_or_too_old(clone: Clone, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        stored(tmp_path / "none", "us-east-1")
    (tmp_path / "plain").mkdir()
    with pytest.raises(
        DataError, match="not a git repository.*git clone https://github.com/skypilot-org"
    ):
        stored(tmp_path / "plain", "us-east-1")
    clone.store(100, row("g4dn.xlarge", "0.15"))
    with pytest.raises(
        MissingDataError, match=r"last 30 days: the newest is of 2026-08-12; 'git pull'"
    ):
        stored(clone.folder, "us-east-1")
    with pytest.raises(MissingDataError, match=r"has no catalogs/v\*/gcp/vms.csv"):
        stored(clone.folder, "us-east1", cloud="gcp")
    clone.store(1, row("g4dn.xlarge", "0.16"))
    with pytest.raises(MissingDataError, match="have no spot prices of eu-west-1"):
        stored(clone.folder, "eu-west-1")


def test_no_version_that_can_be_read(clone: Clone) -> None:
    clone.store(0.5, text="<html></html>\n")
    with pytest.raises(DataError, match="none of 1 versions"):
        stored(clone.folder, "us-east-1", 1)


def test_a_partial_clone_fetches_nothing(clone: Clone, tmp_path: Path) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    clone.git("config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    clone.git(
        "clone",
        "--quiet",
        "--no-checkout",
        "--filter=blob:none",
        f"file://{clone.folder}",
        str(partial),
    )
    with pytest.raises(DataError):
        stored(partial, "us-east-1")


def test_another_repository_in_the_environment_is_not_read(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert stored(clone.folder, "us-east-1").versions == 1


def test_a_price_basis_over_it_without_an_account(clone: Clone) -> None:
    for days, price in ((9, "0.20"), (6, "0.30"), (3, "0.22")):
        clone.store(days, row("g4dn.xlarge", price), row("g4dn.xlarge", "0.25", "use1-az2"))
    for basis, cheapest in (("p50", "0.22"), ("max", "0.25")):
        request = MarketRequest(
            prices="snapshot",
            price_basis=basis,
            days=30,
            price_history=os.fspath(clone.folder),
            offline=True,
        )
        (catalog,) = open_markets(["us-east-1"], request, now=NOW)
        kind = catalog.by_name["g4dn.xlarge"]
        assert kind.spot_usd_per_hour == Decimal(cheapest)
        assert catalog.provenance.basis == f"{basis} of 30 days"
        assert StoredPrices.source in catalog.provenance.source
    assert {z.zone for z in kind.spot_zones} == {"use1-az1", "use1-az2"}
    (one,) = open_markets(["us-east-1"], replace(request, zone="use1-az2"), now=NOW)
    assert [z.zone for z in one.by_name["g4dn.xlarge"].spot_zones] == ["use1-az2"]


def test_a_promisor_remote_that_is_a_program_is_not_asked(clone: Clone, tmp_path: Path) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    name = clone.git("rev-parse", "HEAD:catalogs/v8/aws/vms.csv").strip()
    (clone.folder / ".git" / "objects" / name[:2] / name[2:]).unlink()
    ran = tmp_path / "ran"
    settings = {
        "remote.evil.url": f"ext::touch {ran}",
        "remote.evil.promisor": "true",
        "remote.evil.uploadpack": f"touch {ran}",
        "extensions.partialClone": "evil",
        "core.repositoryformatversion": "1",
        "protocol.allow": "always",
    }
    for key, value in settings.items():
        clone.git("config", key, value)
    with pytest.raises(DataError):
        stored(clone.folder, "us-east-1")
    assert not ran.exists()


def test_links_and_submodules_hold_no_prices(clone: Clone) -> None:
    clone.store(5, row("g4dn.xlarge", "0.15"))
    file = clone.folder / "catalogs" / "v8" / "aws" / "vms.csv"
    file.unlink()
    file.symlink_to("/etc/passwd")
    clone.git("add", ".")
    clone.git("commit", "--quiet", "-m", "link", at=NOW - timedelta(days=4))
    head = clone.git("rev-parse", "HEAD").strip()
    clone.git("update-index", "--cacheinfo", f"160000,{head},catalogs/v8/aws/vms.csv")
    clone.git("commit", "--quiet", "-m", "submodule", at=NOW - timedelta(days=3))
    file.unlink()
    clone.store(1, row("g4dn.xlarge", "0.16"))
    found = stored(clone.folder, "us-east-1")
    assert [price for _, price in found.changes["g4dn.xlarge", "use1-az1"]] == ["0.15", "0.16"]


def test_a_shallow_clone_says_how_far_back_it_goes(clone: Clone, tmp_path: Path) -> None:
    for days in (20, 10, 2):
        clone.store(days, row("g4dn.xlarge", f"0.{days}"))
    shallow = tmp_path / "shallow"
    clone.git("clone", "--quiet", "--depth", "1", f"file://{clone.folder}", str(shallow))
    found = stored(shallow, "us-east-1")
    assert found.versions == 1
    assert "the last 2.0 days, not 30" in found.notes[0]
    assert "git fetch --unshallow" in found.notes[0]
    assert "is of 2026-11-18" in found.notes[1]
    clone.store(0.1, row("g4dn.xlarge", "0.21"))
    assert stored(clone.folder, "us-east-1", 15).notes == []


def test_a_schema_that_was_replaced_no_longer_counts(clone: Clone) -> None:
    clone.store(9, row("g4dn.xlarge", "0.1"), path="catalogs/v5/aws/vms.csv")
    clone.store(8, row("g4dn.xlarge", "0.2"), path="catalogs/v6/aws/vms.csv")
    clone.store(5, row("g4dn.xlarge", "0.3"), path="catalogs/v8/aws/vms.csv")
    clone.store(4, row("g4dn.xlarge", "0.11"), path="catalogs/v5/aws/vms.csv")
    clone.store(3, row("g4dn.xlarge", "0.21"), path="catalogs/v6/aws/vms.csv")
    clone.git("mv", "catalogs/v8", "catalogs/v10")
    clone.git("commit", "--quiet", "-m", "moved", at=NOW - timedelta(days=2))
    clone.store(1, row("g4dn.xlarge", "0.4"), path="catalogs/v10/aws/vms.csv")
    found = stored(clone.folder, "us-east-1")
    assert [price for _, price in found.changes["g4dn.xlarge", "use1-az1"]] == [
        "0.1",
        "0.2",
        "0.3",
        "0.4",
    ]
    assert found.versions == 5


def test_hosts_of_google_cost_what_their_gpus_cost_too(clone: Clone) -> None:
    head = (
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,"
        "Region,AvailabilityZone"
    )
    host = "a2-highgpu-1g,,0,12,85,,0.73948,0.36975,us-central1,us-central1-a"
    gpu = ",A100,1,,,,2.9339,1.46,us-central1,us-central1-a"
    clone.store(1, text=f"{head}\n{host}\n{gpu}\n", path="catalogs/v8/gcp/vms.csv")
    found = stored(clone.folder, "us-central1", cloud="gcp")
    ((_, price),) = found.changes["a2-highgpu-1g", "us-central1-a"]
    assert Decimal(str(price)) == Decimal("0.36975") + Decimal("1.46")


def test_when_it_was_not_sold(clone: Clone) -> None:
    for days, spot in ((9, "0.2"), (6, ""), (4, ""), (3, "0.2"), (1, "0.2")):
        clone.store(
            days,
            row("g4dn.xlarge", spot),
            row("g4dn.xlarge", "0.3", "use1-az2"),
            row("t3.nano", str(days)),
        )
    found = stored(clone.folder, "us-east-1")

    def at(days: float) -> int:
        return int((NOW - timedelta(days=days)).timestamp())

    assert found.changes["g4dn.xlarge", "use1-az1"] == [(at(9), "0.2"), (at(3), "0.2")]
    assert found.gone == {("g4dn.xlarge", "use1-az1"): [at(6)]}
    assert found.history.data["g4dn.xlarge"].keys() == {"use1-az1", "use1-az2"}
    clone.store(0.5, row("g4dn.xlarge", ""), row("g4dn.xlarge", "0.31", "use1-az2"))
    request = MarketRequest(
        prices="snapshot", price_basis="p50", price_history=os.fspath(clone.folder), offline=True
    )
    (catalog,) = open_markets(["us-east-1"], request, now=NOW)
    assert [z.zone for z in catalog.by_name["g4dn.xlarge"].spot_zones] == ["use1-az2"]
    assert any("of the last 9.0 days, not 30" in text for text in catalog.provenance.notes)


def test_a_folder_within_a_bare_or_an_empty_clone(clone: Clone, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not have any commits"):
        stored(clone.folder, "us-east-1")
    clone.store(1, row("g4dn.xlarge", "0.15"))
    bare = tmp_path / "bare.git"
    clone.git("clone", "--quiet", "--bare", str(clone.folder), str(bare))
    for folder in (bare, clone.folder / "catalogs"):
        assert stored(folder, "us-east-1").versions == 1


def test_a_clone_that_git_cannot_read_in_time(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    monkeypatch.setattr(stored_prices, "_GIT_TIMEOUT_S", 0.0)
    with pytest.raises(DataError, match="has not read it within"):
        stored(clone.folder, "us-east-1")


def test_damaged_objects(clone: Clone) -> None:
    clone.store(1, row("g4dn.xlarge", "0.15"))
    name = clone.git("rev-parse", "HEAD:catalogs/v8/aws/vms.csv").strip()
    file = clone.folder / ".git" / "objects" / name[:2] / name[2:]
    file.chmod(0o644)
    file.write_bytes(b"damaged")
    with pytest.raises(DataError):
        stored(clone.folder, "us-east-1")


def test_several_regions_are_read_from_each_version_once(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    west = {"zone": "usw2-az1", "region": "us-west-2"}
    for days, price in ((5, "0.2"), (1, "0.21")):
        clone.store(
            days, row("g4dn.xlarge", price), row("g4dn.xlarge", "0.3", **west), "far,from,all"
        )
    regions = ["us-east-1", "us-west-2", "eu-west-1"]
    alone = {region: stored(clone.folder, region) for region in regions[:2]}
    asked = list[tuple[str, ...]]()
    git = stored_prices._git
    monkeypatch.setattr(
        stored_prices, "_git", lambda folder, *words: asked.append(words) or git(folder, *words)
    )
    found = read_stored_prices(str(clone.folder), "aws", regions, 30, NOW)
    assert len([words for words in asked if words[0] == "cat-file"]) == 2
    none = found.pop("eu-west-1")
    with pytest.raises(MissingDataError, match="2 versions of aws/vms.csv have no spot prices"):
        none.check()
    assert found == alone


def test_a_region_whose_name_begins_that_of_another(clone: Clone) -> None:
    rows = [row("n1", "0.1", f"{region}-a", region) for region in ("europe-west1", "europe-west12")]
    clone.store(1, *rows, path="catalogs/v8/gcp/vms.csv")
    for region in ("europe-west1", "europe-west12"):
        assert stored(clone.folder, region, cloud="gcp").sold == {("n1", f"{region}-a"): 1}
