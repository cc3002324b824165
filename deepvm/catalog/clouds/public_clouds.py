"""Clouds that deepvm asks nothing: what public catalogs list of them, and how they sell VMs."""

from __future__ import annotations

from deepvm.catalog.signals.cloud import Cloud, CloudRules
from deepvm.catalog.signals.signal import OFFERINGS, ON_DEMAND, SPECS, SPOT
from deepvm.core.cluster.instances import InstanceType, Market

_WITHOUT_SPOT = (SPECS, ON_DEMAND)
_WITHOUT_ZONES = (*_WITHOUT_SPOT, SPOT)
_WITH_ZONES = (SPECS, OFFERINGS, ON_DEMAND, SPOT)


def _gcp_quota(instance: InstanceType, count: int, market: Market) -> str:
    """From https://docs.cloud.google.com/compute/resource-usage#gpu_quota, 2026."""
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


GCP = Cloud(
    name="gcp",
    title="Google Cloud",
    kinds=_WITH_ZONES,
    region_form=r"[a-z]+(-[a-z]+){1,2}[0-9]{1,2}",
    default_region="us-central1",
    region_variables=("CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION"),
    quota_words=_gcp_quota,
    burstable="e2-(micro|small|medium)|f1-micro|g1-small",
    # Starts as Spot or Flex-start VMs, or is reserved: from the notes at each type in
    # https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026; gpuhunt
    # leaves out the same.
    not_on_demand="a3-highgpu-[124]g|a3-ultragpu-.*|a4-.*",
    rules=CloudRules(
        grace_s=30,
        has_cpu_vms=True,
        sources={
            "grace_s": (
                "https://docs.cloud.google.com/compute/docs/instances/spot, 2026: up to 30 s from"
                " ACPI G2 to G3"
            ),
            "has_cpu_vms": "https://docs.cloud.google.com/compute/docs/machine-resource, 2026",
        },
    ),
)

AZURE = Cloud(
    name="azure",
    title="Azure",
    kinds=_WITHOUT_ZONES,
    region_form=r"[a-z]+[a-z0-9]*",
    default_region="eastus",
    region_variables=("AZURE_DEFAULTS_LOCATION",),
    quota_words=_azure_quota,
    burstable=r"(Standard|Basic)_(B[0-9].*|A0)",
    rules=CloudRules(
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
    ),
)

LAMBDA = Cloud(
    name="lambda",
    title="Lambda",
    kinds=_WITHOUT_SPOT,
    region_form=r"[a-z]+(-[a-z]+){1,2}-[0-9]",
    default_region="us-east-1",
    rules=CloudRules(
        grace_s=0,
        has_cpu_vms=False,
        regions_alike=True,
        sources={
            "grace_s": (
                "https://docs.lambda.ai/public-cloud/on-demand/, 2026: there is no spot market"
            ),
            "has_cpu_vms": (
                "skypilot-catalog v8/lambda, 2026: two CPU types of 4 vCPUs and 16 GiB, too small"
                " to count"
            ),
            "regions_alike": "skypilot-catalog v8/lambda, 2026: each type in all of 17 regions",
        },
    ),
)

NEBIUS = Cloud(
    name="nebius",
    title="Nebius",
    kinds=_WITHOUT_ZONES,
    region_form=r"[a-z]{2}-[a-z]+[0-9]",
    default_region="eu-north1",
    rules=CloudRules(
        grace_s=60,
        has_cpu_vms=True,
        sources={
            "grace_s": (
                "https://docs.nebius.com/compute/virtual-machines/preemptible, 2026: 60 s after"
                " SIGTERM"
            ),
            "has_cpu_vms": (
                "https://docs.nebius.com/compute/virtual-machines/types, 2026: cpu-d3 and cpu-e2"
            ),
        },
    ),
)

# Pods with GPUs, on demand; a region is a data centre.
RUNPOD = Cloud(
    name="runpod",
    title="RunPod",
    kinds=_WITHOUT_SPOT,
    region_form=r"[a-z]{2,3}-[a-z]{2,3}-[0-9]{1,2}",
    default_region="us-tx-3",
    rules=CloudRules(
        grace_s=0,  # pods for bids are left out
        has_cpu_vms=False,
        regions_alike=True,
        sources={
            "grace_s": (
                "https://docs.runpod.io/runpodctl/reference/runpodctl-start-pod, 2026: spot is for"
                " bids"
            ),
            "has_cpu_vms": "skypilot-catalog v8/runpod, 2026: no CPU types",
            "regions_alike": (
                "skypilot-catalog v8/runpod, 2026: each type in all of 45 data centres"
            ),
        },
    ),
)
