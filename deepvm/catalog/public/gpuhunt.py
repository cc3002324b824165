"""The catalogs of dstackai/gpuhunt: a zip file for each cloud, renewed every hour.

Its rows are of one market each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.catalog.public.csv_rows import csv_rows
from deepvm.catalog.public.gpu_names import gpu_name
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
)
from deepvm.catalog.public.source import DownloadTimeouts, PublicSource

if TYPE_CHECKING:
    from deepvm.catalog.public.download import Downloaded, PublicFile
    from deepvm.catalog.public.source import Get

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
_MOST_UNPACKED = 64 * 2**20
_CHUNK = 2**20


class GpuHunt(PublicSource):
    """See :class:`PublicSource`."""

    name = "gpuhunt"
    licence = "the tool is under MPL-2.0; its catalog is fetched by each user, never part of deepvm"
    address = "https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3"
    period_s = 3600
    paths = {  # noqa: RUF012
        "aws": "aws",
        "gcp": "gcp",
        "azure": "azure",
        "lambda": "lambdalabs",
        "nebius": "nebius",
        "runpod": "runpod",
    }

    def fetch(self, cloud: str, get: Get, patience: DownloadTimeouts) -> Downloaded:
        """See :meth:`PublicSource.fetch`: the newest version's number first, then its file."""
        place = self.url(cloud)
        newest = replace(self.file(f"{place}/version", cloud, patience), most_bytes=4096)
        version = get(newest).body.decode("ascii", "replace").strip()
        if not _VERSION.fullmatch(version):
            raise newest.unreadable("the file names no version of the catalog")
        packed = self.file(f"{place}/{version}/catalog.zip", cloud, patience)
        found = get(packed)
        return replace(found, body=_unpacked(found.body, packed))

    def parse(self, body: bytes, cloud: str) -> Iterator[Row]:
        """See :meth:`PublicSource.parse`.

        Rows of the two markets become one offer each, which are joined later.
        """

        def read(row: Cells, region: str) -> Iterator[Row]:
            yield _offer(row, cloud, region)

        rows = rows_of(csv_rows(body, _NEEDED), read, lambda row: _place(row, cloud)[0])
        return _without_other_rates(list(rows)) if cloud == "gcp" else rows


def _unpacked(body: bytes, file: PublicFile) -> bytes:
    """The only CSV file of an archive, cut off by nothing but its end. Raises CloudError."""
    import io
    import zipfile

    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            names = [n for n in archive.namelist() if n.endswith(".csv")]
            if len(names) != 1:
                raise file.unreadable(f"the archive has {len(names)} CSV files in place of one")
            unpacked = bytearray()
            with archive.open(names[0]) as stream:
                while piece := stream.read(_CHUNK):
                    unpacked += piece
                    if len(unpacked) > _MOST_UNPACKED:  # whatever the archive says of its size
                        raise file.unreadable(
                            f"the file is larger than {_MOST_UNPACKED // 2**20} MiB"
                        )
            return bytes(unpacked)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, OSError, ValueError):
        raise file.unreadable("the file is no zip archive") from None


def _offer(row: Cells, cloud: str, region: str) -> Offer:
    foreign = _foreign(row, cloud, region)
    if foreign:
        raise ForeignRowError(foreign)
    market = row["spot"].lower()
    gpu = row["gpu_name"]
    if market not in ("true", "false"):
        raise BadRowError("unreadable market")
    cost = price(row["price"])
    name = _name(row, cloud)
    if cost is None:
        raise ForeignRowError("no price")
    if not region or not name:
        raise BadRowError("no region or no name")
    on_demand, spot = (cost, None) if market == "false" else (None, cost)
    return Offer(
        cloud=cloud,
        instance_type=name,
        region=region,
        zone=_place(row, cloud)[1],
        vcpus=count(row["cpu"], "number of vCPUs"),
        memory_gib=number(row["memory"], "memory"),
        gpu=gpu_name(gpu) if gpu else "",
        gpu_count=count(row["gpu_count"], "number of GPUs") if gpu else 0,
        gpu_memory_gib=number(row["gpu_memory"], "GPU memory") if gpu else None,
        arch=_ARCH.get(row.get("cpu_arch", ""), ""),
        on_demand=on_demand,
        spot=spot,
    )


def _name(row: Cells, cloud: str) -> str:
    """As skypilot-catalog writes names: no command could hold those with blanks.

    RunPod's are of GPUs, one for pods with any number of them.
    """
    name = row["instance_name"].replace(" ", "_")
    return f"{row['gpu_count']}x_{name}" if cloud == "runpod" and name and row["gpu_name"] else name


def _foreign(row: Cells, cloud: str, region: str) -> str:
    """Why a row is not about a VM that deepvm can use; empty if it is."""
    flags = row.get("flags", "").lower()
    gpu = row["gpu_name"]
    name = row["instance_name"]
    if gpu and row.get("gpu_vendor", "").lower() not in ("", "nvidia"):
        return "another accelerator than NVIDIA's"
    if "dws" in flags:
        return "a price of reserved GPUs, not on demand"
    if "edgegpu" in name:
        return "a type of the edge"
    if cloud == "runpod" and _COUNTRY.fullmatch(region):
        return "machines of others, known by their country"
    if "cluster" in flags:
        return "a cluster, not a VM"
    if cloud == "gcp" and gpu and name.startswith("n1-"):
        return "GPUs that are attached to a type"  # of one name, with several GPUs and prices
    return ""


def _place(row: Cells, cloud: str) -> tuple[str, str]:
    """Region and zone: GCP's rows are of zones, AWS's of regions (``us-east-1``), which look alike."""
    location = row["location"]
    zone = _ZONE.fullmatch(location) if cloud == "gcp" else None
    return (zone[1].lower(), location) if zone else (location.lower(), "")


def _without_other_rates(rows: list[Row]) -> Iterator[Row]:
    from deepvm.catalog.public.rates import other_rates

    per_gpu: dict[tuple[str, float | None], dict[int, float]] = {}
    for place, row in enumerate(rows):
        if isinstance(row, Offer) and row.gpu and row.on_demand is not None:
            prices = per_gpu.setdefault((row.gpu, row.gpu_memory_gib), {})
            prices[place] = float(row.on_demand) / row.gpu_count
    wrong = {place for prices in per_gpu.values() for place in other_rates(prices)}
    for place, row in enumerate(rows):
        if place in wrong:
            yield Refused("a price of reserved GPUs, not on demand", row.region, foreign=True)
        else:
            yield row


SOURCE = GpuHunt()
