"""The clouds whose prices deepvm can look up: a folder, or an entry of `clouds.json`, each."""

from collections.abc import Sequence

from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud
from deepvm.catalog.signals.cloud import Cloud, CloudRules
from deepvm.core.cluster.instances import InstanceType, Market
from deepvm.core.spelling import refuse_unknown
from deepvm.io.user_dirs import read_data


def _gcp_quota(instance: InstanceType, count: int, market: Market) -> str:
    # https://docs.cloud.google.com/compute/resource-usage#gpu_quota, 2026
    if instance.gpu is None:
        return ""
    gpus = count * instance.gpu.count
    kind = f"{instance.gpu.name} GPUs"
    if market is Market.SPOT:
        kind = f"preemptible {kind}"
    return f"{gpus} {kind} in the region, {gpus} GPUs in all regions"


def _azure_quota(instance: InstanceType, count: int, market: Market) -> str:
    """From https://learn.microsoft.com/en-us/azure/virtual-machines/spot-vms, 2026."""
    vcpus = count * instance.vcpus
    if market is Market.SPOT:
        return f"{vcpus} spot vCPUs in the region"
    return f"{vcpus} vCPUs of the family of {instance.type_name}, and in the region"


DEFAULT_CLOUD = AwsCloud()  # The cloud of commands that name none
REGISTRY: dict[str, Cloud] = {DEFAULT_CLOUD.name: DEFAULT_CLOUD}
for _facts in read_data("clouds/clouds.json")["clouds"]:  # of public catalogs alone
    _facts["kinds"] = tuple(_facts["kinds"])
    _facts["rules"] = CloudRules(**_facts["rules"])
    REGISTRY[_facts["name"]] = Cloud(**_facts)
REGISTRY["gcp"].quota_words = _gcp_quota
REGISTRY["azure"].quota_words = _azure_quota

ALL = "all"
CATALOG_ENDINGS = (".json", ".csv")  # Endings of names of catalog files, in any case


def clouds_of(names: Sequence[str]) -> tuple[str, ...]:
    """Names of clouds, also several in one, ``aws,gcp``: each once, ``all`` as all of them."""
    known = (*REGISTRY, ALL)
    words = (word.strip() for name in names for word in name.lower().split(","))
    clouds = tuple(dict.fromkeys(filter(None, words)))
    for name in clouds:
        refuse_unknown("cloud", name, known, ", ")
    if ALL in clouds:
        return tuple(REGISTRY)
    return clouds


def cloud_of(catalog_name: str) -> Cloud:
    """The cloud whose market a catalog shows (``aws``, ``aws-us-east-1``)."""
    return REGISTRY.get(catalog_name.partition("-")[0], DEFAULT_CLOUD)


def region_in(catalog_name: str) -> str | None:
    """The region that a catalog's name means: empty for ``aws``, None for files and other names."""
    cloud, dash, region = catalog_name.partition("-")
    is_file = catalog_name.lower().endswith(CATALOG_ENDINGS)
    if cloud not in REGISTRY or is_file or (dash and not region):
        return None
    if region:
        return REGISTRY[cloud].check_region(region, "catalog")
    return ""
