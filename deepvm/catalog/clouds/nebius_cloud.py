"""Nebius, as public catalogs list it."""

from __future__ import annotations

from deepvm.catalog.signals.cloud import WITHOUT_ZONES, Cloud, CloudRules


class NebiusCloud(Cloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "nebius"
    title = "Nebius"
    kinds = WITHOUT_ZONES
    region_form = r"[a-z]{2}-[a-z]+[0-9]"
    default_region = "eu-north1"
    rules = CloudRules(
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
    )
