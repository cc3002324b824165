"""Settings of jobs on AWS, from the environment, with their IAM policies and boot scripts."""
# Boot scripts have no secrets. In scripts/*.sh {name} is replaced, and a brace is written twice.

import json
import os
import shlex
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

from deepvm.core.json_types import JsonDict
from deepvm.errors import RequestError
from deepvm.jobs.cloud import RefusedError
from deepvm.records import dataclass, fields, replace

PREFIX = "DEEPVM_AWS_"
_HOST = "DEEPVM_CONTROLLER_HOST"
_PORT = "DEEPVM_CONTROLLER_PORT"
LARGEST = 16 * 1024  # Bytes that EC2 takes, before they are encoded
FOLDER = "/var/lib/deepvm"
# Files that end a machine on its second boot; the second file is gone after a reboot
UNIT, THIS_BOOT = "/etc/systemd/system/deepvm-end.service", "/run/deepvm"
BOOT_MIN = 20  # After so many minutes a machine that hangs while it boots ends itself

_NEEDED = """import deepvm, boto3, numpy, pydantic, rich, sqlalchemy, starlette, typer, uvicorn, yaml
put = boto3.client("s3", "us-east-1").meta.service_model.operation_model("PutObject")
assert "IfMatch" in put.input_shape.members, "boto3 is too old"
"""  # noqa: E501


@dataclass(frozen=True)
class Ec2Settings:
    """See docs/internals/reference/settings.md; empty: not set."""

    region: str
    bucket: str = ""
    ami: str = ""  # Of machines with GPUs: an id, or an SSM parameter that holds one
    anchor_ami: str = ""
    subnets: tuple[str, ...] = ()
    security_group: str = ""
    instance_profile: str = "deepvm-job"  # Of machines, also the name of its role
    python: str = ""  # The interpreter on the image that has torch
    install: str = ""  # What pip installs there as deepvm, instead of the package that runs here
    head_type: str = "t3.small"
    head_profile: str = "deepvm-head"
    controller_host: str = ""  # Where machines reach a controller that does not run on EC2
    controller_port: int = 0

    @classmethod
    def of(cls) -> "Ec2Settings":
        """Those of the environment. Raises RequestError."""
        from deepvm.catalog.clouds.aws.aws_cloud import AwsCloud

        port = os.environ.get(_PORT, "").strip() or "0"
        if not port.isdigit() or int(port) > 65_535:
            raise RequestError(_PORT, port, "a port, from 1 to 65535")
        named = {f.name: os.environ.get(PREFIX + f.name.upper(), "").strip() for f in fields(cls)}
        bucket = named["bucket"].removeprefix("s3://").rstrip("/")
        if "/" in bucket:
            raise RequestError("DEEPVM_AWS_BUCKET", bucket, "the name of a bucket, without a path")
        given: dict[str, Any] = {name: value for name, value in named.items() if value}
        given |= {
            "region": AwsCloud().own_region("").name,  # prices are of this region, too
            "bucket": bucket,
            "subnets": tuple(named["subnets"].replace(",", " ").split()),
            "controller_host": os.environ.get(_HOST, "").strip(),
            "controller_port": int(port),
        }
        return cls(**given)

    @property
    def own_bucket(self) -> str:
        """The bucket of jobs. Raises RefusedError: none is set."""
        if not self.bucket:
            raise RefusedError(
                "DEEPVM_AWS_BUCKET is not set: the bucket through which machines get what they run;"
                f" make one with aws s3 mb s3://NAME --region {self.region}"
            )
        return self.bucket


# The template by what a policy is for, as ``deepvm doctor --iam --for`` names it
POLICIES = {
    "run": "controller.json",  # create machines tagged with a job, and end only those
    "head": "controller.json",
    "machine": "machine.json",  # read settings and write checkpoints, but no job secrets
}


def policy(purpose: str, settings: Ec2Settings) -> JsonDict:
    """An IAM policy; ``purpose``: of :data:`POLICIES`. Raises RefusedError: no bucket is set."""
    if purpose == "head":  # it cannot start another one
        settings = replace(settings, head_profile=settings.instance_profile)
    text = Template(_text(f"policies/{POLICIES[purpose]}")).substitute(
        bucket=settings.own_bucket,
        profile=settings.instance_profile,
        head_profile=settings.head_profile,
    )
    found: JsonDict = json.loads(text)
    for statement in found["Statement"]:
        if isinstance(statement["Resource"], list):
            statement["Resource"] = list(dict.fromkeys(statement["Resource"]))
    return found


def _text(file: str) -> str:
    return (resources.files(__package__) / file).read_text(encoding="utf-8")


def user_data(
    job: str, settings: Ec2Settings, prefix: str, requirements: Sequence[str] | None = None
) -> str:
    """The script of a machine, or (with ``requirements``) a head. Raises RefusedError: too long."""
    where = {"region": settings.region, "bucket": settings.own_bucket, "prefix": prefix}
    places = {name: shlex.quote(place) for name, place in where.items()}
    kind = {"what": "A machine", "module": "clouds.aws.ec2_machine"}
    steps = []
    if not settings.install:
        reader = _text("s3_read.py").strip()
        steps.append(_text("scripts/fetch.sh").format(s3_read=reader, folder=FOLDER, **places))
    elif requirements is None:
        steps.append(f'"$python" -m pip install {shlex.quote(settings.install)} || exit')
    if requirements is not None:
        kind = {"what": "The head", "module": "head.machine"}
        wanted = " ".join(shlex.quote(one) for one in (settings.install, *requirements) if one)
        environment = _text("scripts/environment.sh")
        steps.append(environment.format(needed=_NEEDED, requirements=wanted))
    pythons = "/opt/pytorch/bin/python python3"
    if settings.python:
        pythons = shlex.quote(settings.python)
    text = _text("scripts/boot.sh").format(
        job=job,
        boot_min=BOOT_MIN,
        folder=FOLDER,
        unit=UNIT,
        unit_name=UNIT.rpartition("/")[2],
        this_boot=THIS_BOOT,
        pythons=pythons,
        install="\n".join(step.rstrip("\n") for step in steps),
        **kind,
        **places,
    )
    size = len(text.encode())
    if size > LARGEST:
        raise RefusedError(f"the user data of {job} has {size} bytes, and EC2 takes {LARGEST}")
    return text
