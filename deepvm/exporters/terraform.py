"""Terraform: one ``main.tf.json`` (HCL's JSON form)."""
# Spot VMs are an ``aws_ec2_fleet`` of type ``maintain``; on-demand VMs are ``aws_instance``, whose
# addresses outputs can name. Zones are looked up by id, because names differ between accounts. What
# VMs keep where they meet is no resource, so that the state holds no token.

import json
import re
from collections.abc import Iterator

from deepvm.core.cluster.plan import Plan, PlannedGroup
from deepvm.core.spelling import joined
from deepvm.errors import OptionMismatchError, RequestError
from deepvm.exporters.aws import OPTIONS, AwsExporter
from deepvm.exporters.base import Exporter, ExportFile
from deepvm.exporters.options import ExportOptions


class _TerraformExporter(Exporter):
    def files(self) -> Iterator[ExportFile]:
        yield self.file("main.tf.json")

    @property
    def asked(self) -> list[str]:
        file, *_ = self.files()
        variables = json.loads(file.text)["variable"]
        return [name for name, body in variables.items() if "default" not in body]


class TerraformAws(_TerraformExporter, AwsExporter):
    """Launch template, fleet, instances, and the role of the VMs."""

    FOLDER = "terraform"
    OPTIONS = OPTIONS | {"image", "memory_image", "key_name", "security_group"}

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        if options.max_price is not None and not plan.training.spot_count:
            raise OptionMismatchError(
                "max_price",
                f"{options.max_price:f}",
                f"does not fit {plan}, which has no spot VMs: Terraform has no limit for others",
                "--to ec2-fleet",
            )
        super().__init__(plan, options)

    def files(self) -> Iterator[ExportFile]:
        """Scripts are files of their own where there is a folder for them."""
        yield from super().files()
        if self.options.folder:
            for group in self.plan.groups:
                yield ExportFile(self.script_name(group), self.user_data(group))

    def script_name(self, group: PlannedGroup) -> str:
        return f"{group.role}-user-data.sh"

    @property
    def compact_policy(self) -> str:
        return json.dumps(json.loads(self.policy))


# These boot from no Persistent Disk:
# https://docs.cloud.google.com/compute/docs/accelerator-optimized-machines, 2026; n4 and c4:
# nextflow-io/nextflow issue 6614.
_HYPERDISK = re.compile(r"(a3-ultragpu|a4x?|g4|n4[ad]?|c4[ad]?)-.*")


class TerraformGcp(_TerraformExporter):
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
        wanted = ""
        if self.plan.disk:
            wanted = self.plan.disk.kind
        if _HYPERDISK.fullmatch(group.instance_type) and not wanted.startswith("hyperdisk"):
            return "hyperdisk-balanced"
        return wanted or "pd-balanced"

    @property
    def zones(self) -> list[str]:
        plan = self.plan
        priced = [z.zone for z in sorted(plan.training.zones, key=lambda z: z.zone != plan.zone)]
        named = priced or ([plan.zone] if plan.zone else list(plan.training.offered_in))
        offers = [vms.offered_in for vms in (plan.training, plan.memory) if vms and vms.offered_in]
        return [zone for zone in named if all(zone in offer for offer in offers)] or named
