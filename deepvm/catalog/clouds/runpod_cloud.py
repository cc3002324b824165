"""RunPod, as public catalogs list it: pods with GPUs, on demand; a region is a data centre."""

from __future__ import annotations

from deepvm.catalog.signals.cloud import WITHOUT_SPOT, Cloud, CloudRules


class RunPodCloud(Cloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "runpod"
    title = "RunPod"
    kinds = WITHOUT_SPOT
    region_form = r"[a-z]{2,3}-[a-z]{2,3}-[0-9]{1,2}"
    default_region = "us-tx-3"
    rules = CloudRules(
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
    )
