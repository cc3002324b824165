"""What an account offers jobs: images, subnets, roles, prices, and the objects of its bucket."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import cache, cached_property
from typing import Any

from deepvm.catalog.clouds.aws.client import ApiCall, Aws
from deepvm.core.json_types import JsonDict
from deepvm.errors import CloudError
from deepvm.jobs.cloud import ChangedError, Object, Objects, RefusedError, UnknownError
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings

_GPU_IMAGE = (
    "/aws/service/deeplearning/ami/{}/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id"
)
_PLAIN_IMAGE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/{}/hvm/ebs-gp3/ami-id"
_DEBIAN_NAMES = {"x86_64": "amd64"}
# Why a request failed whose outcome is unknown; a 5xx is a refusal, too
_PASSING = ("throttled", "timeout", "network", "reply")
_MISSING = ("NoSuchKey", "404")
_CHANGED = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409", *_MISSING)
_AT_ONCE = 1000  # How many objects S3 removes at once


class Ec2Account:
    """Asks AWS once. Raises RefusedError, or UnknownError where AWS did not answer."""

    def __init__(self, aws: Aws, settings: Ec2Settings) -> None:
        self._aws = aws
        self.settings = settings
        self.check = cache(self._check)
        self.zones = cache(self._zones)
        self._type = cache(self._find_type)
        self._parameter = cache(self._find_parameter)

    def ask(
        self, service: str, operation: str, answers: tuple[str, ...] = (), **parameters: Any
    ) -> Any:
        """A reply, or the code among ``answers``."""
        call = ApiCall(service, operation, self.settings.region)
        try:
            return self._aws.call(call, answers, **parameters)
        except CloudError as error:
            raise as_ours(error) from None

    def rows(self, operation: str, **parameters: Any) -> list[Any]:
        try:
            return self._aws.pages(ApiCall("ec2", operation, self.settings.region), **parameters)
        except CloudError as error:
            raise as_ours(error) from None

    def _check(self) -> None:
        region = self.settings.region
        bucket = self.settings.own_bucket
        found = self.ask("s3", "GetBucketLocation", ("NoSuchBucket",), Bucket=bucket)
        if found == "NoSuchBucket":
            raise RefusedError(
                f"DEEPVM_AWS_BUCKET: there is no bucket {bucket}; make it: aws s3 mb s3://{bucket}"
                f" --region {region}"
            )
        there = found.get("LocationConstraint") or "us-east-1"
        if there != region:
            raise RefusedError(
                f"DEEPVM_AWS_BUCKET: {bucket} is in {there}, and machines are to be in"
                f" {region}; name a bucket of that region, or set AWS_REGION"
            )
        self.check_profile(
            self.settings.instance_profile,
            "DEEPVM_AWS_INSTANCE_PROFILE",
            "machines read the bucket",
        )

    def check_profile(self, profile: str, variable: str, what: str) -> None:
        missing = "NoSuchEntity"
        answer = self.ask("iam", "GetInstanceProfile", (missing,), InstanceProfileName=profile)
        if answer == missing or not answer["InstanceProfile"].get("Roles"):
            lacks = "there is no" if answer == missing else "there is no role in the"
            raise RefusedError(
                f"{lacks} instance profile {profile}, with which {what};"
                f" make it, or name another in {variable}"
            )

    @cached_property
    def subnets(self) -> Mapping[str, str]:
        """A subnet of each zone: those that are set, else the default VPC's."""
        wanted: JsonDict = {"Filters": [{"Name": "default-for-az", "Values": ["true"]}]}
        if self.settings.subnets:
            wanted = {"SubnetIds": list(self.settings.subnets)}
        rows = self.rows("DescribeSubnets", **wanted)
        if not rows:
            raise RefusedError(
                f"the account has no default VPC in {self.settings.region}; name subnets in"
                " DEEPVM_AWS_SUBNETS, or make it: aws ec2 create-default-vpc --region"
                f" {self.settings.region}"
            )
        return dict(sorted((row["AvailabilityZone"], str(row["SubnetId"])) for row in rows))

    def image(self, instance_type: str) -> str:
        arch, gpu = self._type(instance_type)
        if gpu:
            named, variable = self.settings.ami, "DEEPVM_AWS_AMI"
            default = _GPU_IMAGE.format(arch)
        else:
            named, variable = self.settings.anchor_ami, "DEEPVM_AWS_ANCHOR_AMI"
            default = _PLAIN_IMAGE.format(_DEBIAN_NAMES.get(arch, arch))
        if named.startswith("ami-"):
            return named
        return self._parameter(named or default, variable)

    def _find_type(self, instance_type: str) -> tuple[str, bool]:
        """Its architecture, ``x86_64`` or ``arm64``, and whether it has GPUs."""
        unknown = "InvalidInstanceType"
        found = self.ask("ec2", "DescribeInstanceTypes", (unknown,), InstanceTypes=[instance_type])
        if found == unknown or not found["InstanceTypes"]:
            raise RefusedError(f"AWS has no type {instance_type} in {self.settings.region}")
        row = found["InstanceTypes"][0]
        supported = row.get("ProcessorInfo", {}).get("SupportedArchitectures") or ()
        return "arm64" if "arm64" in supported else "x86_64", bool(row.get("GpuInfo"))

    def _find_parameter(self, name: str, variable: str) -> str:
        found = self.ask("ssm", "GetParameter", ("ParameterNotFound",), Name=name)
        if found == "ParameterNotFound":
            raise RefusedError(
                f"{variable}: {self.settings.region} has no image {name}; set it to an id such as"
                " ami-0123"
            )
        return str(found["Parameter"]["Value"])

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
        try:
            rows = self.rows(
                "DescribeSpotPriceHistory",
                InstanceTypes=[instance_type],
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.now(timezone.utc) - timedelta(minutes=1),
            )
            newest = sorted(rows, key=lambda row: str(row["Timestamp"]))
            return {str(row["AvailabilityZone"]): float(row["SpotPrice"]) for row in newest}
        except (RefusedError, UnknownError, KeyError, ValueError):
            return {}


