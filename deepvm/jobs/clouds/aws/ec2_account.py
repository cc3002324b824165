"""What an account offers jobs (images, subnets, bucket, role), and how to add what is missing."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import Any

from deepvm.catalog.clouds.aws.client import Aws
from deepvm.catalog.clouds.aws.errors import ApiCall
from deepvm.core.json_types import JsonDict
from deepvm.errors import CloudError
from deepvm.jobs.cloud import RefusedError, UnknownError
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings, named_bucket

_GUIDE = "docs/guide/aws.md says how"
_GPU_IMAGE = (
    "/aws/service/deeplearning/ami/{arch}"
    "/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"
)
_PLAIN_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{arch}/hvm/ebs-gp3/ami-id"
_DEBIAN_NAMES = {"x86_64": "amd64", "arm64": "arm64"}
_PASSING = ("throttled", "timeout", "network")
"""Why a request failed that may succeed the next time; its outcome is unknown."""
_POLICY = "'deepvm doctor --iam --for run' prints the policy that jobs need"


class Ec2Account:
    """Asks when it must, and remembers the answer.

    Raises RefusedError, or UnknownError where AWS did not answer.
    """

    def __init__(self, aws: Aws, settings: Ec2Settings) -> None:
        self._aws = aws
        self.settings = settings
        self._known: JsonDict = {}
        self._lock = threading.RLock()

    def ask(
        self, service: str, operation: str, answers: tuple[str, ...] = (), **parameters: Any
    ) -> Any:
        """A reply, or the code among ``answers``."""
        try:
            return self._aws.call(
                ApiCall(service, operation, self.settings.region), answers, **parameters
            )
        except CloudError as error:
            raise as_ours(error) from None

    def rows(self, operation: str, **parameters: Any) -> list[Any]:
        try:
            return self._aws.pages(ApiCall("ec2", operation, self.settings.region), **parameters)
        except CloudError as error:
            raise as_ours(error) from None

    def _once(self, name: str, find: Any) -> Any:
        with self._lock:
            if name not in self._known:
                self._known[name] = find()
            return self._known[name]

    def check(self) -> None:
        self._once("checked", self._checked)

    def _checked(self) -> bool:
        settings = self.settings
        found = self.ask("s3", "GetBucketLocation", ("NoSuchBucket",), Bucket=self.bucket)
        if found == "NoSuchBucket":
            made = f"aws s3 mb s3://{self.bucket} --region {settings.region}"
            raise RefusedError(
                f"DEEPVM_AWS_BUCKET: there is no bucket {self.bucket}; make it: {made}"
            )
        there = found.get("LocationConstraint") or "us-east-1"
        if there != settings.region:
            raise RefusedError(
                f"DEEPVM_AWS_BUCKET: {self.bucket} is in {there}, and machines are to be in"
                f" {settings.region}; name a bucket of that region, or set AWS_REGION"
            )
        self.check_profile(
            settings.instance_profile, "DEEPVM_AWS_INSTANCE_PROFILE", "machines read the bucket"
        )
        return bool(self.subnets)

    def check_profile(self, profile: str, variable: str, what: str) -> None:
        answer = self.ask(
            "iam", "GetInstanceProfile", ("NoSuchEntity",), InstanceProfileName=profile
        )
        if answer == "NoSuchEntity" or not answer["InstanceProfile"].get("Roles"):
            lacks = "there is no role in the"
            if answer == "NoSuchEntity":
                lacks = "there is no"
            raise RefusedError(
                f"{lacks} instance profile {profile}, with which {what}; {_GUIDE}, and {variable}"
                " names another"
            )

    @property
    def bucket(self) -> str:
        return named_bucket(self.settings)

    @cached_property
    def subnets(self) -> Mapping[str, str]:
        """A subnet of each zone, by the zone's name: those that are set, else the default VPC's."""
        named = self.settings.subnets
        if named:
            wanted: JsonDict = {"SubnetIds": list(named)}
        else:
            wanted = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        rows = self.rows("DescribeSubnets", **wanted)
        found = {
            r["AvailabilityZone"]: r["SubnetId"]
            for r in sorted(rows, key=lambda r: str(r["SubnetId"]))
        }
        if not found:
            raise RefusedError(
                f"the account has no default VPC in {self.settings.region}; name subnets in"
                " DEEPVM_AWS_SUBNETS, or make it: aws ec2 create-default-vpc --region"
                f" {self.settings.region}"
            )
        return dict(sorted(found.items()))

    def image(self, instance_type: str) -> str:
        arch, gpu = self._once(f"type {instance_type}", lambda: self._type(instance_type))
        if gpu:
            named = self.settings.ami
        else:
            named = self.settings.anchor_ami
        if named.startswith("ami-"):
            return named
        if gpu:
            default = _GPU_IMAGE.format(arch=arch)
        else:
            default = _PLAIN_IMAGE.format(arch=_DEBIAN_NAMES.get(arch, arch))
        return str(
            self._once(f"image {gpu} {arch}", lambda: self._parameter(named or default, gpu))
        )

    def _type(self, instance_type: str) -> tuple[str, bool]:
        """Its architecture, ``x86_64`` or ``arm64``, and whether it has GPUs."""
        found = self.ask(
            "ec2", "DescribeInstanceTypes", ("InvalidInstanceType",), InstanceTypes=[instance_type]
        )
        if found == "InvalidInstanceType" or not found["InstanceTypes"]:
            raise RefusedError(f"AWS has no type {instance_type} in {self.settings.region}")
        row = found["InstanceTypes"][0]
        supported = row.get("ProcessorInfo", {}).get("SupportedArchitectures") or ("x86_64",)
        return "arm64" if "arm64" in supported else "x86_64", bool(row.get("GpuInfo"))

    def _parameter(self, name: str, gpu: bool) -> str:
        found = self.ask("ssm", "GetParameter", ("ParameterNotFound",), Name=name)
        if found == "ParameterNotFound":
            variable = "DEEPVM_AWS_ANCHOR_AMI"
            if gpu:
                variable = "DEEPVM_AWS_AMI"
            raise RefusedError(
                f"{variable}: {self.settings.region} has no image {name}; set it to an id such as"
                " ami-0123"
            )
        return str(found["Parameter"]["Value"])

    def zones(self, instance_type: str) -> list[str]:
        return list(self._once(f"zones {instance_type}", lambda: self._zones(instance_type)))

    def _zones(self, instance_type: str) -> list[str]:
        rows = self.rows(
            "DescribeInstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[{"Name": "instance-type", "Values": [instance_type]}],
        )
        offered = {str(row["Location"]) for row in rows}
        found = [zone for zone in self.subnets if zone in offered]
        if not found:
            where = ", ".join(self.subnets)
            raise RefusedError(
                f"{instance_type} is not offered in {where}; name another type, or subnets of other"
                " zones in DEEPVM_AWS_SUBNETS, or another AWS_REGION"
            )
        return found

    def spot_prices(self, instance_type: str) -> dict[str, float]:
        """$/h by zone, now; empty if they are not to be had."""
        now = datetime.now(timezone.utc)
        try:
            rows = self.rows(
                "DescribeSpotPriceHistory",
                InstanceTypes=[instance_type],
                ProductDescriptions=["Linux/UNIX"],
                StartTime=now - timedelta(minutes=1),
            )
            newest = sorted(rows, key=lambda row: str(row["Timestamp"]))
            return {str(row["AvailabilityZone"]): float(row["SpotPrice"]) for row in newest}
        except (RefusedError, UnknownError, KeyError, ValueError):
            return {}


def as_ours(error: CloudError) -> RefusedError | UnknownError:
    """A failed request: whether nothing can come of it, or the outcome is unknown."""
    if error.why == "permission":
        return RefusedError(f"{error.what}: {error.detail}; {_POLICY}")
    # A refusal for another reason than those below has done nothing; but a 5xx is one, too.
    return (UnknownError if error.why in (*_PASSING, "reply") else RefusedError)(str(error))
