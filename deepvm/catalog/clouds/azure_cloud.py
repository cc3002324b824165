"""Microsoft Azure, as public catalogs list it."""

from __future__ import annotations

from deepvm.catalog.clouds.listed_cloud import WITHOUT_ZONES, ListedCloud
from deepvm.catalog.signals.cloud import CloudRules

_SPOT = "https://learn.microsoft.com/en-us/azure/virtual-machines/spot-vms, 2026"


class AzureCloud(ListedCloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "azure"
    title = "Azure"
    kinds = WITHOUT_ZONES
    region_form = r"[a-z]+[a-z0-9]*"
    default_region = "eastus"
    region_variables = ("AZURE_DEFAULTS_LOCATION",)
    burstable = r"(Standard|Basic)_(B[0-9].*|A0)"
    regions = (
        *("centralus", "eastus", "eastus2", "northcentralus", "southcentralus", "westcentralus", "westus", "westus2"),
        *("westus3", "canadacentral", "canadaeast", "brazilsouth", "mexicocentral", "northeurope", "westeurope"),
        *("francecentral", "germanywestcentral", "italynorth", "norwayeast", "polandcentral", "spaincentral"),
        *("swedencentral", "switzerlandnorth", "uksouth", "ukwest", "israelcentral", "qatarcentral", "uaenorth"),
        *("southafricanorth", "australiaeast", "australiasoutheast", "centralindia", "southindia", "eastasia"),
        *("japaneast", "japanwest", "koreacentral", "koreasouth", "southeastasia", "newzealandnorth"),
    )
    rules = CloudRules(
        notice_s=30,
        grace_s=0,
        spot="a market with a price in each region; VMs are evicted when they are needed, each type with its rate",
        max_life_h=None,
        minimum_billing_s=60,
        quotas="vCPUs of a family and in all for each region; one limit for spot vCPUs of all families",
        has_cpu_vms=True,
        sources={
            "notice_s": f"{_SPOT}: up to 30 seconds, best effort, by Scheduled Events",
            "grace_s": _SPOT,
            "spot": f"{_SPOT}: eviction rates are in Azure Resource Graph, which needs an account",
            "max_life_h": f"{_SPOT}: none",
            "minimum_billing_s": "https://azure.microsoft.com/pricing/details/virtual-machines/linux, 2026: minutes",
            "quotas": "https://learn.microsoft.com/en-us/azure/quotas/spot-quota, 2026",
            "has_cpu_vms": "https://learn.microsoft.com/en-us/azure/virtual-machines/sizes/overview, 2026",
        },
    )
