"""Exports for EC2: a role, a price limit, user data that starts the training; EC2 Fleet."""
# Token and addresses are parameters of AWS Systems Manager (:mod:`deepvm.jobs.clouds.aws.meeting`),
# which the VMs' role may read and write: no secret is in user data, a launch template, or the state
# of a tool.

import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from deepvm.core.cluster.plan import MEMORY, TRAINING, Plan, PlannedGroup
from deepvm.core.cluster.price_limits import HEADROOM, PriceLimits, limit_prices
from deepvm.errors import RequestError
from deepvm.exporters.base import TRAINING_OPTIONS, Exporter, ExportFile, amount
from deepvm.exporters.options import ExportOptions

OPTIONS = frozenset({"subnet", "max_price", "command", "code", *TRAINING_OPTIONS})
LARGEST = 16 * 1024  # Bytes of user data that EC2 takes, before they are encoded
# AWS refuses a maximum price that is not above this, $/h (CreateFleet, ``Overrides.MaxPrice``)
AWS_LEAST_MAX_PRICE = Decimal("0.001")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")
_BUCKET = re.compile(r"s3://[a-z0-9.-]+/.+\.(tar\.gz|tgz)")
_ARCHIVE = re.compile(r"https://.+\.(tar\.gz|tgz)")


class AwsExporter(Exporter):
    """The plan is that in the zones within its price limit."""

    CLOUDS = frozenset({"aws"})
    # Who may have the role of the VMs: EC2
    TRUST = (
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service":'
        ' "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}'
    )
    HEADROOM = f"{HEADROOM * 100:.0f} %"

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        limited, self.limits = _limited(plan, options.max_price)
        super().__init__(limited, options)
        within = limited.training.zones
        self.excluded = [zone for zone in plan.training.zones if zone not in within]

    @property
    def limit_of_all(self) -> str:
        assert self.limits is not None
        needed = self.limits.needed_for(max(zone.usd_per_hour for zone in self.excluded))
        return f"--max-price {amount(needed)}"

    @property
    def job(self) -> str:
        name = self.options.job or "training"
        if not _NAME.fullmatch(name):
            raise RequestError(
                "job",
                name,
                "up to 50 letters, digits and ._-, for names of parameters and roles of AWS",
            )
        return name

    @property
    def role(self) -> str:
        return f"deepvm-{self.job}"

    @property
    def policy(self) -> str:
        return self.text("aws/role-policy.json")

    @property
    def code(self) -> str:
        url = self.options.code
        if not url:
            return ""
        if _BUCKET.fullmatch(url):
            return "bucket"
        if _ARCHIVE.fullmatch(url):
            return "archive"
        if self.options.git:
            return "git"
        raise RequestError(
            "code",
            url,
            "s3://BUCKET/NAME.tar.gz, https://HOST/NAME.tar.gz or https://HOST/NAME.git@REF",
        )

    def user_data(self, group: PlannedGroup) -> str:
        text = self.text("aws/user-data.sh", group=group)
        if (size := len(text.encode())) > LARGEST:
            raise RequestError(
                "command",
                f"{size} bytes",
                f"user data of at most {LARGEST} bytes, which is what EC2 takes",
            )
        return text


def _limited(plan: Plan, most: Decimal | None = None) -> tuple[Plan, PriceLimits | None]:
    """The plan in the zones within the given price limit, or its own price and 20 %."""
    limits = limit_prices(plan, most)
    if limits is None and most is not None:
        allowed = (
            "nothing: the plan has no prices of its on-demand VMs, so the limit cannot be split"
        )
        raise RequestError("max_price", f"{most:f}", allowed)
    if limits is None or not limits.spot_count:
        return plan, limits
    spot = limits.groups[TRAINING].vm_usd_per_hour
    if spot <= AWS_LEAST_MAX_PRICE:
        allowed = (
            f"a higher limit: this leaves ${spot:f}/h for each spot VM, and AWS accepts only more"
            f" than {AWS_LEAST_MAX_PRICE}"
        )
        raise RequestError("max_price", f"{limits.usd_per_hour:f}", allowed)
    zones = tuple(zone for zone in plan.training.zones if zone.usd_per_hour <= spot)
    return replace(plan, training=replace(plan.training, zones=zones)), limits


# Spot VMs are a fleet of type ``maintain``: AWS replaces preempted ones. On-demand VMs are of type
# ``instant``: one that dies is not silently replaced by an empty one that lost the checkpoints. AWS
# advises against ``MaxPrice``, because VMs are interrupted more often with it; a cluster without it
# may cost several times its plan. User data can only stand in a launch template.


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
        training = self.options.launch_template
        memory = self.options.memory_launch_template
        if group.role != MEMORY or not (self.plan.mixes_cpu_architectures or memory):
            return training
        if training and not memory:
            raise RequestError(
                "launch_template",
                training,
                f"with --memory-launch-template, too: {group.instance_type} needs another image",
            )
        return memory
