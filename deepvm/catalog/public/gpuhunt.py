"""The catalogs of dstackai/gpuhunt: a zip file for each cloud, renewed every hour.

Its rows are of one market each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.catalog.public.csv_rows import csv_rows
from deepvm.catalog.public.gpu_names import gpu_name
from deepvm.catalog.public.offer import BadRowError, Offer, Refused, count, number, price
from deepvm.catalog.public.source import DownloadTimeouts, PublicSource, Row

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
        found = [_offer(row, cloud) for row in csv_rows(body, _NEEDED)]
        if cloud == "gcp":
            found = list(_without_other_rates(found))
        yield from found


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
        start = body.lstrip()[:1]
        raise file.unreadable(
            "the file is a web page" if start == b"<" else "the file is no zip archive"
        ) from None


def _offer(row: Mapping[str, str] | None, cloud: str) -> Row:
    if row is None:
        return Refused("broken row")
    region, zone = _place(row["location"].strip(), cloud)
    try:
        foreign = _foreign(row, cloud, region)
        if foreign:
            return Refused(foreign, region, foreign=True)
        if row["spot"].strip().lower() not in ("true", "false"):
            raise BadRowError("unreadable market")
        spot, gpu = row["spot"].strip().lower() == "true", row["gpu_name"].strip()
        cost, name = price(row["price"]), _name(row, cloud)
        if cost is None:
            return Refused("no price", region, foreign=True)
        if not region or not name:
            raise BadRowError("no region" if name else "no name")
        return Offer(
            cloud=cloud,
            instance_type=name,
            region=region,
            zone=zone,
            vcpus=count(row["cpu"], "number of vCPUs"),
            memory_gib=number(row["memory"], "memory"),
            gpu=gpu_name(gpu) if gpu else "",
            gpu_count=count(row["gpu_count"], "number of GPUs") if gpu else 0,
            gpu_memory_gib=number(row["gpu_memory"], "GPU memory") if gpu else None,
            arch=_ARCH.get(row.get("cpu_arch", "").strip(), ""),
            on_demand=None if spot else cost,
            spot=cost if spot else None,
        )
    except BadRowError as error:
        return Refused(str(error), region)


def _name(row: Mapping[str, str], cloud: str) -> str:
    """As skypilot-catalog writes names: no command could hold those with blanks.

    RunPod's are of GPUs, one for pods with any number of them.
    """
    name, gpus = row["instance_name"].strip().replace(" ", "_"), row["gpu_count"].strip()
    return f"{gpus}x_{name}" if cloud == "runpod" and name and row["gpu_name"].strip() else name


def _foreign(row: Mapping[str, str], cloud: str, region: str) -> str:
    """Why a row is not about a VM that deepvm can use; empty if it is."""
    vendor = row.get("gpu_vendor", "").strip().lower()
    if row["gpu_name"].strip() and vendor not in ("", "nvidia"):
        return "another accelerator than NVIDIA's"
    if "dws" in row.get("flags", "").lower():
        return "a price of reserved GPUs, not on demand"
    if "edgegpu" in row["instance_name"]:
        return "a type of the edge"
    if cloud == "runpod" and _COUNTRY.fullmatch(region):
        return "machines of others, known by their country"
    if "cluster" in row.get("flags", "").lower():
        return "a cluster, not a VM"
    if cloud == "gcp" and row["gpu_name"].strip() and row["instance_name"].startswith("n1-"):
        return "GPUs that are attached to a type"  # of one name, with several GPUs and prices
    return ""


def _place(location: str, cloud: str) -> tuple[str, str]:
    """Region and zone: GCP's rows are of zones, AWS's of regions (``us-east-1``), which look alike."""
    found = _ZONE.fullmatch(location) if cloud == "gcp" else None
    if found:
        return found[1].lower(), location
    return (location.lower(), "")


def _without_other_rates(rows: list[Row]) -> Iterator[Row]:
    from deepvm.catalog.public.rates import other_rates

    each: dict[tuple[str, float | None], dict[int, float]] = {}
    for place, row in enumerate(rows):
        if isinstance(row, Offer) and row.gpu and row.on_demand is not None:
            each.setdefault((row.gpu, row.gpu_memory_gib), {})[place] = (
                float(row.on_demand) / row.gpu_count
            )
    wrong = {place for found in each.values() for place in other_rates(found)}
    for place, row in enumerate(rows):
        if place in wrong and isinstance(row, Offer):
            yield Refused("a price of reserved GPUs, not on demand", row.region, foreign=True)
        else:
            yield row


SOURCE = GpuHunt()
