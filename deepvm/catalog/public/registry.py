"""The registry of public catalogs: add a file beside this one and a line here."""

from __future__ import annotations

import pkgutil
from functools import cache

from deepvm.catalog.public.source import PublicSource

SOURCES = {
    # the first one is asked where nobody else may be
    "skypilot": "deepvm.catalog.public.skypilot:SkyPilotCatalog",
    "gpuhunt": "deepvm.catalog.public.gpuhunt:GpuHunt",
}


@cache
def source(name: str) -> PublicSource:
    """A source by its name, a key of ``SOURCES``."""
    found: PublicSource = pkgutil.resolve_name(SOURCES[name])()
    return found


@cache
def titles() -> frozenset[str]:
    """What the sources are called in the provenance of prices."""
    return frozenset(source(name).title for name in SOURCES)
