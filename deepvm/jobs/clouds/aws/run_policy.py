"""The IAM policies of jobs: of who runs ``deepvm run``, and of the machines' role."""

from __future__ import annotations

import json

from deepvm.core.json_types import JsonDict
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings, named_bucket

_OURS = "deepvm:job"
_OWNER = "?" * 12
"""As owners are named: ``*`` would match more than one part of a key."""


def _allow(
    sid: str, actions: list[str], resources: list[str] | str, **conditions: JsonDict
) -> JsonDict:
    found: JsonDict = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": actions,
        "Resource": resources,
    }
    return {**found, "Condition": conditions} if conditions else found


def controller_policy(settings: Ec2Settings) -> JsonDict:
    """Permissions for ``deepvm run``: create machines tagged with a job, and end only those."""
    return _controls(settings, settings.instance_profile, settings.head_profile)


def head_policy(settings: Ec2Settings) -> JsonDict:
    """What a head may: the same, but rent another head."""
    return _controls(settings, settings.instance_profile)


def _controls(settings: Ec2Settings, *profiles: str) -> JsonDict:
    bucket = named_bucket(settings)
    new = {f"aws:RequestTag/{_OURS}": "false"}
    old = {f"aws:ResourceTag/{_OURS}": "false"}
    besides = [
        "fleet",
        "launch-template",
        "network-interface",
        "security-group",
        "subnet",
        "volume",
    ]
    parts = [f"arn:aws:ec2:*:*:{kind}/*" for kind in besides] + ["arn:aws:ec2:*::image/*"]
    looks = [
        "Instances",
        "InstanceTypes",
        "InstanceTypeOfferings",
        "Subnets",
        "SpotPriceHistory",
        "LaunchTemplates",
    ]
    statements = [
        _allow("Look", [f"ec2:Describe{name}" for name in looks], "*"),
        _allow(
            "LaunchTagged",
            ["ec2:CreateFleet", "ec2:RunInstances"],
            "arn:aws:ec2:*:*:instance/*",
            Null=new,
        ),
        _allow("LaunchWith", ["ec2:CreateFleet", "ec2:RunInstances"], parts),
        _allow(
            "TemplateTagged",
            ["ec2:CreateLaunchTemplate"],
            "arn:aws:ec2:*:*:launch-template/*",
            Null=new,
        ),
        _allow(
            "TagWhatIsMade",
            ["ec2:CreateTags"],
            [
                "arn:aws:ec2:*:*:instance/*",
                "arn:aws:ec2:*:*:launch-template/*",
                "arn:aws:ec2:*:*:fleet/*",
            ],
            StringEquals={
                "ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]
            },
        ),
        _allow("EndOurs", ["ec2:TerminateInstances"], "arn:aws:ec2:*:*:instance/*", Null=old),
        _allow(
            "ReadConsolesOfOurs", ["ec2:GetConsoleOutput"], "arn:aws:ec2:*:*:instance/*", Null=old
        ),
        _allow(
            "RemoveOurs",
            ["ec2:DeleteLaunchTemplate"],
            "arn:aws:ec2:*:*:launch-template/*",
            Null=old,
        ),
        _allow(
            "LookAtTheProfile",
            ["iam:GetInstanceProfile"],
            [f"arn:aws:iam::*:instance-profile/{profile}" for profile in profiles],
        ),
        _allow(
            "GiveTheRole",
            ["iam:PassRole"],
            [f"arn:aws:iam::*:role/{profile}" for profile in profiles],
            StringEquals={"iam:PassedToService": "ec2.amazonaws.com"},
        ),
        _allow(
            "FirstFleetOfAnAccount",
            ["iam:CreateServiceLinkedRole"],
            "*",
            StringEquals={"iam:AWSServiceName": ["spot.amazonaws.com", "ec2fleet.amazonaws.com"]},
        ),
        _allow("Images", ["ssm:GetParameter"], "arn:aws:ssm:*::parameter/aws/service/*"),
        _allow(
            "Objects",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            f"arn:aws:s3:::{bucket}/deepvm/*",
        ),
        _allow("Bucket", ["s3:GetBucketLocation", "s3:ListBucket"], f"arn:aws:s3:::{bucket}"),
    ]
    return {"Version": "2012-10-17", "Statement": statements}


def machine_policy(settings: Ec2Settings) -> JsonDict:
    """Permissions of machines: read their settings and write checkpoints, but no job secrets."""
    bucket = named_bucket(settings)
    job = f"arn:aws:s3:::{bucket}/deepvm/{_OWNER}/*"
    versions = f"arn:aws:s3:::{bucket}/deepvm/*/versions"
    read = [
        f"{job}/{what}" for what in ("machines/*", "controller", "package.tar.gz", "versions/*")
    ]
    statements = [
        _allow("Read", ["s3:GetObject"], read),
        _allow(
            "Save", ["s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"], f"{versions}/*"
        ),
        _allow(
            "Bucket", ["s3:ListBucket", "s3:ListBucketMultipartUploads"], f"arn:aws:s3:::{bucket}"
        ),
    ]
    return {"Version": "2012-10-17", "Statement": statements}


POLICIES = {"run": controller_policy, "head": head_policy, "machine": machine_policy}
"""By what they are for, as ``deepvm doctor --iam --for`` names it."""


def policy_text(purpose: str, settings: Ec2Settings) -> str:
    """A policy as JSON; ``purpose``: of :data:`POLICIES`. Raises RefusedError: no bucket is set."""
    return json.dumps(POLICIES[purpose](settings), indent=2) + "\n"
