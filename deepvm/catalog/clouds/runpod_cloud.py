"""RunPod, as public catalogs list it: pods with GPUs, on demand; a region is a data centre."""

from __future__ import annotations

from deepvm.catalog.clouds.listed_cloud import WITHOUT_SPOT, ListedCloud
from deepvm.catalog.signals.cloud import CloudRules


class RunPodCloud(ListedCloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "runpod"
    title = "RunPod"
    kinds = WITHOUT_SPOT
    region_form = r"[a-z]{2,3}-[a-z]{2,3}-[0-9]{1,2}"
    default_region = "us-tx-3"
    regions = (
        *(
            "us-ca-1",
            "us-ca-2",
            "us-de-1",
            "us-ga-1",
            "us-ga-2",
            "us-il-1",
            "us-ks-1",
            "us-ks-2",
            "us-ks-3",
            "us-md-1",
        ),
        *(
            "us-mo-1",
            "us-mo-2",
            "us-nc-1",
            "us-nc-2",
            "us-ne-1",
            "us-or-1",
            "us-or-2",
            "us-pa-1",
            "us-tx-1",
            "us-tx-2",
        ),
        *(
            "us-tx-3",
            "us-tx-4",
            "us-tx-5",
            "us-tx-6",
            "us-wa-1",
            "ca-mtl-1",
            "ca-mtl-2",
            "ca-mtl-3",
            "ca-mtl-4",
        ),
        *(
            "eu-cz-1",
            "eu-dk-1",
            "eu-fr-1",
            "eu-nl-1",
            "eu-ro-1",
            "eu-se-1",
            "eu-se-2",
            "eur-is-1",
            "eur-is-2",
        ),
        *(
            "eur-is-3",
            "eur-is-4",
            "eur-is-5",
            "eur-no-1",
            "eur-no-2",
            "ap-in-1",
            "ap-in-2",
            "ap-jp-1",
            "oc-au-1",
            "sea-sg-1",
        ),
    )
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
