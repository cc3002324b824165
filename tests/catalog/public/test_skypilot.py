"""skypilot-catalog's rows: figures of each cloud worked out by hand from the sample rows."""

from __future__ import annotations

import csv

import pytest
from support.places import SHARED
from support.public_catalogs import SKYPILOT, csv_file, gcp_info, info, skypilot_file

from deepvm.catalog.price_sources import SOURCES
from deepvm.catalog.public import skypilot
from deepvm.catalog.public.offers import Offer, check
from deepvm.errors import DataError

RECORDED = SHARED / "data" / "perf" / "catalog_samples.csv"
BY_HAND = {
    # cloud: type, place: (vCPUs, GiB, GPU, how many, GiB of each, on demand, spot), from the rows
    # of the sample
    "aws": {
        ("g4dn.xlarge", "use1-az4"): (4, 16, "T4", 1, 16, "0.526", "0.1712"),
        ("g4dn.12xlarge", "use1-az4"): (48, 192, "T4", 4, 16, "3.912", "1.4021"),
        ("g5.xlarge", "use1-az1"): (4, 16, "A10G", 1, 22888 / 1024, "1.006", "0.4123"),
        ("p4d.24xlarge", "use1-az6"): (96, 1152, "A100", 8, 40, "21.957642", "9.87"),
        ("c5n.2xlarge", "use1-az4"): (8, 21, "", 0, None, "0.432", "0.15"),
        ("g4dn.xlarge", "usw2-az1"): (4, 16, "T4", 1, 16, "0.526", None),
        ("c3.2xlarge", "use1-az3"): (8, 15, "", 0, None, "0.42", "0.1537"),
        ("a1.2xlarge", "use1-az2"): (8, 16, "", 0, None, "0.204", "0.204"),
        ("c1.medium", "use1-az2"): (2, 1.69921875, "", 0, None, "0.13", "0.0415"),
    },
    "gcp": {
        # host + GPUs: 0.73948 + 2.93391, 0.36975 + 1.4341
        ("a2-highgpu-1g", "us-central1-a"): (12, 85, "A100", 1, 40, "3.67339", "1.80385"),
        # 5.91582 + 23.47126, 2.958 + 11.4728
        ("a2-highgpu-8g", "us-central1-a"): (96, 680, "A100", 8, 40, "29.38708", "14.4308"),
        # 1.09962 + 4.4242, 0.31193 + 1.3356
        ("a2-ultragpu-1g", "us-east5-a"): (12, 170, "A100", 1, 80, "5.52382", "1.64753"),
        # 1.8462 is no price on demand: 0.42 of what the same GPU costs in us-east5; spot is 0.54978
        # + 1.964
        ("a2-ultragpu-1g", "us-central1-a"): (12, 170, "A100", 1, 80, None, "2.51378"),
        # 9.46006 + 78.37239, 2.15966 + 17.8848
        ("a3-highgpu-8g", "us-east4-a"): (208, 1872, "H100", 8, 80, "87.83245", "20.04446"),
        ("a3-highgpu-8g", "us-central1-a"): (208, 1872, "H100", 8, 80, None, "26.83013"),
        # the host costs 0, so the price is that of the GPUs (what may be sold on demand is another
        # question)
        ("a4-highgpu-8g", "us-central1-b"): (224, 3968, "B200", 8, 180, "90.216", "32.6064"),
        # 0.1467 + 0.56004, 0.05842 + 0.2231
        ("g2-standard-4", "us-central1-a"): (4, 16, "L4", 1, 24, "0.70674", "0.28152"),
        # 1.7604 + 2.24016, 0.70104 + 0.8924
        ("g2-standard-48", "us-central1-a"): (48, 192, "L4", 4, 24, "4.00056", "1.59344"),
        ("n2-standard-8", "us-central1-a"): (8, 32, "", 0, None, "0.38847", "0.0938"),
    },
    "azure": {
        ("Standard_NC24ads_A100_v4", ""): (24, 220, "A100", 1, 80, "3.673", "0.6611"),
        ("Standard_NC4as_T4_v3", ""): (4, 28, "T4", 1, 16, "0.526", "0.0526"),
        ("Standard_NC6s_v3", ""): (6, 112, "V100", 1, 16, "3.06", "0.306"),
        ("Standard_ND96asr_v4", ""): (96, 900, "A100", 8, 40, "27.197", "4.8954"),
        ("Standard_B2ms", ""): (2, 8, "", 0, None, "0.0832", None),
    },
    "lambda": {
        ("gpu_1x_a10", ""): (30, 200, "A10", 1, 24, "0.75", None),
        ("gpu_1x_a100_sxm4", ""): (30, 200, "A100", 1, 40, "1.29", None),
        ("gpu_8x_a100_80gb_sxm4", ""): (240, 1800, "A100", 8, 80, "14.32", None),
        ("gpu_8x_b200_sxm6", ""): (208, 2900, "B200", 8, 180, "53.52", None),
        ("cpu_4x_general", ""): (4, 16, "", 0, None, "0.2", None),
    },
    "nebius": {
        ("gpu-h100-sxm_1gpu-16vcpu-200gb", ""): (16, 200, "H100", 1, 80, "2.95", "1.25"),
        ("gpu-h100-sxm_8gpu-128vcpu-1600gb", ""): (128, 1600, "H100", 8, 80, "23.6", "10"),
        ("gpu-h200-sxm_8gpu-128vcpu-1600gb", ""): (128, 1600, "H200", 8, 141, "28", "11.6"),
        ("gpu-b200-sxm_8gpu-160vcpu-1792gb", ""): (160, 1792, "B200", 8, 180, "44", None),
        ("cpu-d3_16vcpu-64gb", ""): (16, 64, "", 0, None, "0.3968", None),
    },
    "runpod": {
        # memory is in GiB in a column of MiB; spot equal to on demand says nothing of the spot
        # market
        ("1x_A100-80GB_SECURE", ""): (8, 117, "A100", 1, 80, "1.39", None),
        ("2x_A100-80GB_SECURE", ""): (16, 234, "A100", 2, 80, "2.78", None),
        ("8x_H100-SXM_SECURE", ""): (160, 1000, "H100", 8, 80, "21.52", None),
        ("1x_L40S_SECURE", ""): (12, 62, "L40S", 1, 48, "0.79", None),
        ("1x_RTX4090_SECURE", ""): (6, 41, "RTX4090", 1, 24, "0.59", None),
    },
}


