"""The catalogs of dstackai/gpuhunt: a zip file for each cloud, renewed every hour.

Its rows are of one market each.
"""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import replace

from deepvm.catalog.price_sources import PublicSource
from deepvm.catalog.public.download import DownloadedFile, PublicFile, download, public_file
from deepvm.catalog.public.integrity import other_rates
from deepvm.catalog.public.offers import (
    BadRowError,
    Cells,
    Offer,
    Rows,
    count,
    csv_rows,
    gpu_name,
    number,
    price,
)

_NEEDED = (
    "instance_name",
    "location",
    "price",
    "cpu",
    "memory",
    "gpu_count",
    "gpu_name",
    "gpu_memory",
    "spot",
)
_VERSION = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ARCH = {"x86": "x86_64", "arm": "arm64"}
_ZONE = re.compile(r"(.+[0-9])-[a-z][a-z0-9]*")
_COUNTRY = re.compile(r"[a-z]{2}")
_MAX_UNPACKED = 64 * 2**20


def fetch(source: PublicSource, cloud: str, total_s: float) -> DownloadedFile:
    """Download a cloud's prices: the newest version's number, then its file. Raises CloudError."""
    url = source.url(cloud)
    newest = public_file(source, f"{url}/version", total_s)
    version = download(newest).body.decode("ascii", "replace").strip()
    if not _VERSION.fullmatch(version):
        raise newest.unreadable("the file names no version of the catalog")
    packed = public_file(source, f"{url}/{version}/catalog.zip", total_s)
    archive = download(packed)
    return replace(archive, body=_unpacked(archive.body, packed))


def parse(body: bytes, cloud: str) -> Rows:
    """Every row of the file: those of the two markets become one offer each, joined later.

    Raises DataError: this is no file of the source, or not the whole of it.
    """
    table = Rows()
    table.read(csv_rows(body, _NEEDED), lambda row, region: _offer(row, cloud, region))
    if cloud == "gcp":
        table.offers = _without_other_rates(table.offers)
    return table


def _unpacked(body: bytes, file: PublicFile) -> bytes:
    """The only CSV file of an archive. Raises CloudError."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            (name,) = [n for n in archive.namelist() if n.endswith(".csv")]
            with archive.open(name) as stream:
                unpacked = stream.read(_MAX_UNPACKED + 1)  # the archive may lie about its size
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, ValueError):
        raise file.unreadable("the file is no zip archive with one CSV file") from None
    if len(unpacked) > _MAX_UNPACKED:
        raise file.unreadable(f"the file is larger than {_MAX_UNPACKED // 2**20} MiB")
    return unpacked


def _offer(row: Cells, cloud: str, region: str) -> Offer | None:
    if _is_foreign(row, cloud, region):
        return None
    zone = ""
    # GCP's rows are of zones, AWS's of regions (``us-east-1``), which look alike.
    of_zone = _ZONE.fullmatch(region)
    if cloud == "gcp" and of_zone:
        zone = region
        region = of_zone[1]
    name = row["instance_name"].replace(" ", "_")  # no command could hold blanks
    gpu = row["gpu_name"]
    if cloud == "runpod" and gpu:
        # RunPod's names are of GPUs, one for pods with any number of them.
        name = f"{row['gpu_count']}x_{name}"
    market = row["spot"].lower()
    cost = price(row["price"])
    if market not in ("true", "false") or cost is None:
        raise BadRowError("unreadable price or market")
    return Offer(
        instance_type=name,
        region=region,
        zone=zone,
        vcpus=count(row["cpu"], "number of vCPUs"),
        memory_gib=number(row["memory"], "memory"),
        gpu=gpu_name(gpu) if gpu else "",
        gpu_count=count(row["gpu_count"], "number of GPUs") if gpu else 0,
        gpu_memory_gib=number(row["gpu_memory"], "GPU memory") if gpu else None,
        arch=_ARCH.get(row.get("cpu_arch", ""), ""),
        on_demand=cost if market == "false" else None,
        spot=cost if market == "true" else None,
    )


def _is_foreign(row: Cells, cloud: str, region: str) -> bool:
    """Whether a row is not about a VM that deepvm can use."""
    flags = row.get("flags", "").lower()
    gpu = row["gpu_name"]
    name = row["instance_name"]
    if gpu and row.get("gpu_vendor", "").lower() not in ("", "nvidia"):
        return True
    # Prices of reserved GPUs, and clusters
    if "dws" in flags or "cluster" in flags or "edgegpu" in name:
        return True
    if cloud == "runpod":  # machines of others are known by their country
        return bool(_COUNTRY.fullmatch(region))
    # GPUs that are attached to a type of one name, with several GPUs and prices
    return cloud == "gcp" and gpu != "" and name.startswith("n1-")


def _without_other_rates(offers: list[Offer]) -> list[Offer]:
    per_gpu = {
        place: ((offer.gpu, offer.gpu_memory_gib), float(offer.on_demand) / offer.gpu_count)
        for place, offer in enumerate(offers)
        if offer.gpu and offer.on_demand is not None
    }
    wrong = other_rates(per_gpu)
    return [offer for place, offer in enumerate(offers) if place not in wrong]
