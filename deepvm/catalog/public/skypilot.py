"""The catalogs of skypilot-org/skypilot-catalog: one CSV file for each cloud, renewed every seven hours."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

from deepvm.catalog.public.csv_rows import csv_rows
from deepvm.catalog.public.gpu_names import gpu_name, memory_in_name
from deepvm.catalog.public.offer import BadRowError, Offer, Refused, count, number, price, total
from deepvm.catalog.public.source import PublicSource, Row

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
        """See :meth:`PublicSource.parse`."""
        rows = csv_rows(body, _NEEDED)
        return _gcp(rows) if cloud == "gcp" else _plain(rows, cloud)


def _plain(rows: Iterable[Mapping[str, str] | None], cloud: str) -> Iterator[Row]:
    """Rows that price whole VMs."""
    for row in rows:
        if row is None:
            yield Refused("broken row")
            continue
        region = row["Region"].strip().lower()
        try:
            name, accelerator = row["InstanceType"].strip(), row["AcceleratorName"].strip()
            foreign = _foreign(name, accelerator, row["AcceleratorCount"])
            if foreign:
                yield Refused(foreign, region, foreign=True)
                continue
            gpus = _gpus(accelerator, row["AcceleratorCount"], row.get("GpuInfo", ""))
            yield from _offers(row, cloud, name, gpus, _prices(row, region))
        except BadRowError as error:
            yield Refused(str(error), region)


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


def _foreign(name: str, accelerator: str, gpus: str) -> str:
    """Why a row is not about a VM with whole NVIDIA GPUs or none; empty if it is."""
    if accelerator and _FOREIGN.search(accelerator):
        return "another accelerator than NVIDIA's"
    if accelerator and 0 < (number(gpus, "number of GPUs") or 0) < 1:
        return "a share of a GPU"
    return "" if name else "no VM"


def _gpus(accelerator: str, gpus: str, info: str) -> _Gpus:
    if not accelerator:
        return _Gpus()
    memory = _memory(info.strip())
    return _Gpus(
        gpu_name(accelerator), count(gpus, "number of GPUs"), memory or memory_in_name(accelerator)
    )


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


def _prices(row: Mapping[str, str], region: str) -> _Prices:
    refused, found = [], []
    for column in ("Price", "SpotPrice"):
        try:
            text = row[column].strip()
            if text in _NOT_AVAILABLE:
                refused.append(Refused("700 $/h for not available", region, foreign=True))
                text = ""
            found.append(price(text))
        except BadRowError as error:
            refused.append(Refused(str(error), region))
            found.append(None)
    return _Prices(found[0], found[1], tuple(refused))


def _offers(
    row: Mapping[str, str], cloud: str, name: str, gpus: _Gpus, prices: _Prices
) -> Iterator[Row]:
    region, on_demand, spot = row["Region"].strip().lower(), prices.on_demand, prices.spot
    yield from prices.refused
    if cloud == "runpod" and spot is not None and spot == on_demand:
        # It writes the on-demand price into both columns: nothing is known of the other market.
        spot = None
    zone = row.get("AvailabilityZone", "").strip()
    if cloud == "runpod":
        # Its regions are countries, its zones data centres, and a cluster is in one of these.
        region, zone = zone.lower(), ""
    if on_demand is None and spot is None:
        if not prices.refused:
            yield Refused("no price", region, foreign=True)
        return
    if not region:
        raise BadRowError("no region")
    yield Offer(
        cloud=cloud,
        instance_type=name,
        region=region,
        zone=zone,
        vcpus=count(row["vCPUs"], "number of vCPUs"),
        memory_gib=number(row["MemoryGiB"], "memory"),
        gpu=gpus.name,
        gpu_count=gpus.count,
        gpu_memory_gib=gpus.memory_gib,
        arch=_ARCH.get(row.get("Arch", "").strip(), ""),
        on_demand=on_demand,
        spot=spot,
    )


def _gcp(rows: Iterable[Mapping[str, str] | None]) -> Iterator[Row]:
    """GCP's: hosts, and GPUs in rows without a type, both by zone; a VM costs the sum."""
    hosts: list[tuple[Mapping[str, str], str, int]] = []
    rates: dict[tuple[str, int, str], tuple[_Prices, _Gpus]] = {}
    for row in rows:
        if row is None:
            yield Refused("broken row")
            continue
        region, accelerator = row["Region"].strip().lower(), row["AcceleratorName"].strip()
        try:
            if not accelerator:
                name = row["InstanceType"].strip()
                model, many = gcp_gpus(name)
                if many < 0:
                    yield Refused(
                        "a type of the edge, or with GPUs that are not known", region, foreign=True
                    )
                else:
                    hosts.append((row, model, many))
                continue
            foreign = _foreign("GPU", accelerator, row["AcceleratorCount"])
            if foreign:
                yield Refused(foreign, region, foreign=True)
                continue
            gpus, prices = (
                _gpus(accelerator, row["AcceleratorCount"], row.get("GpuInfo", "")),
                _prices(row, region),
            )
            yield from prices.refused
            rates.setdefault(
                (accelerator, gpus.count, row["AvailabilityZone"].strip()), (prices, gpus)
            )
        except BadRowError as error:
            yield Refused(str(error), region)
    calendar = _calendar_rates(rates)
    for row, model, many in hosts:
        region, zone = row["Region"].strip().lower(), row["AvailabilityZone"].strip()
        try:
            by_gpu = row["InstanceType"].startswith(_GCP_SOLD_BY_GPU)
            host, gpus = _Prices(None, None) if by_gpu else _prices(row, region), _Gpus()
            if model:
                found = rates.get((model, many, zone))
                if found is None:
                    yield Refused("a host without the price of its GPUs", region, foreign=True)
                    continue
                rate, gpus = found
                on_demand, spot = rate.on_demand, rate.spot
                if (model, many, zone) in calendar:
                    yield Refused("a price of reserved GPUs, not on demand", region, foreign=True)
                    on_demand = None
                sums = (
                    (on_demand, spot)
                    if by_gpu
                    else (total(host.on_demand, on_demand), total(host.spot, spot))
                )
                host = _Prices(*sums, host.refused)
            yield from _offers(row, "gcp", row["InstanceType"].strip(), gpus, host)
        except BadRowError as error:
            yield Refused(str(error), region)


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


def _calendar_rates(
    rates: Mapping[tuple[str, int, str], tuple[_Prices, _Gpus]],
) -> set[tuple[str, int, str]]:
    """Where the on-demand column holds what reserved GPUs cost, by what one GPU costs elsewhere."""
    # And with it statistics, only to read a file
    from deepvm.catalog.public.rates import other_rates

    each: dict[str, dict[tuple[str, int, str], float]] = defaultdict(dict)
    for key, (prices, _) in rates.items():
        if prices.on_demand is not None:
            each[key[0]][key] = float(prices.on_demand) / key[1]
    return {key for found in each.values() for key in other_rates(found)}


SOURCE = SkyPilotCatalog()
