"""EC2 Fleet: requests for ``aws ec2 create-fleet --cli-input-json file://...``.

Spot VMs that train are a fleet of type ``maintain``: AWS replaces those that are preempted.
On-demand VMs are a fleet of type ``instant``: the reply names them or says why not, and one that
dies is not silently replaced by an empty one that lost the checkpoints.

``MaxPrice`` of each override holds for as long as a spot VM runs; ``MaxTotalPrice`` ends the
starting of VMs, spot and on-demand. AWS advises against ``MaxPrice``, because VMs are interrupted
more often with it; a cluster without it may cost several times its plan.

User data, with which the VMs start their training, can only stand in a launch template: one is
written for each group, unless the user names one. ``start.sh`` makes role, templates and fleets,
and removes them.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

from deepvm.core.cluster.plan import MEMORY, PlannedGroup
from deepvm.errors import RequestError
from deepvm.exporters.aws import OPTIONS, AwsExporter
from deepvm.exporters.base import ExportFile


class Ec2Fleet(AwsExporter):
    """Two requests for each group of VMs, and ``start.sh``."""

    FOLDER = "ec2-fleet"
    OPTIONS = OPTIONS | {
        *("image", "memory_image", "key_name", "security_group"),
        *("launch_template", "memory_launch_template"),
    }
    # start.sh, and AWS, refuse it until it is replaced by the id of an image.
    PLACEHOLDER = "<id of your image>"

    def files(self) -> Iterator[ExportFile]:
        groups = self.plan.groups
        scripts = {group.role: self.user_data(group) for group in groups}
        for group in groups:
            yield self.file(f"{group.role}-fleet.json", "fleet.json", group=group)
        for group in groups:
            script = scripts[group.role]
            if self.own_template(group):
                yield ExportFile(f"{group.role}-user-data.sh", script)
            else:
                encoded = b64encode(script.encode()).decode()
                name = f"{group.role}-template.json"
                yield self.file(name, "template.json", group=group, script=encoded)
        yield ExportFile("role-policy.json", self.policy)
        yield self.file("start.sh")

    def own_template(self, group: PlannedGroup) -> str:
        """The name of the user's launch template for a group, empty without one."""
        training = self.options.launch_template
        memory = self.options.memory_launch_template
        if group.role != MEMORY or not (self.plan.mixes_cpu_architectures or memory):
            return training
        if training and not memory:
            allowed = (
                f"with --memory-launch-template, too: {group.instance_type} needs another image"
            )
            raise RequestError("launch_template", training, allowed)
        return memory
