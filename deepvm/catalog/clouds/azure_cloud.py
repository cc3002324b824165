"""Microsoft Azure, as public catalogs list it."""

from __future__ import annotations

from deepvm.catalog.signals.cloud import WITHOUT_ZONES, Cloud, CloudRules
from deepvm.core.cluster.instances import InstanceType, Market


class AzureCloud(Cloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "azure"
    title = "Azure"
    kinds = WITHOUT_ZONES
    region_form = r"[a-z]+[a-z0-9]*"
    default_region = "eastus"
    region_variables = ("AZURE_DEFAULTS_LOCATION",)
    burstable = r"(Standard|Basic)_(B[0-9].*|A0)"
    rules = CloudRules(
        grace_s=30,
        has_cpu_vms=True,
        sources={
            "grace_s": (
                "https://learn.microsoft.com/en-us/azure/virtual-machines/spot-vms, 2026: up to"
                " 30 s"
            ),
            "has_cpu_vms": (
                "https://learn.microsoft.com/en-us/azure/virtual-machines/sizes/overview, 2026"
            ),
        },
    )

    def quota_words(self, instance: InstanceType, count: int, market: Market) -> str:
        """See :meth:`Cloud.quota_words`.

        From https://learn.microsoft.com/en-us/azure/virtual-machines/spot-vms, 2026.
        """
        vcpus = count * instance.vcpus
        if market is Market.SPOT:
            return f"{vcpus} spot vCPUs in the region"
        return f"{vcpus} vCPUs of the family of {instance.type_name}, and in the region"
