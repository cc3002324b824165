"""The snapshot that comes with deepvm: dated, complete, and equal to the table it was made from."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from support.places import ROOT

from deepvm.catalog.clouds import DEFAULT_CLOUD
from deepvm.catalog.store import load_catalog
from deepvm.core.cluster.instances import Catalog, InstanceType
from deepvm.errors import MissingDataError, RequestError
from deepvm.io.user_dirs import data_folder
from deepvm.services.keywords import recommend

SHARED = ROOT.parent / "shared" / "data" / "aws" / "curated_us-east-1.csv"
needs_table = pytest.mark.skipif(not SHARED.exists(), reason="the shared table is not here")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog("aws-us-east-1", prices="snapshot")


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Opening a socket, or asking for an address, fails."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    yield


# Read off the table by eye: vCPUs, GiB, peak and baseline Gbit/s, on-demand $/h, spot $/h, GPU, how
# many, GiB of each.
BY_HAND = {
    "g4dn.xlarge": (4, 16, 25, 5, "0.526", "0.3196", "T4", 1, 16),
    "g5.xlarge": (4, 16, 10, 2.5, "1.006", "0.5089", "A10G", 1, 22.352),
    "p5.48xlarge": (192, 2048, 3200, 3200, "55.04", "19.4933", "H100", 8, 80),
    "c6in.xlarge": (4, 8, 30, 6.25, "0.2268", None, None, 0, None),
    "r6i.2xlarge": (8, 64, 12.5, 3.125, "0.504", None, None, 0, None),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_figures_checked_by_hand(catalog: Catalog, name: str) -> None:
    assert facts(catalog[name]) == BY_HAND[name]


def facts(i: InstanceType) -> tuple[object, ...]:
    def text(price: Decimal | None) -> str | None:
        return None if price is None else f"{price:f}"

    gpu = (i.gpu.name, i.gpu.count, i.gpu.memory_gib) if i.gpu else (None, 0, None)
    prices = (text(i.on_demand_usd_per_hour), text(i.spot_usd_per_hour))
    return (i.vcpus, i.memory_gib, i.network_gbps, i.network_baseline_gbps, *prices, *gpu)


SUMMED_TWICE = {
    "g6e.24xlarge": (200, 200),
    "g6e.48xlarge": (400, 400),
    "p6-b300.48xlarge": (6400, 6400),
}
"""Types whose table has more Gbit/s than AWS's words, as it sums over cards that share them."""


@needs_table
def test_every_type_equals_the_table(catalog: Catalog) -> None:
    with SHARED.open(newline="") as stream:
        rows = {r["instance_type"]: r for r in csv.DictReader(stream)}
    assert set(rows) == {i.name for i in catalog}
    assert len(rows) == 149
    for name, row in rows.items():
        i = catalog[name]
        assert i.vcpus == int(row["vcpu"])
        assert i.memory_gib == float(row["memory_gib"])
        gbps = (float(row["network_peak_gbps"]), float(row["network_baseline_gbps"]))
        assert (i.network_gbps, i.network_baseline_gbps) == SUMMED_TWICE.get(name, gbps)
        assert i.on_demand_usd_per_hour == Decimal(row["on_demand_usd_per_hour"])
        assert i.spot_usd_per_hour == (
            Decimal(row["spot_usd_per_hour"]) if row["spot_usd_per_hour"] else None
        )
        assert i.interruption_band == (
            int(float(row["interruption_band"])) if row["interruption_band"] else None
        )
        assert (i.cpu_architecture, str(i.burstable), str(i.current_generation)) == (
            row["arch"],
            row["burstable"],
            row["current_generation"],
        )
        assert (i.gpu.name if i.gpu else "") == row["gpu_name"]
        assert (i.gpu.count if i.gpu else 0) == int(row["gpu_count"])


def test_previous_generations_are_those_that_aws_calls_so(catalog: Catalog) -> None:
    """Names do not tell (c5 and r7g are previous, c5n and m7g are not).

    Moto holds AWS's own replies for all types.

    Time only goes one way: what was current when the snapshot was made may be previous in moto's
    newer replies.
    """
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    current = {i.name for i in catalog if i.current_generation}
    aws = {name: reply["CurrentGeneration"] for name, reply in INSTANCE_TYPES.items()}
    assert len(catalog.by_name.keys() & aws.keys()) > 140
    assert [i.name for i in catalog if not i.current_generation and aws.get(i.name)] == []
    assert {"g4dn.xlarge", "c5n.large", "m7g.large", "c6i.large", "p3dn.24xlarge"} <= current
    assert (
        not {
            "g5.xlarge",
            "c5.large",
            "m5.large",
            "m6i.large",
            "r6i.large",
            "r7g.large",
            "c6gn.large",
        }
        & current
    )


@needs_table
def test_the_script_makes_the_embedded_file(tmp_path: Path) -> None:
    made = tmp_path / "made.json"
    script = ROOT / "scripts" / "build_snapshot.py"
    days = ["--on-demand-of", "2026-07-20", "--spot-of", "2026-08-10", "--output", str(made)]
    subprocess.run(
        [sys.executable, script, SHARED, *days], check=True, capture_output=True, timeout=60
    )
    assert made.read_bytes() == (data_folder() / "aws" / "regions" / "us-east-1.json").read_bytes()


def test_every_figure_has_a_date_and_a_source(catalog: Catalog) -> None:
    about = catalog.provenance
    assert about.kind == "embedded"
    assert about.prices_as_of == date(2026, 7, 20)
    assert {o.signal: o.observed_at.date() for o in about.origins} == {
        "specs": date(2026, 7, 20),
        "on-demand": date(2026, 7, 20),
        "spot": date(2026, 8, 10),
        "advisor": date(2026, 8, 10),
    }
    assert all(o.source and o.kind == "embedded" for o in about.origins)


