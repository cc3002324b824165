"""Find, load and save catalogs: embedded ones by name, the user's by file."""

import json
import os
from dataclasses import replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any

from deepvm.catalog.clouds import CATALOG_ENDINGS, REGISTRY, cloud_of, region_in
from deepvm.catalog.serialization import AS_SHOWN, build_catalog, build_quotas, document_of
from deepvm.core.cluster.instances import Catalog, Quota
from deepvm.core.spelling import did_you_mean
from deepvm.documents.formats.json import format_document
from deepvm.errors import CatalogNotFoundError, RequestError
from deepvm.io.atomic_write import write_bytes
from deepvm.io.safe_read import StrPath, read_text
from deepvm.io.user_dirs import data_folder

DEFAULT_CATALOG = "aws"

_MAX_WARNINGS = 4


@lru_cache(maxsize=1)
def embedded_names() -> tuple[str, ...]:
    """Names of the catalogs that come with deepvm, sorted."""
    files = data_folder().glob("*.json")
    return tuple(sorted(p.stem for p in files if not p.name.endswith(".schema.json")))


def load_catalog(name_or_path: StrPath = DEFAULT_CATALOG, **market: Any) -> Catalog:
    """Load AWS's market, an embedded catalog, or a file that ends in ``.json`` or ``.csv``.

    Args:
        name_or_path: ``aws`` for the user's region, ``aws-us-west-2`` for another, ``paper``,
            ``simulated``, or a file.
        **market: for AWS only, by keyword, with their defaults:

            - ``prices="auto"``: fresh cache, AWS if there are credentials, else expired cache or
              embedded snapshot, whichever is newer;
              ``"live"``: AWS must answer; ``"snapshot"``: what came with deepvm;
            - ``offline=False``: never open a socket;
            - ``profile=""``: of AWS's configuration;
            - ``zone=""``: id or name of the only zone to use; empty for all of them;
            - ``price_basis="current"``, or ``"p50"``, ``"p95"``, ``"max"`` of the spot prices of
              ``days=30`` days;
            - ``source="auto"``: public catalogs where the cloud does not answer; the name of one,
              such as ``"skypilot"``: that one and nothing else; ``"none"``;
            - ``price_history=""``: a clone of skypilot-catalog, whose stored versions have these
              prices, without AWS;
            - ``network="peak"``, or ``"baseline"``: which bandwidth is used (for every kind of
              catalog).

    Raises:
        RequestError: an option's value cannot be used.
        CloudError: AWS had to answer and did not.
        MissingDataError: nothing is known of the region.
        CatalogNotFoundError: no embedded catalog has this name and no file either; suggests similar
            names.
        CatalogFormatError: the file cannot be read or is not a valid catalog; lists every problem
            with its place.
    """
    name = os.fspath(name_or_path)
    region = region_in(name)
    if region is not None:
        from deepvm.catalog.market.build_catalog import MarketRequest
        from deepvm.catalog.market.open_markets import open_markets

        regions = []
        if region:
            regions = [region]
        return open_markets(regions, MarketRequest(**market), cloud=cloud_of(name))[0]
    network = market.get("network")
    if network not in (None, "peak", "baseline"):
        raise RequestError("network", network, "peak or baseline")
    catalog = _load(name)
    if zone := market.get("zone"):
        catalog = catalog.within_zone(zone)
    if network == "baseline":
        return catalog.sustained()
    return catalog


def _load(name: str) -> Catalog:
    if name in embedded_names():
        text = (data_folder() / f"{name}.json").read_text(encoding="utf-8")
        document = json.loads(text, parse_float=Decimal)
        return build_catalog(document, kind="embedded", name=name)
    path = Path(name)
    if path.suffix.lower() in CATALOG_ENDINGS:
        try:
            return _catalog_of(read_text(path, AS_SHOWN), path)
        except FileNotFoundError:
            reason = "no such file"
    elif os.path.isdir(name):
        reason = "this is a folder"
    elif os.path.basename(name) != name or os.path.exists(name):
        reason = "this file ends neither in .json nor in .csv"
    else:
        meant = did_you_mean(name, (*REGISTRY, *catalog_names()))
        reason = f"no embedded catalog has this name{f' ({meant})' if meant else ''}"
    raise CatalogNotFoundError(name, reason, (*REGISTRY, *catalog_names()))


def catalog_names() -> tuple[str, ...]:
    """The catalogs that can be loaded without network, sorted."""
    snapshots = (
        f"{cloud.name}-{r}" for cloud in REGISTRY.values() for r in cloud.snapshot_regions()
    )
    return tuple(sorted((*embedded_names(), *snapshots)))


def every_type() -> Catalog:
    """All types that come with deepvm; AWS's definition of a type wins."""
    names = sorted(catalog_names(), key=lambda n: not n.startswith("aws"))
    types = {i.name: i for name in reversed(names) for i in load_catalog(name, prices="snapshot")}
    return Catalog("all that come with deepvm", tuple(types.values()))


def load_quotas(path: StrPath) -> tuple[Quota, ...]:
    """Load limits from a JSON file. Raises CatalogFormatError."""
    from deepvm.catalog.catalog_files import QUOTAS

    return build_quotas(QUOTAS.read(path).model_dump()["quotas"])


def format_catalog(catalog: Catalog, ending: str) -> tuple[str, tuple[str, ...]]:
    """Format a catalog as ``.json``, which carries everything, or ``.csv``."""
    if ending == ".csv":
        from deepvm.catalog.catalog_files import format_csv

        return format_csv(catalog)
    return format_document(document_of(catalog)), ()


def save_catalog(catalog: Catalog, path: StrPath) -> tuple[str, ...]:
    """Write a ``.json`` or ``.csv``, whole or not at all; returns what its format cannot hold."""
    file = Path(path)
    ending = file.suffix.lower()
    if ending not in CATALOG_ENDINGS:
        raise RequestError("path", str(file), "a file name that ends in .json or .csv")
    text, left_out = format_catalog(catalog, ending)
    write_bytes(file, text.encode())
    return left_out


def _catalog_of(text: str, path: Path) -> Catalog:
    from deepvm.catalog.catalog_files import CSV_CATALOG, JSON_CATALOG
    from deepvm.catalog.market.build_catalog import file_doubts

    form = JSON_CATALOG
    if path.suffix.lower() == ".csv":
        form = CSV_CATALOG
    tree = form.tree(text, path)
    document = form.validated(tree, path).model_dump(exclude_unset=True)
    # For documents without a name: the file's name, with undecodable bytes escaped.
    catalog = build_catalog(document, name=path.stem.encode(errors="backslashreplace").decode())
    doubts = file_doubts(catalog)
    warnings = [f"{path}:{tree.line(key)}: {tree.label(key)}: {doubt}" for key, doubt in doubts]
    more = len(warnings) - _MAX_WARNINGS
    if more > 0:
        warnings[_MAX_WARNINGS:] = [f"{path}: {more} more prices like these"]
    return replace(catalog, provenance=replace(catalog.provenance, doubts=tuple(warnings)))
