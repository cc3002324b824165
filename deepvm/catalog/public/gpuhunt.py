"""The catalogs of dstackai/gpuhunt: a zip file for each cloud, renewed every hour."""

import io
import re
import zipfile
from dataclasses import replace

from deepvm.catalog.price_sources import SOURCES, PublicSource
from deepvm.catalog.public.download import DownloadedFile, PublicFile, download, public_file
from deepvm.catalog.public.offers import BadRowError, Cells, Rows, csv_rows, without_reserved

_MARKETS = {"false": "on_demand", "true": "spot"}  # Of the column ``spot``
_VERSION = re.compile(r"[A-Za-z0-9_-]{1,80}")
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
    """Every row of the file: those of the two markets become one offer each, joined later."""
    table = Rows()
    table.read(csv_rows(body, SOURCES["gpuhunt"]), lambda row: _cells(row, cloud))
    if cloud == "gcp":
        offers = without_reserved(table.offers, lambda o: (o.gpu, o.gpu_memory_gib))
        table.offers = [o for o in offers if o.on_demand or o.spot]
    return table


def _unpacked(body: bytes, file: PublicFile) -> bytes:
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


def _cells(row: Cells, cloud: str) -> Cells | None:
    """A row in the terms of all sources; None: it is not about a VM that deepvm can use."""
    if _is_foreign(row, cloud):
        return None
    market = _MARKETS.get(row["spot"].lower())
    if market is None or not row["price"]:
        raise BadRowError("unreadable price or market")
    row |= {"on_demand": "", "spot": ""} | {market: row["price"]}
    # A name on a command line has no spaces
    row["instance_type"] = row["instance_type"].replace(" ", "_")
    if cloud == "runpod" and row["gpu"]:
        # RunPod's names are of GPUs, one for pods with any number of them.
        row["instance_type"] = f"{row['gpu_count']}x_{row['instance_type']}"
    # GCP's rows are of zones, AWS's of regions (``us-east-1``), which look alike.
    of_zone = _ZONE.fullmatch(row["region"])
    if cloud == "gcp" and of_zone:
        row |= {"zone": row["region"], "region": of_zone[1]}
    return row


def _is_foreign(row: Cells, cloud: str) -> bool:
    flags = row.get("flags", "").lower()
    gpu = row["gpu"]
    name = row["instance_type"]
    if gpu and row.get("gpu_vendor", "").lower() not in ("", "nvidia"):
        return True
    # Prices of reserved GPUs, and clusters
    if "dws" in flags or "cluster" in flags or "edgegpu" in name:
        return True
    if cloud == "runpod":  # machines of others are known by their country
        return bool(_COUNTRY.fullmatch(row["region"]))
    # GPUs that are attached to N1 types: several numbers of GPUs and prices under one name
    return cloud == "gcp" and gpu != "" and name.startswith("n1-")
