"""The public catalogs of prices, which ``data/clouds/public_catalogs.json`` describes."""

import os
from collections.abc import Mapping
from typing import NamedTuple

from deepvm.io.user_dirs import read_data

MAX_HISTORY_DAYS = 90  # How long AWS keeps spot prices


class PublicSource(NamedTuple):
    """One public catalog. ``licence``: why its rows are never part of deepvm."""

    name: str
    title: str
    licence: str
    address: str
    variable: str
    period_s: int
    paths: Mapping[str, str]
    columns: Mapping[str, str]
    optional: Mapping[str, str]
    ended: Mapping[str, str] = {}

    def url(self, cloud: str) -> str:
        return f"{(os.environ.get(self.variable) or self.address).rstrip('/')}/{self.paths[cloud]}"


# By name, in the order in which they are asked
SOURCES = {
    about["name"]: PublicSource(**about)
    for about in read_data("clouds/public_catalogs.json")["sources"]
}
TITLES = frozenset(source.title for source in SOURCES.values())
ADDRESS_VARIABLES = tuple(source.variable for source in SOURCES.values())
