"""gpuhunt's rows, of one market each: figures worked out by hand, and archives that are none."""

from __future__ import annotations

import pytest
from support.public_catalogs import (
    HUNT_HEAD,
    HUNT_ROWS,
    csv_file,
    gpuhunt_csv,
    public_server,
    zipped,
)
from support.spot_advisor import say

from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public import gpuhunt
from deepvm.catalog.public.offers import Offer, check
from deepvm.errors import CloudError

BY_HAND = {
    # cloud: type, region, zone: (GPU, how many, GiB of each, architecture, on demand, spot)
    "aws": {
        ("g4dn.xlarge", "us-east-1", ""): ("T4", 1, 16, "x86_64", "0.526", "0.1699"),
        ("g5.xlarge", "us-east-1", ""): ("A10G", 1, 24, "x86_64", "1.006", None),
        ("g6e.xlarge", "us-east-1", ""): ("L40S", 1, 48, "x86_64", "1.861", None),
        ("p4d.24xlarge", "us-east-1", ""): ("A100", 8, 40, "x86_64", "21.957642", None),
        ("c7g.xlarge", "us-east-1", ""): ("", 0, None, "arm64", "0.145", None),
    },
    "gcp": {
        ("a2-highgpu-1g", "us-central1", "us-central1-a"): (
            "A100",
            1,
            40,
            "x86_64",
            "3.673385",
            "1.80385",
        ),
        ("a3-highgpu-8g", "us-east4", "us-east4-a"): ("H100", 8, 80, "x86_64", "88.25", None),
        ("g2-standard-4", "us-central1", "us-central1-a"): ("L4", 1, 24, "x86_64", "0.70674", None),
        ("g2-standard-48", "us-central1", "us-central1-a"): (
            "L4",
            4,
            24,
            "x86_64",
            "4.000704",
            None,
        ),
        ("e2-standard-4", "us-central1", "us-central1-a"): ("", 0, None, "x86_64", "0.134", None),
    },
    "lambda": {
        ("gpu_8x_h100_sxm5", "us-east-1", ""): ("H100", 8, 80, "x86_64", "23.92", None),
        ("gpu_1x_a10", "us-east-1", ""): ("A10", 1, 24, "x86_64", "0.75", None),
        ("gpu_1x_a100_sxm4", "us-east-1", ""): ("A100", 1, 40, "x86_64", "1.29", None),
        ("gpu_8x_v100", "us-east-1", ""): ("V100", 8, 16, "x86_64", "4.4", None),
        ("gpu_1x_gh200", "us-east-1", ""): ("GH200", 1, 96, "arm64", "1.49", None),
    },
    "azure": {
        ("Standard_NC4as_T4_v3", "eastus", ""): ("T4", 1, 16, "x86_64", "0.526", "0.1052"),
        ("Standard_NC64as_T4_v3", "eastus", ""): ("T4", 4, 16, "x86_64", "4.352", None),
        ("Standard_NC24ads_A100_v4", "eastus", ""): ("A100", 1, 80, "x86_64", "3.673", "0.6795"),
        ("Standard_ND96isr_H100_v5", "eastus", ""): ("H100", 8, 80, "x86_64", "98.32", None),
        ("Standard_D8s_v5", "eastus", ""): ("", 0, None, "x86_64", "0.384", None),
    },
    "nebius": {
        ("gpu-h100-sxm_8gpu-128vcpu-1600gb", "eu-north1", ""): (
            "H100",
            8,
            80,
            "x86_64",
            "23.6",
            "10",
        ),
        ("gpu-h100-sxm_1gpu-16vcpu-200gb", "eu-north1", ""): (
            "H100",
            1,
            80,
            "x86_64",
            "2.95",
            None,
        ),
        ("gpu-h200-sxm_8gpu-128vcpu-1600gb", "eu-west1", ""): (
            "H200",
            8,
            141,
            "x86_64",
            "28",
            None,
        ),
        ("gpu-l40s-a_1gpu-8vcpu-32gb", "eu-north1", ""): ("L40S", 1, 48, "x86_64", "1.5484", None),
        ("cpu-d3_4vcpu-16gb", "eu-north1", ""): ("", 0, None, "x86_64", "0.0992", None),
    },
    "runpod": {
        # one name for pods with any number of GPUs
        ("1x_NVIDIA_A100_80GB_PCIe", "us-tx-1", ""): ("A100", 1, 80, "x86_64", "1.39", None),
        ("1x_NVIDIA_A100-SXM4-80GB", "us-tx-1", ""): ("A100", 1, 80, "x86_64", "1.49", None),
        ("1x_NVIDIA_H100_80GB_HBM3", "us-tx-1", ""): ("H100", 1, 80, "x86_64", "2.69", None),
        ("1x_NVIDIA_L40S", "us-tx-1", ""): ("L40S", 1, 48, "x86_64", "0.86", "0.47"),
        ("2x_NVIDIA_L40S", "us-tx-1", ""): ("L40S", 2, 48, "x86_64", "1.72", None),
        ("8x_NVIDIA_L40S", "us-tx-1", ""): ("L40S", 8, 48, "x86_64", "6.88", None),
        ("1x_NVIDIA_GeForce_RTX_4090", "us-tx-1", ""): ("RTX4090", 1, 24, "x86_64", "0.69", None),
        ("cpu3c-2-4", "us-tx-1", ""): ("", 0, None, "x86_64", "0.06", None),
    },
}


