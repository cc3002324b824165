"""The catalogs of skypilot-org/skypilot-catalog."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from deepvm.catalog.price_sources import SOURCES, PublicSource
from deepvm.catalog.public.download import DownloadedFile, download, public_file
from deepvm.catalog.public.offers import (
    BadRowError,
    Cells,
    Offer,
    Rows,
    csv_rows,
    memory_in_name,
    total,
    without_reserved,
)
from deepvm.catalog.signals.signal import price_text
from deepvm.io.user_dirs import read_data

# Its GCP file writes 700 where a TPU has no price, so that SkyPilot looks elsewhere first
_NO_PRICE = {"700", "700.0"}
_FOREIGN = re.compile(
    r"tpu-|trainium|inferentia|gaudi|radeon|mi[0-9]{2,3}|qualcomm|^u30$|xilinx|^v520$|amd",
    re.IGNORECASE,
)
_SHARE = re.compile(r"0\.[0-9]*[1-9][0-9]*")  # Of a GPU
_MIB_PER_GIB = 1024

_GCP_WITH_GPUS = re.compile(r"(a[2-9]x?|g[2-9])-.*")
# Whose host costs 0 in its own row: Google sells the VM by its GPUs, as in gpuhunt's fetcher
_GCP_SOLD_BY_GPU = "a4-"


def fetch(source: PublicSource, cloud: str, total_s: float) -> DownloadedFile:
    """Download a cloud's prices. Raises CloudError."""
    return download(public_file(source, source.url(cloud), total_s))


def parse(body: bytes, cloud: str) -> Rows:
    """Every row of the file."""
    rows = csv_rows(body, SOURCES["skypilot"])
    if cloud == "gcp":
        return _gcp(rows)
    table = Rows()
    table.read(rows, lambda row: _cells(row, cloud))
    return table


def _cells(row: Cells, cloud: str) -> Cells | None:
    """A row in the terms of all sources; None unless it is of a type, and of whole NVIDIA GPUs."""
    gpu = row["gpu"]
    if not row["instance_type"] or _FOREIGN.search(gpu) or _SHARE.fullmatch(row["gpu_count"]):
        return None
    if gpu:
        row["gpu_memory_gib"] = _memory(row.get("gpu_info", "")) or memory_in_name(gpu)
    for market in ("on_demand", "spot"):
        if row[market] in _NO_PRICE:
            row[market] = ""
    if cloud == "runpod":
        # Its regions are countries, its zones data centres, and a cluster is in one of these.
        row |= {"region": row.get("zone", "").lower(), "zone": ""}
        # It writes the on-demand price into both columns: nothing is known of the other market.
        if price_text(row["spot"]) == price_text(row["on_demand"]):
            row["spot"] = ""
    return row


@lru_cache(maxsize=1024)
def _memory(info: str) -> str:
    if not info.startswith("{"):
        return ""
    try:
        size = float(ast.literal_eval(info)["Gpus"][0]["MemoryInfo"]["SizeInMiB"] or 0)
    except (ValueError, SyntaxError, LookupError, TypeError, MemoryError, RecursionError):
        raise BadRowError("unreadable GPU memory") from None
    if size <= 0:
        return ""
    # RunPod's says 80 for 80 GiB, in a column of MiB.
    if size >= _MIB_PER_GIB:
        size /= _MIB_PER_GIB
    return str(size)


def _gcp(rows: Iterable[Cells]) -> Rows:
    hosts: list[Cells] = []

    def read_gpus(row: Cells) -> Cells | None:
        if not row["gpu"]:
            hosts.append(row)
            return None
        # A row of GPUs has no vCPUs: those are in the row of the host.
        return _cells(row | {"instance_type": row["gpu"], "vcpus": "1"}, "gcp")

    table = Rows()
    table.read(rows, read_gpus)
    gpus: dict[tuple[str, int, str], Offer] = {}
    for offer in without_reserved(table.offers, lambda gpus: gpus.instance_type):
        gpus.setdefault((offer.instance_type, offer.gpu_count, offer.zone), offer)
    machines = Rows(refused=table.refused)
    machines.read(hosts, lambda row: _with_gpus(row, gpus))
    return machines


def _with_gpus(row: Cells, gpus_of_zones: Mapping[tuple[str, int, str], Offer]) -> Cells | None:
    """A type of GCP; None if it has GPUs that plans cannot use, or that have no price."""
    host = _cells(row, "gcp")
    model, many = gcp_gpus(row["instance_type"])
    if host is None or many < 0:
        return None
    if not model:
        return host
    gpus = gpus_of_zones.get((model, many, host.get("zone", "")))
    if gpus is None:  # the host's price alone is not that of the VM
        return None
    on_demand, spot = gpus.on_demand, gpus.spot
    if not host["instance_type"].startswith(_GCP_SOLD_BY_GPU):
        texts = (host["on_demand"], host["spot"])
        prices = [*map(price_text, texts)]
        if any(texts) and not any(prices):
            raise BadRowError("unreadable price")
        on_demand, spot = total(prices[0], on_demand), total(prices[1], spot)
    cells = {"gpu": model, "gpu_count": str(many), "gpu_memory_gib": str(gpus.gpu_memory_gib or "")}
    return {**host, **cells, "on_demand": on_demand or "", "spot": spot or ""}


def gcp_gpus(name: str) -> tuple[str, int]:
    """The file's name of the GPUs that a type of GCP has, and how many."""
    table = _gcp_types()
    for pattern, model in table["gpus_in_name"].items():
        match = re.fullmatch(pattern, name)
        if match:
            return model, int(match[1])
    family, _, vcpus = name.rpartition("-")
    if family in table["vcpus_in_name"]:
        types = table["vcpus_in_name"][family]
        return types["gpu"], types["gpus_of_vcpus"].get(vcpus, -1)
    # The host's price alone would make a new type with GPUs the cheapest of all CPU types.
    return "", -1 if _GCP_WITH_GPUS.fullmatch(name) else 0


@lru_cache(maxsize=1)
def _gcp_types() -> Any:
    return read_data("clouds/gcp_gpus.json")
