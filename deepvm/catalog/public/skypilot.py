"""The catalogs of skypilot-org/skypilot-catalog.

One CSV file for each cloud, renewed every seven hours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from deepvm.catalog.price_sources import PublicSource
from deepvm.catalog.public.download import DownloadedFile, download, public_file
from deepvm.catalog.public.integrity import other_rates
from deepvm.catalog.public.offers import (
    BadRowError,
    Cells,
    Offer,
    Rows,
    count,
    csv_rows,
    gpu_name,
    memory_in_name,
    number,
    price,
    total,
)

_NEEDED = (
    "InstanceType",
    "vCPUs",
    "MemoryGiB",
    "AcceleratorName",
    "AcceleratorCount",
    "Region",
    "Price",
    "SpotPrice",
)
_NO_PRICE = {"", "700", "700.0"}
"""Its GCP file writes 700 where a TPU has no price, so that SkyPilot looks elsewhere first."""
_ARCH = {"x86_64": "x86_64", "arm64": "arm64", "i386": "x86_64"}
_FOREIGN = re.compile(
    r"tpu-|trainium|inferentia|gaudi|radeon|mi[0-9]{2,3}|qualcomm|^u30$|xilinx|^v520$|amd",
    re.IGNORECASE,
)
_MIB_PER_GIB = 1024

# Which GPUs a GCP type brings along: its own row prices the host alone
# (https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026).
_GCP_GPUS = (
    (r"a2-(?:highgpu|megagpu)-(\d+)g", "A100"),
    (r"a2-ultragpu-(\d+)g", "A100-80GB"),
    (r"a3-highgpu-(\d+)g", "H100"),
    (r"a3-megagpu-(\d+)g", "H100-MEGA"),
    (r"a3-ultragpu-(\d+)g", "H200"),
    (r"a4-highgpu-(\d+)g", "B200"),
)
_GCP_WITH_GPUS = re.compile(r"(a[2-9]x?|g[2-9])-.*")
_GCP_SOLD_BY_GPU = "a4-"
"""Whose host costs 0 in its own row: Google sells the VM by its GPUs, as in gpuhunt's fetcher."""
_GCP_COUNTS = {
    # the name says vCPUs
    "g2-standard": ("L4", {4: 1, 8: 1, 12: 1, 16: 1, 32: 1, 24: 2, 48: 4, 96: 8}),
    "g4-standard": ("RTX-PRO-6000", {48: 1, 96: 2, 192: 4, 384: 8}),
}


def fetch(source: PublicSource, cloud: str, total_s: float) -> DownloadedFile:
    """Download a cloud's prices. Raises CloudError."""
    return download(public_file(source, source.url(cloud), total_s))


def parse(body: bytes, cloud: str) -> Rows:
    """Every row of the file.

    Raises DataError: this is no file of the source, or not the whole of it.
    """
    rows = csv_rows(body, _NEEDED)
    if cloud == "gcp":
        return _gcp(rows)
    table = Rows()
    table.read(rows, lambda row, region: _offer(row, cloud, region, _gpus(row), _prices(row)))
    return table


_Rate = tuple[str, int, str]
"""GPUs, how many of them, and the zone."""


class _Gpus(NamedTuple):
    name: str = ""
    in_vm: int = 0
    memory_gib: float | None = None


class _Prices(NamedTuple):
    on_demand: str | None
    spot: str | None


def _is_foreign(row: Cells) -> bool:
    """Whether a row is about another accelerator than NVIDIA's, or about a share of a GPU."""
    accelerator = row["AcceleratorName"]
    if not accelerator:
        return False
    gpus = number(row["AcceleratorCount"], "number of GPUs") or 0
    return bool(_FOREIGN.search(accelerator)) or 0 < gpus < 1


def _gpus(row: Cells) -> _Gpus:
    accelerator = row["AcceleratorName"]
    if not accelerator or _is_foreign(row):
        return _Gpus()
    memory = _memory(row.get("GpuInfo", "")) or memory_in_name(accelerator)
    return _Gpus(gpu_name(accelerator), count(row["AcceleratorCount"], "number of GPUs"), memory)