def offers(cloud: str, body: bytes) -> list[Offer]:
    return list(check(gpuhunt.parse(body, cloud)).offers)


@pytest.mark.parametrize("cloud", BY_HAND)
def test_figures_are_those_worked_out_by_hand(cloud: str) -> None:
    found = {(o.instance_type, o.region, o.zone): o for o in offers(cloud, gpuhunt_csv(cloud))}
    said = {
        k: (o.gpu, o.gpu_count, o.gpu_memory_gib, o.arch, o.on_demand, o.spot)
        for k, o in found.items()
    }
    assert said == BY_HAND[cloud] and len(said) >= 5


def test_every_cloud_has_a_sample_and_a_calculation() -> None:
    assert {*SOURCES["gpuhunt"].paths} == {*HUNT_ROWS} == {*BY_HAND}


def test_runpods_clusters_and_community_are_no_pods_of_its_data_centres() -> None:
    checked = check(gpuhunt.parse(gpuhunt_csv("runpod"), "runpod"))
    assert checked.refused.total() == 0
    assert {o.region for o in checked.offers} == {"us-tx-1"}


def test_a_market_that_is_neither_breaks_the_row() -> None:
    rows = (
        *HUNT_ROWS["aws"],
        "g5.2xlarge,us-east-1,1.212,8,32.0,1,A10G,24.0,perhaps,,nvidia,,x86,",
    )
    assert check(gpuhunt.parse(csv_file(HUNT_HEAD, rows), "aws")).refused.total() == 1


def test_a_price_of_reserved_gpus_alone_is_no_offer() -> None:
    rows = [
        f"a2-highgpu-1g,{zone}-a,{price},12,85.0,1,A100,40.0,{spot},,nvidia,,,"
        for zone, price, spot in (
            ("us-central1", "3.67", "False"),
            ("us-east1", "3.67", "False"),
            ("europe-west4", "1.5", "False"),
            ("asia-east1", "1.1", "True"),
        )
    ]
    found = gpuhunt.parse(csv_file(HUNT_HEAD, rows), "gcp").offers
    assert [o.region for o in found] == ["us-central1", "us-east1", "asia-east1"]


def fetched(monkeypatch: pytest.MonkeyPatch, path: str = "", answer: object = None) -> bytes:
    with public_server() as server:
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("DEEPVM_GPUHUNT_URL", server.url)
        if path:
            server.answers[path] = answer  # type: ignore[assignment]
        return gpuhunt.fetch(SOURCES["gpuhunt"], "aws", 2).body


def test_the_newest_version_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetched(monkeypatch) == gpuhunt_csv("aws")


@pytest.mark.parametrize("version", [b"", b"../../secret", b"<html>", b"x" * 100, b"a b"])
def test_another_version_than_a_name_is_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, version: bytes
) -> None:
    with pytest.raises(CloudError, match="names no version"):
        fetched(monkeypatch, "/aws/version", say(version))


@pytest.mark.parametrize(
    ("archive", "said"),
    [
        (b"<html>", "no zip archive"),
        (b"", "no zip"),
        (zipped(b"a\n")[:-10], "no zip"),
        (zipped(b"a\n", "readme.txt"), "with one CSV file"),
        (zipped(bytes(2**21)), "larger than 1 MiB"),
    ],
)
def test_another_archive_is_refused(
    monkeypatch: pytest.MonkeyPatch, archive: bytes, said: str
) -> None:
    monkeypatch.setattr(gpuhunt, "_MAX_UNPACKED", 2**20)
    with pytest.raises(CloudError, match=said):
        fetched(monkeypatch, "/aws/20261127-12/catalog.zip", say(archive))
