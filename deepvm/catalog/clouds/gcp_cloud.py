"""Google Cloud, as public catalogs list it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from deepvm.catalog.signals.cloud import WITH_ZONES, Cloud, CloudRules
from deepvm.core.cluster.instances import InstanceType, Market

_NOT_ON_DEMAND = re.compile(r"a3-highgpu-[124]g|a3-ultragpu-.*|a4-.*")
"""What starts as Spot or Flex-start VMs, or is reserved, though catalogs have a price on demand.

From the notes at each type in
https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026; gpuhunt leaves out
the same.
"""


class GcpCloud(Cloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "gcp"
    title = "Google Cloud"
    kinds = WITH_ZONES
    region_form = r"[a-z]+(-[a-z]+){1,2}[0-9]{1,2}"
    default_region = "us-central1"
    region_variables = ("CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION")
    burstable = "e2-(micro|small|medium)|f1-micro|g1-small"
    rules = CloudRules(
        grace_s=30,
        has_cpu_vms=True,
        sources={
            "grace_s": (
                "https://docs.cloud.google.com/compute/docs/instances/spot, 2026: up to 30 s from"
                " ACPI G2 to G3"
            ),
            "has_cpu_vms": "https://docs.cloud.google.com/compute/docs/machine-resource, 2026",
        },
    )

    def quota_words(self, instance: InstanceType, count: int, market: Market) -> str:
        """See :meth:`Cloud.quota_words`.

        From https://docs.cloud.google.com/compute/resource-usage#gpu_quota, 2026.
        """
        if instance.gpu is None:
            return ""
        gpus = count * instance.gpu.count
        kind = f"{instance.gpu.name} GPUs"
        if market is Market.SPOT:
            kind = f"preemptible {kind}"
        return f"{gpus} {kind} in the region, {gpus} GPUs in all regions"

    def facts_of(self, type_name: str) -> Mapping[str, Any]:
        if _NOT_ON_DEMAND.fullmatch(type_name):
            sold = {"on_demand": False}
        else:
            sold = {}
        return {**super().facts_of(type_name), **sold}
