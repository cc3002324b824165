"""Exports for EC2: a role, a price limit, and user data that starts the training at boot.

Token and addresses are parameters of AWS Systems Manager (:mod:`deepvm.jobs.clouds.aws.meeting`),
which the VMs' role may read and write: no secret is in user data, a launch template, or the state
of a tool.
"""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

from deepvm.core.cluster.plan import TRAINING, Plan, PlannedGroup
from deepvm.core.cluster.price_limits import HEADROOM, PriceLimits, limit_prices
from deepvm.errors import RequestError
from deepvm.exporters.base import TRAINING_OPTIONS, Exporter, amount
from deepvm.exporters.options import ExportOptions

OPTIONS = frozenset({"subnet", "max_price", "command", "code", *TRAINING_OPTIONS})
LARGEST = 16 * 1024
"""Bytes of user data that EC2 takes, before they are encoded."""
AWS_LEAST_MAX_PRICE = Decimal("0.001")
"""AWS refuses a maximum price that is not above this, $/h (CreateFleet, ``Overrides.MaxPrice``)."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,50}")
_BUCKET = re.compile(r"s3://[a-z0-9.-]+/.+\.(tar\.gz|tgz)")
_ARCHIVE = re.compile(r"https://.+\.(tar\.gz|tgz)")


class AwsExporter(Exporter):
    """The plan is that in the zones within its price limit."""

    CLOUDS = frozenset({"aws"})
    TRUST = (
        '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service":'
        ' "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}'
    )
    """Who may have the role of the VMs: EC2."""
    HEADROOM = f"{HEADROOM * 100:.0f} %"

    def __init__(self, plan: Plan, options: ExportOptions) -> None:
        limited, self.limits = _limited(plan, options.max_price)
        super().__init__(limited, options)
        within = limited.training.zones
        self.excluded = [zone for zone in plan.training.zones if zone not in within]

    @property
    def limit_of_all(self) -> str:
        """The option that would include the zones that are too dear."""
        assert self.limits is not None
        needed = self.limits.needed_for(max(zone.usd_per_hour for zone in self.excluded))
        return f"--max-price {amount(needed)}"

    @property
    def job(self) -> str:
        name = self.options.job or "training"
        if not _NAME.fullmatch(name):
            allowed = "up to 50 letters, digits and ._-, for names of parameters and roles of AWS"
            raise RequestError("job", name, allowed)
        return name

    @property
    def role(self) -> str:
        """Name of the VMs' role and of its instance profile."""
        return f"deepvm-{self.job}"

    @property
    def policy(self) -> str:
        """What the VMs may do: meet, and read and write the buckets that the options name."""
        return self.text("aws/role-policy.json")

    @property
    def code(self) -> str:
        """How the VMs fetch the training's code: from a bucket, an archive or git."""
        url = self.options.code
        if not url:
            return ""
        if _BUCKET.fullmatch(url):
            return "bucket"
        if _ARCHIVE.fullmatch(url):
            return "archive"
        if self.options.git:
            return "git"
        allowed = "s3://BUCKET/NAME.tar.gz, https://HOST/NAME.tar.gz or https://HOST/NAME.git@REF"
        raise RequestError("code", url, allowed)

    def user_data(self, group: PlannedGroup) -> str:
        """The script that all VMs of a group run at boot."""
        text = self.text("aws/user-data.sh", group=group)
        if (size := len(text.encode())) > LARGEST:
            allowed = f"user data of at most {LARGEST} bytes, which is what EC2 takes"
            raise RequestError("command", f"{size} bytes", allowed)
        return text


def _limited(plan: Plan, most: Decimal | None = None) -> tuple[Plan, PriceLimits | None]:
    """The plan in the zones within the price limit that was asked for, or its own price and 20 %.

    None when it has too few prices to split a limit.

    Raises:
        RequestError: the plan costs more, AWS accepts no limit as low as that, or the plan has too
            few prices.
    """
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
            f"a higher limit: this leaves {spot:f} $/h for each spot VM, and AWS accepts only more"
            f" than {AWS_LEAST_MAX_PRICE}"
        )
        raise RequestError("max_price", f"{limits.usd_per_hour:f}", allowed)
    zones = tuple(zone for zone in plan.training.zones if zone.usd_per_hour <= spot)
    return replace(plan, training=replace(plan.training, zones=zones)), limits
