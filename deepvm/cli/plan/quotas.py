"""The account limits that ``--quota`` names."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from deepvm.cli.output import note
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from deepvm.core.cluster.instances import Catalog, Quota


_VCPUS = re.compile(r"([0-9][0-9,_ ]*(e[0-9]+)?(vcpus?|cpus?)?)?", re.IGNORECASE)
"""A number of vCPUs, or nothing, in place of a file."""


def open_quotas(name: str | None, catalog: Catalog) -> tuple[Quota, ...] | None:
    """None for the catalog's own quotas, an empty tuple for ``none``, else those of a file."""
    if name is None:
        return None
    if name.lower() == "none":
        return ()
    from deepvm.catalog.store import load_quotas

    if _looks_like_vcpus(name):
        raise _no_file_of_quotas(name, catalog)
    quotas = load_quotas(name)
    families = sorted({i.quota_family for i in catalog})
    for family in dict.fromkeys(q.family for q in quotas):
        if family not in families:
            note(f"{name}: no type of catalog {catalog.name} counts against {family!r}, only {', '.join(families)}")
    return quotas


def _looks_like_vcpus(name: str) -> bool:
    return bool(_VCPUS.fullmatch(name.strip())) and not os.path.exists(name)


def _no_file_of_quotas(name: str, catalog: Catalog) -> Exception:
    """Limits are of a family and a market each; a number alone says neither."""
    vcpus = int(name) if name.isascii() and name.isdigit() and len(name) < 9 else 64
    family = next((i.quota_family for i in catalog if i.gpu is not None), "G and VT")
    row = {"family": family, "market": "spot", "vcpus": vcpus}
    example = json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [row]})
    return RequestError("quota", name, f"none, or a JSON file of limits for each family and market, such as {example}")