def offers(cloud: str, body: bytes | None = None) -> list[Offer]:
    return list(check(skypilot.parse(skypilot_file(cloud) if body is None else body, cloud)).offers)


@pytest.mark.parametrize("cloud", BY_HAND)
def test_figures_are_those_worked_out_by_hand(cloud: str) -> None:
    found = {(o.instance_type, o.zone): o for o in offers(cloud)}
    assert len(BY_HAND[cloud]) >= 5
    for key, figures in BY_HAND[cloud].items():
        o = found[key]
        said = (o.vcpus, o.memory_gib, o.gpu, o.gpu_count, o.gpu_memory_gib, o.on_demand, o.spot)
        assert said == figures, key


@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded rows are not here")
def test_the_samples_are_as_the_files_were_recorded() -> None:
    """What is said of a type in both; hosts and GPUs of Google Cloud apart, as in the file."""
    compared = set()
    with RECORDED.open(newline="") as stream:
        for row in csv.DictReader(stream):
            head, rows = SKYPILOT[row["cloud"]]
            place = row["zone"] or row["region"].partition(" ")[0]
            gpu, count = ("", "") if row["gpu"].startswith("(") else (row["gpu"], row["gpu_count"])
            for cells in csv.DictReader([head, *rows]):
                here = cells.get("AvailabilityZone") or cells["Region"]
                same_gpus = cells["AcceleratorName"] == gpu and float(
                    cells["AcceleratorCount"] or 0
                ) == float(count or 0)
                if cells["InstanceType"] == row["instance_type"] and here == place and same_gpus:
                    for column, recorded in (
                        ("Price", "on_demand_usd_h"),
                        ("SpotPrice", "spot_usd_h"),
                    ):
                        assert float(cells[column] or 0) == float(row[recorded] or 0), row
                    compared.add((row["cloud"], row["instance_type"] or gpu))
    assert len(compared) >= 16 and {cloud for cloud, _ in compared} == {*SKYPILOT} - {"azure"}


def test_every_cloud_has_a_sample_and_a_calculation() -> None:
    assert {*SOURCES["skypilot"].paths} == {*SKYPILOT} == {*BY_HAND}


def test_what_is_no_vm_with_whole_gpus_of_nvidia_is_left_out() -> None:
    checked = check(skypilot.parse(skypilot_file("aws"), "aws"))
    assert not {"trn1.2xlarge", "g6f.large"} & {o.instance_type for o in checked.offers}
    assert checked.refused.total() == 0
    checked = check(skypilot.parse(skypilot_file("gcp"), "gcp"))
    assert "a3-edgegpu-8g" not in {o.instance_type for o in checked.offers}
    assert checked.refused.total() == 0


def test_a_host_of_gcp_without_a_price_of_its_gpus_is_no_offer() -> None:
    """Zone b sells the host of a2-highgpu-1g, and no row says what its GPU costs there."""
    found = {(o.instance_type, o.zone) for o in offers("gcp")}
    assert ("a2-highgpu-1g", "us-central1-b") not in found and (
        "a2-highgpu-1g",
        "us-central1-a",
    ) in found


