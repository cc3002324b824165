"""The catalogs of skypilot-org/skypilot-catalog: one CSV file for each cloud, renewed every seven hours."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import lru_cache

from deepvm.catalog.public.csv_rows import csv_rows
from deepvm.catalog.public.gpu_names import gpu_name, memory_in_name
from deepvm.catalog.public.offer import (
    BadRowError,
    Cells,
    ForeignRowError,
    Offer,
    Refused,
    Row,
    count,
    number,
    price,
    rows_of,
    total,
)
from deepvm.catalog.public.source import PublicSource

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
_NOT_AVAILABLE = ("700", "700.0")
"""What its GCP file writes where a TPU has no price, so that SkyPilot looks elsewhere first."""
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
"""Whose host costs 0 in its own row: Google sells the VM by its GPUs, as gpuhunt's fetcher has it."""
_GCP_COUNTS = {
    # the name says vCPUs
    "g2-standard": ("L4", {4: 1, 8: 1, 12: 1, 16: 1, 32: 1, 24: 2, 48: 4, 96: 8}),
    "g4-standard": ("RTX-PRO-6000", {48: 1, 96: 2, 192: 4, 384: 8}),
}


class SkyPilotCatalog(PublicSource):
    """See :class:`PublicSource`."""

    name = "skypilot"
    licence = "no licence was found (2026-11): fetched by each user, never part of deepvm"
    address = "https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs"
    period_s = 7 * 3600
    ended = {"azure": datetime(2025, 4, 28, tzinfo=timezone.utc)}  # noqa: RUF012  v7 took v6's place (pull request 116)
    paths = {  # noqa: RUF012
        "aws": "v8/aws/vms.csv",
        "gcp": "v8/gcp/vms.csv",
        "azure": "v6/azure/vms.csv",  # later versions have no file of Azure
        "lambda": "v8/lambda/vms.csv",
        "nebius": "v8/nebius/vms.csv",
        "runpod": "v8/runpod/vms.csv",
    }

    def parse(self, body: bytes, cloud: str) -> Iterator[Row]:
        rows = csv_rows(body, _NEEDED)
        if cloud == "gcp":
            return _gcp(rows)

        def read(row: Cells, region: str) -> Iterator[Row]:
            _check_foreign(row, row["InstanceType"])
            return _offers(row, cloud, _gpus(row), _prices(row, region), region)

        return rows_of(rows, read, _region)


def _region(row: Cells) -> str:
    return row["Region"].lower()


_Rate = tuple[str, int, str]
"""GPUs, how many of them, and the zone."""


@dataclass(frozen=True)
class _Gpus:
    name: str = ""
    count: int = 0
    memory_gib: float | None = None


@dataclass(frozen=True)
class _Prices:
    """Both markets' prices, and what was wrong with others."""

    on_demand: str | None
    spot: str | None
    refused: tuple[Refused, ...] = ()


def _check_foreign(row: Cells, name: str) -> None:
    """Raise ForeignRowError for a row that is not about a VM with whole NVIDIA GPUs or none."""
    accelerator = row["AcceleratorName"]
    if accelerator and _FOREIGN.search(accelerator):
        raise ForeignRowError("another accelerator than NVIDIA's")
    if accelerator and 0 < (number(row["AcceleratorCount"], "number of GPUs") or 0) < 1:
        raise ForeignRowError("a share of a GPU")
    if not name:
        raise ForeignRowError("no VM")


def _gpus(row: Cells) -> _Gpus:
    accelerator = row["AcceleratorName"]
    if not accelerator:
        return _Gpus()
    memory = _memory(row.get("GpuInfo", "")) or memory_in_name(accelerator)
    return _Gpus(gpu_name(accelerator), count(row["AcceleratorCount"], "number of GPUs"), memory)


