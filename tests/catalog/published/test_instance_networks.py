"""The table of networks against its schema, AWS's own replies, the embedded snapshot and
``networks.json``.
"""

from __future__ import annotations

import csv
import doctest
import json
import os
from collections import Counter
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import jsonschema
import pytest
from support.pages import blocks
from support.places import ROOT, SHARED

from deepvm.catalog.clouds.aws.responses import read_specs
from deepvm.catalog.published.hardware import bandwidths, find_accelerator, network_of

TABLE = json.loads((ROOT / "data" / "performance" / "instance_networks.json").read_text())
ROWS: list[dict[str, Any]] = TABLE["networks"]
EFFECTIVE = json.loads((ROOT / "data" / "performance" / "networks.json").read_text())["networks"]
SNAPSHOTS = sorted((ROOT / "data" / "aws" / "regions").glob("*.json"))
SAMPLES = SHARED / "data" / "perf" / "catalog_samples.csv"
CLOUDS = ["aws", "azure", "gcp", "lambda", "nebius", "runpod"]

GBPS = {"type": "number", "exclusiveMinimum": 0, "maximum": 10_000}
SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema_version", "description", "sources", "networks"],
    "properties": {
        "schema_version": {"const": "deepvm.instance-networks/1"},
        "description": {"type": "string"},
        "sources": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "additionalProperties": False,
                "required": ["title", "url"],
                "properties": {
                    "title": {"type": "string", "minLength": 5},
                    "url": {"type": "string", "pattern": r"^https://[^\s]+$"},
                    "also": {
                        "type": "array",
                        "items": {"type": "string", "pattern": r"^https://[^\s]+$"},
                    },
                    "as_of": {"type": "string", "pattern": r"^20\d\d-\d\d-\d\d$"},
                },
            },
        },
        "networks": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": [
                    "cloud",
                    "types",
                    "kind",
                    "nominal_gbps",
                    "gpu_link",
                    "local_disk_gb",
                    "source",
                    "says",
                ],
                "properties": {
                    "cloud": {"enum": CLOUDS},
                    "types": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "string", "pattern": r"^\S+$"},
                    },
                    "kind": {"enum": ["efa", "rdma", "ethernet"]},
                    "nominal_gbps": {"anyOf": [GBPS, {"type": "null"}]},
                    "baseline_gbps": GBPS,
                    "ethernet_gbps": GBPS,
                    "gpu_link": {"enum": ["nvlink", "pcie", "none", None]},
                    "local_disk_gb": {"type": ["number", "null"], "minimum": 0, "maximum": 100_000},
                    "source": {"enum": sorted(TABLE["sources"])},
                    "says": {"type": "string", "minLength": 5, "maxLength": 220},
                },
            },
        },
    },
}


def known(cloud: str, name: str) -> Mapping[str, Any]:
    network = network_of(cloud, name)
    assert network, name
    return network


def near(ours: float | None, theirs: float) -> bool:
    return ours is not None and abs(ours - theirs) <= 0.01 * theirs


def test_the_table_fits_its_schema() -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(TABLE)
    assert {row["source"] for row in ROWS} == set(TABLE["sources"])
    assert {row["cloud"] for row in ROWS} == set(CLOUDS)


def test_no_type_is_named_twice() -> None:
    keys = Counter((row["cloud"], name) for row in ROWS for name in row["types"])
    assert [key for key, times in keys.items() if times > 1] == []
    patterns = [key for key in keys if set("*?[") & set(key[1])]
    # Whose names are made of number and kind of the GPUs
    assert {cloud for cloud, _ in patterns} == {"runpod"}
    runpod = [
        "1x_L4_SECURE",
        "2x_A100-80GB_SECURE",
        "8x_H100-SXM_SECURE",
        "4x_L40S_COMMUNITY",
        "1x_A100-80GB-SXM_SECURE",
        "1x_NVIDIA_L40S",
        "8x_NVIDIA_A100-SXM4-80GB",
    ]
    for name in runpod:
        assert sum(fnmatchcase(name, glob) for _, glob in patterns) == 1, name


