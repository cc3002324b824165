"""Lambda, as public catalogs list it.

On demand only, and every type in every region, whether there are any or not.
"""

from __future__ import annotations

from deepvm.catalog.signals.cloud import WITHOUT_SPOT, Cloud, CloudRules


class LambdaCloud(Cloud):
    """See :class:`~deepvm.catalog.signals.cloud.Cloud`."""

    name = "lambda"
    title = "Lambda"
    kinds = WITHOUT_SPOT
    region_form = r"[a-z]+(-[a-z]+){1,2}-[0-9]"
    default_region = "us-east-1"
    rules = CloudRules(
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
    )