def as_ours(error: CloudError) -> RefusedError | UnknownError:
    """A failed request, by whether it is certain that nothing can come of it."""
    if error.why == "permission":
        return RefusedError(
            f"{error.what}: {error.detail}; 'deepvm doctor --iam --for run' prints the policy that"
            " jobs need"
        )
    return (UnknownError if error.why in _PASSING else RefusedError)(str(error))


class S3Objects(Objects):
    """Single objects of the jobs' bucket; all are encrypted at rest."""

    def __init__(self, account: Ec2Account, prefix: str) -> None:
        self._account = account
        self._prefix = f"{prefix}/"

    def _ask(self, operation: str, answers: tuple[str, ...] = (), **parameters: Any) -> Any:
        bucket = self._account.settings.own_bucket
        return self._account.ask("s3", operation, answers, Bucket=bucket, **parameters)

    def get(self, key: str, unlike: str = "") -> Object | None:
        found = self._ask("GetObject", _MISSING, Key=self._prefix + key)
        if found in _MISSING:
            return None
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        age_s = max((now - found["LastModified"]).total_seconds(), 0.0)
        tag = str(found["ETag"])
        try:
            with found["Body"] as body:
                return Object(b"" if tag == unlike else bytes(body.read()), tag, age_s)
        except Exception as error:  # botocore's, of a connection that breaks off
            raise UnknownError(f"s3 GetObject: {key}: {error}") from None

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data)

    def replace(self, key: str, data: bytes, tag: str | None) -> str:
        condition = {"IfMatch": tag} if tag is not None else {"IfNoneMatch": "*"}
        found = self._put(key, data, _CHANGED, **condition)
        if found in _CHANGED:
            raise ChangedError(f"{self._prefix}{key} was written by another process")
        return str(found["ETag"])

    def _put(self, key: str, data: bytes, answers: tuple[str, ...] = (), **condition: str) -> Any:
        about = {"Key": self._prefix + key, "ServerSideEncryption": "AES256", **condition}
        return self._ask("PutObject", answers, Body=data, **about)

    def keys(self, prefix: str, after: str = "") -> list[str]:
        found: list[str] = []
        while True:
            start = self._prefix + (found[-1] if found else after)
            page = self._ask("ListObjectsV2", Prefix=self._prefix + prefix, StartAfter=start)
            found += [row["Key"].removeprefix(self._prefix) for row in page.get("Contents") or ()]
            if not page.get("IsTruncated"):
                return found

    def remove(self, keys: Iterable[str]) -> None:
        rows = [{"Key": self._prefix + key} for key in keys]
        for start in range(0, len(rows), _AT_ONCE):
            some = {"Objects": rows[start : start + _AT_ONCE], "Quiet": True}
            found = self._ask("DeleteObjects", Delete=some)
            if found.get("Errors"):
                raise UnknownError(f"s3 DeleteObjects: {found['Errors'][0]}")