def test_figures_can_be_true() -> None:
    for row in ROWS:
        nominal, kind = row["nominal_gbps"], row["kind"]
        for less in ("baseline_gbps", "ethernet_gbps"):
            assert less not in row or row[less] < nominal, row
        # Cards that reach GPU memory come with GPUs; an InfiniBand of its own is no use to a VM
        # without an Ethernet.
        assert kind == "ethernet" or row["cloud"] in ("aws", "azure", "gcp", "nebius"), row
        assert kind != "rdma" or row["gpu_link"] == "nvlink", row
        assert kind != "rdma" or "ethernet_gbps" in row or row["types"] == ["a3-edgegpu-8g"], row


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda p: p.stem)
def test_it_agrees_with_the_snapshot(path: Any) -> None:
    """Within 1 %.

    The snapshot counts Ethernet alone, AWS's description of p6-b200 EFA, which is more.
    """
    (specs,) = [s["data"] for s in json.loads(path.read_text())["signals"] if s["kind"] == "specs"]
    for name, spec in specs.items():
        network = known("aws", name)
        nominal = network.get("ethernet_gbps") or network.get("nominal_gbps")
        assert near(nominal, spec["peak_gbps"]), (name, nominal, spec)
        assert near(network.get("baseline_gbps") or nominal, spec["baseline_gbps"]), (
            name,
            network,
            spec,
        )


def test_it_agrees_with_aws() -> None:
    """moto holds AWS's own replies.

    Types it does not hold any more are of the source that says so.
    """
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    seen = 0
    for row in (row for row in ROWS if row["cloud"] == "aws"):
        for name in row["types"]:
            reply = INSTANCE_TYPES.get(name)
            if reply is None:
                assert row["source"] == "aws-api-2025", name
                continue
            seen += 1
            spec, network = read_specs([reply]).data[name], known("aws", name)
            assert near(
                network.get("ethernet_gbps") or network.get("nominal_gbps"), spec["peak_gbps"]
            ), name
            assert network.get("kind") == (
                "efa" if reply["NetworkInfo"]["EfaSupported"] else "ethernet"
            ), name
            assert network.get("local_disk_gb") == reply.get("InstanceStorageInfo", {}).get(
                "TotalSizeInGB", 0
            ), name
            gpus = spec.get("gpu", {"count": 0})
            assert (network.get("gpu_link") == "none") == (gpus["count"] < 2), name
            known_gpu = find_accelerator(gpus.get("name", ""), gpus.get("memory_gib"))
            if gpus["count"] > 1:
                assert network.get("gpu_link") == (known_gpu.link if known_gpu else None), name
    assert seen > 450


def test_effective_bandwidths_are_those_of_the_same_networks() -> None:
    """``networks.json`` lists g4dn.metal, with 100 Gbit/s, beside types with 50: one flow limits
    both.
    """
    for entry in EFFECTIVE:
        for machine in entry["machines"]:
            for row in ROWS:
                for name in row["types"]:
                    if fnmatchcase(name, machine) and name != "g4dn.metal":
                        assert (
                            row["nominal_gbps"] == entry["nominal_gbps"] > 8 * entry["gb_per_s"]
                        ), name
                        assert row["kind"] == entry["kind"] or name.startswith("g4dn."), name


def test_figures_read_in_the_sources() -> None:
    for cloud, name, nominal, baseline, ethernet, kind, link, disk in [
        ("aws", "g4dn.xlarge", 25, 5, None, "ethernet", "none", 125),
        ("aws", "g6e.48xlarge", 400, None, None, "efa", "pcie", 7600),
        ("aws", "p4d.24xlarge", 400, None, None, "efa", "nvlink", 8000),
        ("aws", "p6-b200.48xlarge", 3200, None, 1600, "efa", "nvlink", 30400),
        ("aws", "c6i.large", 12.5, 0.781, None, "ethernet", "none", 0),
        ("gcp", "a2-highgpu-1g", 24, None, None, "ethernet", "none", 0),
        ("gcp", "a2-ultragpu-8g", 100, None, None, "ethernet", "nvlink", 3221),
        ("gcp", "a3-megagpu-8g", 1600, None, 200, "rdma", "nvlink", 6442),
        ("gcp", "n1-standard-16", 32, 16, None, "ethernet", None, 0),
        ("gcp", "e2-standard-4", 8, None, None, "ethernet", "none", 0),
        ("azure", "Standard_NC64as_T4_v3", 32, None, None, "ethernet", "pcie", 3024),
        ("azure", "Standard_ND96isr_H100_v5", 3200, None, 80, "rdma", "nvlink", 30786),
        ("lambda", "gpu_8x_h100_sxm5", 200, 3.7, None, "ethernet", "nvlink", 24189),
        ("nebius", "gpu-h100-sxm_1gpu-16vcpu-200gb", None, None, None, "ethernet", "none", 0),
        ("nebius", "gpu-h200-sxm_8gpu-128vcpu-1600gb", 3200, None, 200, "rdma", "nvlink", 0),
        ("runpod", "8x_H100-SXM_SECURE", 0.1, None, None, "ethernet", "nvlink", None),
    ]:
        n = known(cloud, name)
        assert (n.get("nominal_gbps"), n.get("baseline_gbps"), n.get("ethernet_gbps")) == (
            nominal,
            baseline,
            ethernet,
        )
        assert (n.get("kind"), n.get("gpu_link"), n.get("local_disk_gb")) == (kind, link, disk)
        assert TABLE["sources"][n["source"]]["url"].startswith("https://") and n["says"]