@pytest.mark.parametrize(
    "name", ["a3-ultragpu-8g-nolssd", "a3-edgegpu-8g-nolssd", "a4x-highgpu-4g", "a5-highgpu-8g"]
)
def test_a_type_with_unknown_gpus_is_not_sold_at_the_price_of_its_host(name: str) -> None:
    """It would be the cheapest of all CPU types."""
    row = f"{name},224.0,2952.0,,,,us-central1,us-central1-a,12.266,3.74713"
    assert name not in {o.instance_type for o in offers("gcp", skypilot_file("gcp", row))}


def test_a_doubled_row_of_gcp_is_one_offer() -> None:
    host = "a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.73948,0.36975"
    gpu = f",,,A100,1,{gcp_info(40960)},us-central1,us-central1-a,2.93391,1.4341"
    checked = check(skypilot.parse(skypilot_file("gcp", host, gpu), "gcp"))
    found = [
        o for o in checked.offers if (o.instance_type, o.zone) == ("a2-highgpu-1g", "us-central1-a")
    ]
    assert [(o.on_demand, o.spot) for o in found] == [("3.67339", "1.80385")]


def test_an_h200_at_price_0_is_not_for_nothing() -> None:
    gpu = info("H200", 8, 144384)
    row = f"p5en.48xlarge,H200,8.0,192.0,2048.0,{gpu},0.0,,us-east-1,use1-az4,x86_64"
    checked = check(skypilot.parse(skypilot_file("aws", row), "aws"))
    assert "p5en.48xlarge" not in {o.instance_type for o in checked.offers}
    assert checked.refused.total() == 1


def test_a_price_of_700_stands_for_none() -> None:
    more = f",,,L4,2,{gcp_info(24576)},us-central1,us-central1-a,700.0,0.4462"
    body = skypilot_file(
        "gcp", more, "g2-standard-24,24.0,96.0,,,,us-central1,us-central1-a,0.8802,0.35052"
    )
    (found,) = [o for o in offers("gcp", body) if o.instance_type == "g2-standard-24"]
    assert (found.on_demand, found.spot) == (None, "0.79672")


def test_all_of_lambdas_types_are_in_all_regions() -> None:
    regions = {o.region for o in offers("lambda")}
    assert {
        o.region for o in offers("lambda") if o.instance_type == "gpu_1x_a10"
    } == regions and len(regions) == 3


def test_a_region_of_runpod_is_a_data_centre() -> None:
    assert {o.region for o in offers("runpod")} == {"us-tx-1", "eur-is-1"}


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(
            (3, "many"),
            (3, "0"),
            (3, "1.5"),
            (3, "-4"),
            (4, "nan"),
            (5, "\"{'Gpus': []}\""),
            (5, '"{"'),
        ),
        *(
            (6, "zero"),
            (6, "nan"),
            (6, "inf"),
            (6, "1e400"),
            (2, "two"),
            (2, ""),
            (8, "../../etc"),
            (9, "az\x1b[31m"),
        ),
    ],
)
def test_an_unreadable_cell_costs_its_row(column: int, value: str) -> None:
    cells = [
        "g4dn.2xlarge",
        "T4",
        "1.0",
        "8.0",
        "32.0",
        "",
        "0.752",
        "0.27",
        "us-east-1",
        "use1-az1",
        "x86_64",
    ]
    cells[column] = value
    checked = check(skypilot.parse(skypilot_file("aws", ",".join(cells)), "aws"))
    found = [o for o in checked.offers if o.instance_type == "g4dn.2xlarge"]
    if column == 6:  # a price costs only its market
        assert found[0].on_demand is None
    else:
        assert not found and checked.refused.total() == 1


def test_a_name_that_is_none_is_counted_as_such() -> None:
    row = "g4dn.2xlarge,T4,1.0,8.0,32.0,,0.752,,../../etc,use1-az1,x86_64"
    table = skypilot.parse(skypilot_file("aws", row), "aws")
    assert table.refused == {("../../etc", "unreadable name"): 1}


@pytest.mark.parametrize("cloud", ["runpod", "gcp"])
def test_a_file_without_zones_has_no_place_of_an_offer(cloud: str) -> None:
    head = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,Region,Price,SpotPrice"
    row = "a2-highgpu-1g,12,85,,,us-central1,1,"
    assert skypilot.parse(f"{head}\n{row}\n".encode(), cloud).offers == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no column"),
        (b"<!doctype html><title>429: Too Many Requests</title>\n", "no column"),
        (b'{"message": "Not Found"}\n', "no column"),
        (b"\xff\xfe\x00\x01\n", "no CSV"),
        (skypilot_file("aws")[:-20], "breaks off in the middle"),
        (b"InstanceType,Price\ng5.xlarge,1.0\n", "no column vCPUs"),
        (csv_file(SKYPILOT["aws"][0], []), "no offer that can be used"),
        (b'InstanceType,"' + b"x" * 200_000 + b'"\n', "no CSV"),
    ],
)
def test_another_file_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        offers("aws", body)


def test_a_file_of_another_cloud_gives_no_gcp_types() -> None:
    found = offers("gcp", skypilot_file("aws"))
    assert all(not o.gpu for o in found)
