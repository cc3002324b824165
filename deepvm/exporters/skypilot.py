"""SkyPilot: a task file for each kind of VM."""
# All nodes of a SkyPilot cluster are alike, so spot and on-demand VMs are two tasks: the spot one
# gets the addresses of the other, which are ``null`` under ``envs``: SkyPilot refuses to start it
# until they are given.

import os
import re
from collections.abc import Iterator
from pathlib import Path

from deepvm.catalog.clouds import cloud_of
from deepvm.core.cluster.plan import ANCHOR, MEMORY, TRAINING, Plan, PlannedGroup
from deepvm.errors import RequestError
from deepvm.exporters.base import TRAINING_OPTIONS, Exporter, ExportFile
from deepvm.exporters.options import ExportOptions

# GPU models that SkyPilot's AWS catalog calls as AWS and deepvm do. Under another name the instance
# type would not match, and the type alone says which GPUs it has.
_SAME_NAMES = frozenset({"T4", "T4g", "A10G", "M60", "V100", "K80", "L4", "L40S", "H100", "H200"})
_RUNPOD = re.compile(r"[0-9]+x_.+_(SECURE|COMMUNITY)")
# Types to which SkyPilot 0.14 gives the network of their GPUs if a task asks for the best one.
# Azure, Lambda and RunPod refuse to be asked; other types of Google get no more by it.
_BEST_NETWORK = {
    "aws": re.compile(r"(p4de?|p5(e|en)?|p6-b[23]00)\..+"),
    "gcp": re.compile(r"a3-highgpu-8g"),
    "nebius": re.compile(r"gpu-.+_8gpu-.+"),
}
_BUCKET_SCHEMES = {"gcp": "gs", "azure": "az"}  # elsewhere s3
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")
_START_ORDER = (MEMORY, ANCHOR, TRAINING)


class SkyPilot(Exporter):
    """A task file (YAML) for each group of VMs, and ``start.sh``."""

    FOLDER = "skypilot"
    OPTIONS = TRAINING_OPTIONS | {"image", "memory_image", "command", "code"}
    SENDS_FILES = True

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        super().__init__(plan, options)
        self.cloud = cloud_of(plan.source.catalog)

    def files(self) -> Iterator[ExportFile]:
        self._check()
        for group in self.plan.groups:
            run = self.text("skypilot/run.sh", group=group)
            yield self.file(f"{group.role}.yaml", "task.yaml", group=group, run=run)
        yield self.file("start.sh")
        yield from self.wheels

    def _check(self) -> None:
        name = self.plan.training.instance_type
        code = self.options.code
        if self.cloud.name == "runpod" and not _RUNPOD.fullmatch(name):
            allowed = (
                f"a plan whose types SkyPilot knows, which {name!r} is not: recommend --source"
                " skypilot"
            )
            raise RequestError("to", "skypilot", allowed)
        if code and not self.options.git and not Path(code).is_dir():
            allowed = "with --to skypilot a folder that is here, or https://HOST/NAME.git@REF"
            raise RequestError("code", code, allowed)

    @property
    def code_folder(self) -> str:
        """As seen from the folder of the files: SkyPilot counts from where it is called."""
        return os.path.relpath(
            Path(self.options.code).resolve(), Path(self.options.folder).resolve()
        )

    @property
    def names_bucket(self) -> bool:
        """Whether the bucket that keeps checkpoints is only named when the training starts."""
        keeps = self.options.persist or self.keepers
        return not keeps and self.plan.training.spot_count > 0

    @property
    def mounts_bucket(self) -> bool:
        """SkyPilot names containers of Azure by their account, deepvm does not."""
        return self.names_bucket and self.bucket_scheme != "az"

    @property
    def sends_folder(self) -> bool:
        return bool(self.options.code) and not self.options.git

    @property
    def bucket_scheme(self) -> str:
        return _BUCKET_SCHEMES.get(self.cloud.name, "s3")

    @property
    def checkpoints(self) -> str:
        if not self.names_bucket:
            return self.options.persist
        job = self.options.job or "training"
        return f"{self.bucket_scheme}://$CHECKPOINT_BUCKET/{job}"

    @property
    def best_network(self) -> bool:
        pattern = _BEST_NETWORK.get(self.cloud.name)
        if not self.network or pattern is None or self.refuses_network:
            return False
        return pattern.fullmatch(self.plan.training.instance_type) is not None

    @property
    def refuses_network(self) -> bool:
        """On AWS the drivers are in SkyPilot's own image, or in one of Docker."""
        image = self.options.image
        return self.cloud.name == "aws" and bool(image) and not image.startswith("docker:")

    @property
    def started(self) -> list[PlannedGroup]:
        return sorted(self.plan.groups, key=lambda g: _START_ORDER.index(g.role))

    def cluster(self, group: PlannedGroup) -> str:
        return f"{_NOT_IN_A_NAME.sub('-', self.options.job).strip('-') or 'deepvm'}-{group.role}"

    def variables(self, group: PlannedGroup) -> list[str]:
        order = _START_ORDER.index(group.role)
        command = group.role != MEMORY and not self.options.command
        bucket = ["CHECKPOINT_BUCKET"] * self.names_bucket
        return (
            ["TRAINING_COMMAND"] * command
            + bucket
            + [
                f"{g.role.upper()}_ADDRESSES"
                for g in self.plan.groups
                if _START_ORDER.index(g.role) < order
            ]
        )

    def accelerators(self, group: PlannedGroup) -> tuple[str, int] | None:
        vms = group.vms
        if self.cloud.name == "gcp":
            # Only plans of Google Cloud load its names
            from deepvm.catalog.public.skypilot import gcp_gpus

            name, count = gcp_gpus(vms.instance_type)
            if name:
                return (name, count)
            return None
        if self.cloud.name == "aws" and vms.gpu_name in _SAME_NAMES and vms.gpus_per_vm:
            return vms.gpu_name, vms.gpus_per_vm
        return None
