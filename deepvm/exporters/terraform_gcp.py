"""Terraform for Google Cloud: one ``main.tf.json`` that starts the VMs of a plan in one zone.

Spot VMs are a managed instance group, which replaces those that are preempted. On-demand VMs are
``google_compute_instance``: they have addresses that outputs can name. GPUs come with the machine
types. The VMs start no training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from deepvm.core.cluster.plan import PlannedGroup
from deepvm.core.spelling import joined
from deepvm.errors import RequestError
from deepvm.exporters.base import ExportFile
from deepvm.exporters.terraform import TerraformExporter

# These boot from no Persistent Disk:
# https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026; n4 and c4:
# nextflow-io/nextflow issue 6614.
_HYPERDISK = re.compile(r"(a3-ultragpu|a4x?|g4|n4[ad]?|c4[ad]?)-.*")


class TerraformGcp(TerraformExporter):
    """Instance template, instance group and instances."""

    FOLDER = "terraform-gcp"
    OPTIONS = frozenset({"image", "memory_image", "subnet"})
    CLOUDS = frozenset({"gcp"})

    def files(self) -> Iterator[ExportFile]:
        if len(self.options.subnet) > 1:
            names = joined(self.options.subnet)
            raise RequestError("subnet", names, "one: the VMs are in one zone")
        return super().files()

    def disk_type(self, group: PlannedGroup) -> str:
        """The type of disk that the plan counts, or one that the VMs can boot from."""
        wanted = self.plan.disk.kind if self.plan.disk else ""
        if _HYPERDISK.fullmatch(group.instance_type):
            if wanted.startswith("hyperdisk"):
                return wanted
            return "hyperdisk-balanced"
        return wanted or "pd-balanced"

    @property
    def zones(self) -> list[str]:
        """The zones in which all of the plan may start, the one to start in first."""
        plan = self.plan
        priced = [z.zone for z in sorted(plan.training.zones, key=lambda z: z.zone != plan.zone)]
        named = priced or ([plan.zone] if plan.zone else list(plan.training.offered_in))
        offers = [vms.offered_in for vms in (plan.training, plan.memory) if vms and vms.offered_in]
        return [zone for zone in named if all(zone in offer for offer in offers)] or named
