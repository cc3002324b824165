"""The clouds whose prices deepvm can look up: a folder or table entry, and a name here, each."""

from __future__ import annotations

from collections.abc import Sequence

from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud
from deepvm.catalog.clouds.public_clouds import AZURE, GCP, LAMBDA, NEBIUS, RUNPOD
from deepvm.catalog.signals.cloud import Cloud
from deepvm.core.spelling import refuse_unknown

REGISTRY: dict[str, Cloud] = {
    cloud.name: cloud for cloud in (AwsCloud(), GCP, AZURE, LAMBDA, NEBIUS, RUNPOD)
}

DEFAULT_CLOUD = REGISTRY["aws"]
"""The cloud of commands that name none."""

ALL = "all"
CATALOG_ENDINGS = (".json", ".csv")
"""How the name of a catalog file may end, in any case."""


def clouds_of(names: Sequence[str]) -> tuple[str, ...]:
    """Names of clouds, also several in one, ``aws,gcp``: each once, ``all`` as all of them.

    Raises RequestError about the option ``cloud``.
    """
    known = (*REGISTRY, ALL)
    words = (word.strip() for name in names for word in name.lower().split(","))
    found = tuple(dict.fromkeys(filter(None, words)))
    for name in found:
        refuse_unknown("cloud", name, known, ", ")
    if ALL in found:
        return tuple(REGISTRY)
    return found


def cloud_of(catalog_name: str) -> Cloud:
    """The cloud whose market a catalog shows (``aws``, ``aws-us-east-1``).

    The default one for all other names.
    """
    return REGISTRY.get(catalog_name.partition("-")[0], DEFAULT_CLOUD)


def region_in(catalog_name: str) -> str | None:
    """The region that a catalog's name means: empty for ``aws``, None for files and other names.

    Raises:
        RequestError: ``aws-`` and something that is no region.
    """
    cloud, dash, region = catalog_name.partition("-")
    is_file = catalog_name.lower().endswith(CATALOG_ENDINGS)
    if cloud not in REGISTRY or is_file or (dash and not region):
        return None
    if region:
        return REGISTRY[cloud].check_region(region, "catalog")
    return ""
