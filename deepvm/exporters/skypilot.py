"""SkyPilot: a task file for each kind of VM."""
# All nodes of a SkyPilot cluster are alike, so spot and on-demand VMs are two tasks: the spot one
# gets the addresses of the other, which are ``null`` under ``envs``: SkyPilot refuses to start it
# until they are given.

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
        return str(Path(self.options.code).resolve())

    @property
    def started(self) -> list[PlannedGroup]:
        return sorted(self.plan.groups, key=lambda g: _START_ORDER.index(g.role))

    def cluster(self, group: PlannedGroup) -> str:
        return f"{_NOT_IN_A_NAME.sub('-', self.options.job).strip('-') or 'deepvm'}-{group.role}"

    def variables(self, group: PlannedGroup) -> list[str]:
        order = _START_ORDER.index(group.role)
        command = group.role != MEMORY and not self.options.command
        return ["TRAINING_COMMAND"] * command + [
            f"{g.role.upper()}_ADDRESSES"
            for g in self.plan.groups
            if _START_ORDER.index(g.role) < order
        ]

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
