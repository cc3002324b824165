"""The registry of clouds: add a folder beside this file and a line here."""

from __future__ import annotations

import pkgutil

from deepvm.catalog.signals.cloud import Cloud

CLOUDS = {
    "aws": "deepvm.catalog.clouds.aws.aws_cloud:AwsCloud",
}

REGISTRY: dict[str, Cloud] = {name: pkgutil.resolve_name(home)() for name, home in CLOUDS.items()}

DEFAULT_CLOUD = REGISTRY["aws"]
"""The cloud of commands that name none."""


def cloud_of(catalog_name: str) -> Cloud:
    """The cloud whose market a catalog shows (``aws``, ``aws-us-east-1``); the default one for all other names."""
    return REGISTRY.get(catalog_name.partition("-")[0], DEFAULT_CLOUD)


def region_in(catalog_name: str) -> str | None:
    """The region that a catalog's name means: empty for ``aws``, None when the name is no cloud's.

    Raises:
        RequestError: ``aws-`` and something that is no region.
    """
    cloud, dash, region = catalog_name.partition("-")
    if cloud not in REGISTRY or (dash and not region):
        return None
    return REGISTRY[cloud].check_region(region, "catalog") if region else ""
