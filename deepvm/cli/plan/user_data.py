"""What the user adds to a catalog: measurements, and the limits of an account."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from deepvm.cli.output import note
from deepvm.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deepvm.core.cluster.instances import Catalog, Quota

_VCPUS = re.compile(r"([0-9][0-9,_ ]*(e[0-9]+)?(vcpus?|cpus?)?)?", re.IGNORECASE)
"""A number of vCPUs, or nothing, in place of a file."""


def measured(catalogs: Sequence[Catalog], tables: str, workload: str) -> tuple[Catalog, ...]:
    """Catalogs with the user's measurements, and notes about those that cannot be used.

    Raises:
        DataError: the tables cannot be read. RequestError: nothing was measured with the workload.
    """
    if tables == "auto" and not workload:
        from deepvm.catalog.measured.location import nothing_measured

        if nothing_measured():  # the tables' modules are slow to load
            return tuple(catalogs)
    from deepvm.catalog.measured.tables import open_tables

    found = open_tables(tables)
    if found is None and workload:
        note(f"--workload {workload} has no effect beside --tables paper")
    if found is None or not (found or workload):
        return tuple(catalogs)
    applied = tuple(found.apply(c, workload, among=catalogs) for c in catalogs)
    said = {text for catalog in catalogs for text in catalog.provenance.notes}
    for text in dict.fromkeys(t for catalog in applied for t in catalog.provenance.notes):
        if text not in said:
            note(text)
    if tables == "auto":
        return applied
    # Measurements that are not the user's own name their file.
    named = (replace(c, provenance=replace(c.provenance, measured_file=found.path)) for c in applied)
    return tuple(new if new.provenance.measured else old for new, old in zip(named, applied, strict=True))


def open_quotas(name: str | None, catalog: Catalog) -> tuple[Quota, ...] | None:
    """The account limits that ``--quota`` names: None for the catalog's own, none at all for ``none``, else a file's.

    Raises:
        DataError: the file cannot be read. RequestError: a number of vCPUs, which says neither family nor market.
    """
    if name is None:
        return None
    if name.lower() == "none":
        return ()
    from deepvm.catalog.store import load_quotas

    if _VCPUS.fullmatch(name.strip()) and not os.path.exists(name):
        vcpus = int(name) if name.isascii() and name.isdigit() and len(name) < 9 else 64
        family = next((i.quota_family for i in catalog if i.gpu is not None), "G and VT")
        row = {"family": family, "market": "spot", "vcpus": vcpus}
        example = json.dumps({"schema_version": "deepvm.quotas/1", "quotas": [row]})
        allowed = f"none, or a JSON file of limits for each family and market, such as {example}"
        raise RequestError("quota", name, allowed)
    quotas = load_quotas(name)
    families = sorted({i.quota_family for i in catalog})
    for family in dict.fromkeys(q.family for q in quotas):
        if family not in families:
            note(f"{name}: no type of catalog {catalog.name} counts against {family!r}, only {', '.join(families)}")
    return quotas
