"""The registry of clouds: add a module or a folder beside this file and a line here."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence

from deepvm.catalog.signals.cloud import Cloud
from deepvm.core.spelling import one_of
from deepvm.errors import RequestError

CLOUDS = {
    "aws": "deepvm.catalog.clouds.aws.aws_cloud:AwsCloud",
    "gcp": "deepvm.catalog.clouds.gcp_cloud:GcpCloud",
    "azure": "deepvm.catalog.clouds.azure_cloud:AzureCloud",
    "lambda": "deepvm.catalog.clouds.lambda_cloud:LambdaCloud",
    "nebius": "deepvm.catalog.clouds.nebius_cloud:NebiusCloud",
    "runpod": "deepvm.catalog.clouds.runpod_cloud:RunPodCloud",
}

REGISTRY: dict[str, Cloud] = {name: pkgutil.resolve_name(home)() for name, home in CLOUDS.items()}

DEFAULT_CLOUD = REGISTRY["aws"]
"""The cloud of commands that name none."""


ALL = "all"


def clouds_of(names: Sequence[str]) -> tuple[str, ...]:
    """Names of clouds, also several in one, ``aws,gcp``: each once, ``all`` as all of them.

    Raises RequestError about the option ``cloud``.
    """
    known = (*CLOUDS, ALL)
    words = (word.strip() for name in names for word in name.lower().split(","))
    found = tuple(dict.fromkeys(filter(None, words)))
    for name in found:
        if name not in known:
            raise RequestError("cloud", name, one_of(name, known, ", "))
    if ALL in found:
        return tuple(CLOUDS)
    return found


def cloud_of(catalog_name: str) -> Cloud:
    """The cloud whose market a catalog shows (``aws``, ``aws-us-east-1``).

    The default one for all other names.
    """
    return REGISTRY.get(catalog_name.partition("-")[0], DEFAULT_CLOUD)


def region_in(catalog_name: str) -> str | None:
    """The region that a catalog's name means: empty for ``aws``, None when the name is no cloud's.

    Raises:
        RequestError: ``aws-`` and something that is no region.
    """
    cloud, dash, region = catalog_name.partition("-")
    if cloud not in REGISTRY or (dash and not region):
        return None
    if region:
        return REGISTRY[cloud].check_region(region, "catalog")
    return ""
