"""The public catalogs of prices: add an entry here, and a module of its name in `public`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import NamedTuple

MAX_HISTORY_DAYS = 90
"""How long AWS keeps spot prices."""


class PublicSource(NamedTuple):
    """One public catalog.

    Attributes:
        name: what ``--source`` calls it. title: in messages.
        licence: of the rows; why they are never part of deepvm.
        address: where it is. variable: of the environment, which names a copy or switches it off.
        period_s: how often its publisher renews it: asking more often brings nothing new.
        paths: by cloud, the part of the address that is the cloud's own.
        ended: clouds whose file is no longer renewed, and since when.
    """

    name: str
    title: str
    licence: str
    address: str
    variable: str
    period_s: int
    paths: Mapping[str, str]
    ended: Mapping[str, datetime] = {}

    def url(self, cloud: str) -> str:
        """Where a cloud's prices are."""
        return f"{(os.environ.get(self.variable) or self.address).rstrip('/')}/{self.paths[cloud]}"


_SKYPILOT = PublicSource(
    name="skypilot",
    title="skypilot-catalog",
    licence="no licence was found (2026-11): fetched by each user, never part of deepvm",
    address="https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/master/catalogs",
    variable="DEEPVM_SKYPILOT_URL",
    period_s=7 * 3600,
    # Version 7, without Azure, replaced 6 (pull request 116)
    ended={"azure": datetime(2025, 4, 28, tzinfo=timezone.utc)},
    paths={
        "aws": "v8/aws/vms.csv",
        "gcp": "v8/gcp/vms.csv",
        "azure": "v6/azure/vms.csv",  # later versions have no file of Azure
        "lambda": "v8/lambda/vms.csv",
        "nebius": "v8/nebius/vms.csv",
        "runpod": "v8/runpod/vms.csv",
    },
)
_GPUHUNT = PublicSource(
    name="gpuhunt",
    title="gpuhunt",
    licence="the tool is under MPL-2.0; its catalog is fetched by each user, never part of deepvm",
    address="https://dstack-gpu-pricing.s3.eu-west-1.amazonaws.com/v3",
    variable="DEEPVM_GPUHUNT_URL",
    period_s=3600,
    paths={
        "aws": "aws",
        "gcp": "gcp",
        "azure": "azure",
        "lambda": "lambdalabs",
        "nebius": "nebius",
        "runpod": "runpod",
    },
)
SOURCES = {source.name: source for source in (_SKYPILOT, _GPUHUNT)}
"""By name, in the order in which they are asked."""

TITLES = frozenset(source.title for source in SOURCES.values())
ADDRESS_VARIABLES = tuple(source.variable for source in SOURCES.values())
