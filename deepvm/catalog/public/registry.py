"""The registry of public catalogs: add a file beside this one and a line here."""

from __future__ import annotations

import pkgutil
from functools import cache
from typing import NamedTuple

from deepvm.catalog.public.source import PublicSource


class Entry(NamedTuple):
    """What a source is called in messages and in the provenance of prices, and ``module:Class``, loaded when used."""

    title: str
    home: str


SOURCES = {
    # the first one is asked where nobody else answers
    "skypilot": Entry("skypilot-catalog", "deepvm.catalog.public.skypilot:SkyPilotCatalog"),
    "gpuhunt": Entry("gpuhunt", "deepvm.catalog.public.gpuhunt:GpuHunt"),
}

TITLES = frozenset(entry.title for entry in SOURCES.values())


@cache
def source(name: str) -> PublicSource:
    """A source by its name, a key of ``SOURCES``."""
    found: PublicSource = pkgutil.resolve_name(SOURCES[name].home)()
    return found
