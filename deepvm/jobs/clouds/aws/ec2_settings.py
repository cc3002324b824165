"""Settings of jobs on AWS from the environment; the rest is looked up in the account."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from deepvm.errors import RequestError
from deepvm.jobs.cloud import RefusedError

PROFILE = "deepvm-job"
"""Name of the instance profile, and of its role, that machines have."""
HEAD_PROFILE = "deepvm-head"
"""The same of heads, which run controllers."""
PREFIX = "DEEPVM_AWS_"
_HEAD_TYPE = "t3.small"
_HOST = "DEEPVM_CONTROLLER_HOST"
_PORT = "DEEPVM_CONTROLLER_PORT"


@dataclass(frozen=True)
class Ec2Settings:
    """See docs/reference/settings.md; empty: not set.

    Attributes:
        ami, anchor_ami: ids of images, or SSM parameters that hold one; for machines with GPUs, and
        for others.
        subnets: where machines may be. python: the interpreter on the image that has torch.
        head_type, head_profile: of the machine that runs the controller of a detached job.
        install: what pip installs there as deepvm, instead of the package that runs here.
        controller_host, controller_port: where machines reach a controller that does not run on
        EC2.
    """

    region: str
    bucket: str = ""
    ami: str = ""
    anchor_ami: str = ""
    subnets: tuple[str, ...] = ()
    security_group: str = ""
    instance_profile: str = PROFILE
    python: str = ""
    install: str = ""
    head_type: str = _HEAD_TYPE
    head_profile: str = HEAD_PROFILE
    controller_host: str = ""
    controller_port: int = 0

    @classmethod
    def of(cls) -> Ec2Settings:
        """Those of the environment. Raises RequestError."""
        from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud

        port = os.environ.get(_PORT, "").strip() or "0"
        if not port.isdigit() or int(port) > 65_535:
            raise RequestError(_PORT, port, "a port, from 1 to 65535")
        named = {f.name: os.environ.get(PREFIX + f.name.upper(), "").strip() for f in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in named.items() if value}
        given |= {
            "region": AwsCloud().own_region("").name,  # prices are of this region, too
            "bucket": named["bucket"].removeprefix("s3://").strip("/"),
            "subnets": tuple(named["subnets"].replace(",", " ").split()),
            "controller_host": os.environ.get(_HOST, "").strip(),
            "controller_port": int(port),
        }
        return cls(**given)


def named_bucket(settings: Ec2Settings) -> str:
    """The bucket of jobs. Raises RefusedError: none is set."""
    if not settings.bucket:
        raise RefusedError(
            "DEEPVM_AWS_BUCKET is not set: the bucket through which machines get what they run;"
            f" make one with aws s3 mb s3://NAME --region {settings.region}"
        )
    return settings.bucket
