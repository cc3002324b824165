"""Google Cloud, as public catalogs list it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deepvm.catalog.clouds.listed_cloud import WITH_ZONES, ListedCloud
from deepvm.catalog.signals.cloud import CloudRules

_NOT_ON_DEMAND = re.compile(r"a3-highgpu-[124]g|a3-ultragpu-.*|a4x?-.*")
"""What starts as Spot or Flex-start VMs, or is reserved, though catalogs have a price on demand
(https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026)."""
_SPOT = "https://docs.cloud.google.com/compute/docs/instances/spot, 2026"


class GcpCloud(ListedCloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "gcp"
    title = "Google Cloud"
    kinds = WITH_ZONES
    region_form = r"[a-z]+(-[a-z]+){1,2}[0-9]{1,2}"
    default_region = "us-central1"
    region_variables = ("CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION")
    burstable = "e2-(micro|small|medium)|f1-micro|g1-small"
    regions = (
        *(
            "us-central1",
            "us-east1",
            "us-east4",
            "us-east5",
            "us-south1",
            "us-west1",
            "us-west2",
            "us-west3",
            "us-west4",
        ),
        *("northamerica-northeast1", "northamerica-northeast2", "northamerica-south1"),
        *("southamerica-east1", "southamerica-west1", "africa-south1"),
        *("europe-central2", "europe-north1", "europe-north2", "europe-southwest1", "europe-west1", "europe-west2"),
        *("europe-west3", "europe-west4", "europe-west6", "europe-west8", "europe-west9", "europe-west10"),
        *("europe-west12", "me-central1", "me-central2", "me-west1", "asia-east1", "asia-east2"),
        *("asia-northeast1", "asia-northeast2", "asia-northeast3", "asia-south1", "asia-south2"),
        *("asia-southeast1", "asia-southeast2", "australia-southeast1", "australia-southeast2"),
    )
    rules = CloudRules(
        notice_s=0,
        grace_s=30,
        spot="a list: 60 to 91 % off, changed once in 30 days at most; VMs are taken back when they are needed",
        max_life_h=None,  # 24 h for preemptible VMs, which came before
        minimum_billing_s=60,
        quotas="GPUs of each model in each region, preemptible ones apart",
        has_cpu_vms=True,
        sources={
            "notice_s": f"{_SPOT}: 0 unless 120 s are configured (preview)",
            "grace_s": f"{_SPOT}: up to 30 s between ACPI G2 and G3",
            "spot": "https://cloud.google.com/spot-vms/pricing, 2026",
            "max_life_h": f"{_SPOT}: no maximum runtime unless one is set",
            "minimum_billing_s": "https://cloud.google.com/compute/vm-instance-pricing, 2026: per second, at least 60",
            "quotas": "https://docs.cloud.google.com/compute/resource-usage, 2026",
            "has_cpu_vms": "https://docs.cloud.google.com/compute/docs/machine-resource, 2026",
        },
    )

    def facts_of(self, type_name: str) -> Mapping[str, Any]:
        """See :meth:`Cloud.facts_of`."""
        sold = {"on_demand": False} if _NOT_ON_DEMAND.fullmatch(type_name) else {}
        return {**super().facts_of(type_name), **sold}