@lru_cache(maxsize=1024)
def _memory(info: str) -> float | None:
    """GiB of each GPU, of a column that holds Python's text of a dictionary."""
    if not info.startswith("{"):
        return None
    try:
        size = float(ast.literal_eval(info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"] or 0)
    except (ValueError, SyntaxError, LookupError, TypeError, MemoryError, RecursionError):
        raise BadRowError("unreadable GPU memory") from None
    if size <= 0:
        return None
    # RunPod's says 80 for 80 GiB, in a column of MiB.
    if size < _MIB_PER_GIB:
        return size
    return size / _MIB_PER_GIB


def _prices(row: Cells) -> _Prices:
    texts = [row["Price"], row["SpotPrice"]]
    prices = [None if text in _NO_PRICE else price(text) for text in texts]
    if prices == [None, None] and not _NO_PRICE.issuperset(texts):
        raise BadRowError("unreadable price")
    return _Prices(*prices)


def _offer(row: Cells, cloud: str, region: str, gpus: _Gpus, prices: _Prices) -> Offer | None:
    on_demand, spot = prices
    zone = row.get("AvailabilityZone", "")
    if cloud == "runpod":
        # Its regions are countries, its zones data centres, and a cluster is in one of these.
        region = zone.lower()
        zone = ""
        # It writes the on-demand price into both columns: nothing is known of the other market.
        spot = None if spot == on_demand else spot
    name = row["InstanceType"]
    if not name or _is_foreign(row) or (on_demand is None and spot is None):
        return None
    return Offer(
        instance_type=name,
        region=region,
        zone=zone,
        vcpus=count(row["vCPUs"], "number of vCPUs"),
        memory_gib=number(row["MemoryGiB"], "memory"),
        gpu=gpus.name,
        gpu_count=gpus.in_vm,
        gpu_memory_gib=gpus.memory_gib,
        arch=_ARCH.get(row.get("Arch", ""), ""),
        on_demand=on_demand,
        spot=spot,
    )


def _gcp(rows: Iterable[Cells]) -> Rows:
    """GCP's: hosts, and GPUs in rows without a type, both by zone; a VM costs the sum."""
    table = Rows()
    hosts: list[Cells] = []
    rates: dict[_Rate, tuple[_Gpus, _Prices]] = {}

    def sort(row: Cells, region: str) -> None:
        if not row["AcceleratorName"]:
            hosts.append(row)
        elif not _is_foreign(row):
            gpus = _gpus(row)
            rate = row["AcceleratorName"], gpus.in_vm, row["AvailabilityZone"]
            rates.setdefault(rate, (gpus, _prices(row)))

    table.read(rows, sort)
    per_gpu = {
        rate: (rate[0], float(prices.on_demand) / gpus.in_vm)
        for rate, (gpus, prices) in rates.items()
        if prices.on_demand is not None
    }
    reserved = other_rates(per_gpu)

    def read(row: Cells, region: str) -> Offer | None:
        name = row["InstanceType"]
        model, many = gcp_gpus(name)
        if not model:
            if many < 0:
                return None
            return _offer(row, "gcp", region, _Gpus(), _prices(row))
        rate = model, many, row["AvailabilityZone"]
        if rate not in rates:  # the host's price alone is not that of the VM
            return None
        gpus, (on_demand, spot) = rates[rate]
        if rate in reserved:
            on_demand = None
        if not name.startswith(_GCP_SOLD_BY_GPU):
            host = _prices(row)
            on_demand = total(host.on_demand, on_demand)
            spot = total(host.spot, spot)
        return _offer(row, "gcp", region, gpus, _Prices(on_demand, spot))

    table.read(hosts, read)
    return table


def gcp_gpus(name: str) -> tuple[str, int]:
    """The file's name of the GPUs that a type of GCP has, and how many.

    Below zero: none that plans can use.
    """
    for pattern, model in _GCP_GPUS:
        found = re.fullmatch(pattern, name)
        if found:
            return model, int(found[1])
    family, _, vcpus = name.rpartition("-")
    model, counts = _GCP_COUNTS.get(family, ("", {}))
    if model and vcpus.isdigit():
        return model, counts.get(int(vcpus), -1)
    # The host's price alone would make a new type with GPUs the cheapest of all CPU types.
    return "", -1 if _GCP_WITH_GPUS.fullmatch(name) else 0