def test_a_memory_node_sees_what_gpus_do_not_keep() -> None:
    for cloud, name, gbps in [
        ("azure", "Standard_ND96isr_H100_v5", 80),
        ("aws", "m5.large", 0.75),
        ("aws", "p5.48xlarge", 3200),
    ]:
        assert bandwidths(cloud, name)["baseline_gbps"] == gbps
    assert known("nebius", "gpu-h100-sxm_1gpu-16vcpu-200gb")
    assert bandwidths("nebius", "gpu-h100-sxm_1gpu-16vcpu-200gb") == {}


def test_what_is_not_known_is_empty() -> None:
    assert not network_of("aws", "a2-highgpu-1g")
    assert not network_of("mars", "g4dn.xlarge")
    assert not network_of("runpod", "16x_H100-SXM_SECURE")


@pytest.mark.skipif(not SAMPLES.exists(), reason="needs shared/ beside the checkout")
def test_types_of_the_catalogs_are_in_it() -> None:
    """All GPU types of the recorded rows.

    CPU types of Nebius and Lambda, and c3 and a1 of AWS, are not.
    """
    with SAMPLES.open() as file:
        rows = [
            (row["cloud"], row["instance_type"])
            for row in csv.DictReader(file)
            if row["instance_type"]
        ]
    missing = {key for key in rows if not network_of(*key)}
    assert len(rows) > 25
    assert missing <= {
        ("nebius", "cpu-d3_4vcpu-16gb"),
        ("lambda", "cpu_4x_general"),
        ("lambda", "gpu_8x_v100_n"),
        ("aws", "c3.2xlarge"),
        ("aws", "a1.2xlarge"),
    }, missing


PAGE = ROOT / "docs" / "internals" / "reference" / "instance-networks.md"
BEGIN, END = "with WRITE_GOLDEN=1 -->\n", "<!-- end -->"
HEADS = ("cloud", "types", "kind", "Gbit/s", "sustained", "next to GPUs", "GPU link", "disks, GB")


def test_the_page_has_the_gpu_types() -> None:
    """``WRITE_GOLDEN=1`` writes the table anew.

    GPU types: those whose names AWS or a GPU says are so.
    """

    def cell(figure: Any) -> str:
        return (
            "unknown"
            if figure is None
            else f"{figure:g}"
            if isinstance(figure, float)
            else str(figure)
        )

    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    for row in ROWS:
        if _has_gpus(row):
            less = [str(row.get(key, "")) for key in ("baseline_gbps", "ethernet_gbps")]
            types = ", ".join(f"`{name}`" for name in row["types"])
            figures = [
                cell(row["nominal_gbps"]),
                *less,
                cell(row["gpu_link"]),
                cell(row["local_disk_gb"]),
            ]
            lines.append(f"| {row['cloud']} | {types} | {row['kind']} | {' | '.join(figures)} |")
    before, rest = PAGE.read_text().split(BEGIN)
    written = before + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + rest.split(END)[1]
    if os.environ.get("WRITE_GOLDEN"):
        PAGE.write_text(written)
    assert PAGE.read_text() == written
    assert len(lines) > 100


def test_the_example_of_the_page_is_true() -> None:
    (text,) = blocks("docs/internals/reference/instance-networks.md", "pycon")
    example = doctest.DocTestParser().get_doctest(text, {}, PAGE.name, str(PAGE), 0)
    assert doctest.DocTestRunner().run(example) == (0, 4)


def _has_gpus(row: dict[str, Any]) -> bool:
    first: str = row["types"][0]
    families = {
        "aws": ("p", "g"),
        "gcp": ("a2-", "a3-", "a4-", "g2-", "g4-"),
        "azure": ("Standard_N",),
    }
    return first.startswith(families.get(row["cloud"], ("gpu", "1x", "[")))
