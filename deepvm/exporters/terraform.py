"""Terraform: one ``main.tf.json`` (HCL's JSON form); for Google Cloud see :mod:`.terraform_gcp`.

Spot VMs are an ``aws_ec2_fleet`` of type ``maintain``, on-demand VMs are ``aws_instance``: they
have addresses that outputs can name. Zones are looked up by their ids, because their names differ
between accounts. What only the user knows is a variable; one without a default is asked for by
Terraform.

``max_price`` of each override limits what a spot VM may cost for as long as it runs. The provider
sends no total of a spot fleet, and instances that are bought on demand have a fixed price, for
which it has no limit.

User data starts the training. The role of the VMs, which this configuration makes, lets them meet;
what they keep there is no resource of it, so that the state holds no token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from deepvm.core.cluster.plan import Plan
from deepvm.errors import RequestError
from deepvm.exporters.aws import OPTIONS, AwsExporter
from deepvm.exporters.base import Exporter, ExportFile
from deepvm.exporters.options import ExportOptions


class TerraformExporter(Exporter):
    """One ``main.tf.json``, with a header as comment."""

    def files(self) -> Iterator[ExportFile]:
        yield self.file("main.tf.json")

    @property
    def asked(self) -> list[str]:
        """The variables that Terraform asks for."""
        (file,) = self.files()
        variables = json.loads(file.text)["variable"]
        return [name for name, body in variables.items() if "default" not in body]


class TerraformAws(TerraformExporter, AwsExporter):
    """Launch template, fleet, instances, and the role of the VMs."""

    FOLDER = "terraform"
    OPTIONS = OPTIONS | {"image", "memory_image", "key_name", "security_group"}

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        if options.max_price is not None and not plan.training.spot_count:
            allowed = (
                f"no such option: {plan} has no spot VMs, and Terraform has no limit for others;"
                " --to ec2-fleet has"
            )
            raise RequestError("max_price", f"{options.max_price:f}", allowed)
        super().__init__(plan, options)

    @property
    def compact_policy(self) -> str:
        return json.dumps(json.loads(self.policy))
