"""Nebius, as public catalogs list it."""

from __future__ import annotations

from deepvm.catalog.clouds.listed_cloud import WITHOUT_ZONES, ListedCloud
from deepvm.catalog.signals.cloud import CloudRules

_PREEMPTIBLE = "https://docs.nebius.com/compute/virtual-machines/preemptible, 2026"


class NebiusCloud(ListedCloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "nebius"
    title = "Nebius"
    kinds = WITHOUT_ZONES
    region_form = r"[a-z]{2}-[a-z]+[0-9]"
    default_region = "eu-north1"
    regions = ("eu-north1", "eu-west1", "us-central1", "me-west1", "uk-south1")
    rules = CloudRules(
        notice_s=0,
        grace_s=60,
        spot="a list of preemptible VMs with GPUs; they are stopped when a regular VM needs their place",
        max_life_h=None,
        minimum_billing_s=1,
        quotas="GPUs of each model in each region",
        has_cpu_vms=True,
        sources={
            "notice_s": f"{_PREEMPTIBLE}: SIGTERM comes at once",
            "grace_s": f"{_PREEMPTIBLE}: SIGTERM 60 seconds before the stop, then SIGKILL",
            "spot": _PREEMPTIBLE,
            "max_life_h": f"{_PREEMPTIBLE}: none is named",
            "minimum_billing_s": "https://docs.nebius.com/compute/resources/pricing, 2026: by the second",
            "quotas": "https://docs.nebius.com/compute/resources/quotas-limits, 2026",
            "has_cpu_vms": "https://docs.nebius.com/compute/virtual-machines/types, 2026: cpu-d3 and cpu-e2",
        },
    )