@lru_cache(maxsize=1024)
def _memory(info: str) -> float | None:
    """GiB of each GPU, of a column that holds Python's text of a dictionary."""
    try:
        found = (
            ast.literal_eval(info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"]
            if info.startswith("{")
            else None
        )
        size = None if found is None else float(found)
    except (ValueError, SyntaxError, LookupError, TypeError, MemoryError, RecursionError):
        raise BadRowError("unreadable GPU memory") from None
    if size is None or size <= 0:
        return None
    # RunPod's says 80 for 80 GiB, in a column of MiB.
    return size if size < _MIB_PER_GIB else size / _MIB_PER_GIB


def _prices(row: Cells, region: str) -> _Prices:
    refused: list[Refused] = []
    prices: list[str | None] = []
    for column in ("Price", "SpotPrice"):
        found = None
        try:
            if row[column] in _NOT_AVAILABLE:
                raise ForeignRowError("700 $/h for not available")
            found = price(row[column])
        except BadRowError as error:
            refused.append(Refused(str(error), region, isinstance(error, ForeignRowError)))
        prices.append(found)
    return _Prices(prices[0], prices[1], tuple(refused))


def _offers(row: Cells, cloud: str, gpus: _Gpus, prices: _Prices, region: str) -> Iterator[Row]:
    on_demand = prices.on_demand
    spot = prices.spot
    yield from prices.refused
    zone = row.get("AvailabilityZone", "")
    if cloud == "runpod":
        # Its regions are countries, its zones data centres, and a cluster is in one of these.
        region = zone.lower()
        zone = ""
        # It writes the on-demand price into both columns: nothing is known of the other market.
        spot = None if spot == on_demand else spot
    if on_demand is None and spot is None:
        if not prices.refused:
            yield Refused("no price", region, foreign=True)
        return
    if not region:
        raise BadRowError("no region")
    yield Offer(
        cloud=cloud,
        instance_type=row["InstanceType"],
        region=region,
        zone=zone,
        vcpus=count(row["vCPUs"], "number of vCPUs"),
        memory_gib=number(row["MemoryGiB"], "memory"),
        gpu=gpus.name,
        gpu_count=gpus.count,
        gpu_memory_gib=gpus.memory_gib,
        arch=_ARCH.get(row.get("Arch", ""), ""),
        on_demand=on_demand,
        spot=spot,
    )


def _gcp(rows: Iterable[Cells | None]) -> Iterator[Row]:
    """GCP's: hosts, and GPUs in rows without a type, both by zone; a VM costs the sum."""
    hosts: list[Cells] = []
    rates: dict[_Rate, tuple[_Prices, _Gpus]] = {}

    def sort(row: Cells, region: str) -> Iterator[Row]:
        if not row["AcceleratorName"]:
            hosts.append(row)
            return
        _check_foreign(row, "GPU")
        gpus = _gpus(row)
        prices = _prices(row, region)
        yield from prices.refused
        rate = row["AcceleratorName"], gpus.count, row["AvailabilityZone"]
        rates.setdefault(rate, (prices, gpus))

    yield from rows_of(rows, sort, _region)
    reserved = _calendar_rates(rates)

    def read(row: Cells, region: str) -> Iterator[Row]:
        name = row["InstanceType"]
        model, many = gcp_gpus(name)
        if many < 0:
            raise ForeignRowError("a type of the edge, or with GPUs that are not known")
        if not model:
            yield from _offers(row, "gcp", _Gpus(), _prices(row, region), region)
            return
        rate = model, many, row["AvailabilityZone"]
        if rate not in rates:
            raise ForeignRowError("a host without the price of its GPUs")
        prices, gpus = rates[rate]
        prices = replace(prices, refused=())
        if rate in reserved:
            yield Refused("a price of reserved GPUs, not on demand", region, foreign=True)
            prices = replace(prices, on_demand=None)
        if not name.startswith(_GCP_SOLD_BY_GPU):
            host = _prices(row, region)
            on_demand = total(host.on_demand, prices.on_demand)
            prices = _Prices(on_demand, total(host.spot, prices.spot), host.refused)
        yield from _offers(row, "gcp", gpus, prices, region)

    yield from rows_of(hosts, read, _region)


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


def _calendar_rates(rates: Mapping[_Rate, tuple[_Prices, _Gpus]]) -> set[_Rate]:
    """Where the on-demand column holds what reserved GPUs cost, by what one GPU costs elsewhere."""
    # And with it statistics, only to read a file
    from deepvm.catalog.public.rates import other_rates

    each: dict[str, dict[_Rate, float]] = defaultdict(dict)
    for key, (prices, _) in rates.items():
        if prices.on_demand is not None:
            each[key[0]][key] = float(prices.on_demand) / key[1]
    return {key for found in each.values() for key in other_rates(found)}


SOURCE = SkyPilotCatalog()