def test_sizes_are_not_monotone_and_the_cheaper_machine_wins(catalog: Catalog) -> None:
    small, large = catalog["g4dn.xlarge"], catalog["g4dn.2xlarge"]
    assert large.spot_usd_per_hour < small.spot_usd_per_hour  # type: ignore[operator]
    answer = recommend(catalog, 3, gpu="T4", top=1)
    assert answer[0].cluster.gpu.name == "g4dn.2xlarge"
    assert recommend(catalog, 3, gpu="T4", top=1, solver="frontier")[0].cluster == answer[0].cluster


def test_unprofiled_types_wait_for_estimates(catalog: Catalog) -> None:
    plain, estimated = recommend(catalog, 3), recommend(catalog, 3, estimates=True)
    assert plain[0].cluster.gpu.gpu.name in ("T4", "A10G")  # type: ignore[union-attr]
    assert not plain[0].estimated
    assert "deepvm profile eflops" in next(
        r.detail for r in plain.rejections if r.reason == "unprofiled"
    )
    assert estimated[0].estimated


def test_it_carries_ring_curves(catalog: Catalog) -> None:
    assert catalog.default_speedup == "ring"
    assert catalog["g4dn.xlarge"].speedup_basis == ""
    assert catalog["g5.2xlarge"].speedup_basis == "those of g5.xlarge, the same GPU"


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("how", [{"prices": "snapshot"}, {"offline": True}, {}])
def test_no_socket_is_opened(how: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with credentials in the environment, unless they may be used; without any, never."""
    if how:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-secret")
    answer = recommend(load_catalog("aws-us-east-1", **how), 3)  # type: ignore[arg-type]
    assert answer.configurations


def test_the_fixture_would_notice_a_socket(no_sockets: None) -> None:
    with pytest.raises(AssertionError, match="a socket was opened"):
        socket.create_connection(("localhost", 1))


def test_the_program_opens_no_socket_and_loads_no_boto3() -> None:
    """As a whole process: an audit hook sees what any library does."""
    code = (
        "import sys\n"
        "def hook(event, args):\n"
        "    if event.startswith('socket.'):\n"
        "        sys.stderr.write('SOCKET ' + event)\n"
        "sys.addaudithook(hook)\n"
        "from deepvm.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    sys.stderr.write('BOTO' if 'botocore' in sys.modules else '')\n"
    )
    secret = {
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
    }
    for words in (["--offline"], ["--prices", "snapshot"]):
        ended = subprocess.run(
            [sys.executable, "-c", code, "recommend", "--pw", "3", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **secret},
        )
        assert ended.returncode == 0, ended.stderr
        assert "SOCKET" not in ended.stderr
        assert "BOTO" not in ended.stderr
        assert "planted-secret" not in ended.stdout + ended.stderr


def test_other_regions_are_not_made_up() -> None:
    assert DEFAULT_CLOUD.snapshot_regions() == ("us-east-1",)
    assert DEFAULT_CLOUD.snapshot("eu-west-1") == {}
    with pytest.raises(
        MissingDataError, match="of region eu-west-1: .*deepvm catalog refresh --region eu-west-1"
    ):
        load_catalog("aws-eu-west-1", prices="snapshot")


def test_a_region_of_the_environment_falls_back_to_the_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    found = load_catalog()
    assert found.region == "us-east-1"
    assert (
        "nothing is known of eu-west-1 (environment variable AWS_REGION)"
        in found.provenance.notes[0]
    )


def test_names_that_are_no_region_are_refused() -> None:
    with pytest.raises(RequestError, match="catalog: 'moon-base'"):
        load_catalog("aws-moon-base")


def test_what_the_snapshot_does_not_know_is_said() -> None:
    with pytest.raises(MissingDataError, match="are not by zone"):
        load_catalog("aws-us-east-1", prices="snapshot", zone="use1-az1")
    with pytest.raises(MissingDataError, match="needs the spot prices of the last 7 days"):
        load_catalog("aws-us-east-1", prices="snapshot", price_basis="p95", days=7)


def test_bad_values_are_named() -> None:
    for given, named in [
        ({"prices": "today"}, "prices: 'today'"),
        ({"prices": "live", "offline": True}, "prices does not go with --offline"),
        ({"price_basis": "mean"}, "price_basis: 'mean'"),
        ({"days": "0"}, "days: '0'"),
        ({"days": 91}, "days: 91"),
        ({"network": "fast"}, "network: 'fast'"),
    ]:
        with pytest.raises(RequestError, match=named):
            load_catalog("aws-us-east-1", **given)  # type: ignore[arg-type]


def test_the_sustained_network_counts_when_asked(catalog: Catalog) -> None:
    slow = load_catalog("aws-us-east-1", prices="snapshot", network="baseline")
    assert (slow["g4dn.xlarge"].network_gbps, slow["g5.xlarge"].network_gbps) == (5, 2.5)
    needs = {
        c.region: recommend(c, 30, architecture="tiering", gpu="T4", top=1)[0].cluster
        for c in (catalog,)
    }
    many = recommend(slow, 30, architecture="tiering", gpu="T4", top=1)[0].cluster
    assert many.memory is not None and needs["us-east-1"].memory is not None
    assert (
        many.memory.count / many.gpu_count
        >= needs["us-east-1"].memory.count / needs["us-east-1"].gpu_count
    )
