"""The user's measurements in the catalogs that a command uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepvm.catalog.measured.tables import Tables
    from deepvm.core.cluster.instances import Catalog

Say = Callable[[str], None]


def own_tables(tables: str, workload: str = "") -> Tables | None:
    """The measurements that ``--tables`` names.

    None where there are none, and no workload asks for some.
    """
    if tables == "auto" and not workload:
        from deepvm.catalog.measured.storage import default_folder, nothing_measured

        folder = default_folder(os.environ)
        if folder is None or nothing_measured(folder):  # the tables' modules are slow to load
            return None
    from deepvm.catalog.measured.tables import open_tables

    found = open_tables(tables)
    if found or workload:
        return found
    return None


def with_figures(
    catalogs: Sequence[Catalog], tables: str, workload: str, say: Say
) -> tuple[Catalog, ...]:
    """Catalogs with measured eFLOPS and curves; says which cannot be used.

    Raises DataError, RequestError.
    """
    found = own_tables(tables, workload)
    if found is None:
        if workload:
            say(f"--workload {workload} has no effect with --tables paper")
        return tuple(catalogs)
    applied = [found.apply(c, workload, among=catalogs) for c in catalogs]
    return announced(catalogs, applied, tables, found.path, say)


def has_steps(catalog: Catalog) -> bool:
    """Whether steps of the user are in a catalog."""
    return any(m.kind == "steps" for m in catalog.provenance.measured)


def announced(
    catalogs: Sequence[Catalog], applied: Sequence[Catalog], tables: str, path: str, say: Say
) -> tuple[Catalog, ...]:
    """Catalogs to which measurements were applied; tables of others are named in them."""
    before = {text for catalog in catalogs for text in catalog.provenance.notes}
    for text in dict.fromkeys(text for catalog in applied for text in catalog.provenance.notes):
        if text not in before:
            say(text)
    if tables == "auto":
        return tuple(applied)
    named = []
    for catalog in applied:
        if catalog.provenance.measured:
            provenance = replace(catalog.provenance, measured_file=path)
            catalog = replace(catalog, provenance=provenance)
        named.append(catalog)
    return tuple(named)
