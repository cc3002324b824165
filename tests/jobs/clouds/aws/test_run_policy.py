"""The printed policies allow each call that is made, and no other on what is not ours."""

from __future__ import annotations

import fnmatch
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.jobs.fake_ec2 import BUCKET, REGION, running
from support.places import ROOT

from deepvm.jobs.cloud import RefusedError, Start
from deepvm.jobs.clouds.aws import ec2_settings
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
from deepvm.jobs.decisions.world import MachineRecord, Pool

SETTINGS = Ec2Settings(REGION, bucket=BUCKET)
ACTIONS = {"ListObjectsV2": "ListBucket", "DeleteObjects": "DeleteObject"}
"""What IAM calls an operation otherwise."""


def allowed(
    policy: Mapping[str, Any], action: str, resource: str, facts: Mapping[str, Any] = {}
) -> bool:  # noqa: B006
    """As IAM decides for policies that only allow, with the conditions Null and StringEquals."""

    def many(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [value]

    def holds(condition: Mapping[str, Mapping[str, Any]]) -> bool:
        for kind, keys in condition.items():
            for key, wanted in keys.items():
                if kind == "Null" and (key not in facts) != (wanted == "true"):
                    return False
                if kind == "StringEquals" and facts.get(key) not in many(wanted):
                    return False
        return True

    return any(
        any(fnmatch.fnmatchcase(action, a) for a in many(s["Action"]))
        and any(fnmatch.fnmatchcase(resource, r) for r in many(s["Resource"]))
        and holds(s.get("Condition", {}))
        for s in policy["Statement"]
    )


def resource_of(service: str, action: str, given: Mapping[str, Any]) -> str:
    """What a call is about, as far as a policy can name it."""
    if service == "s3" and action == "DeleteObjects":  # each of them, in folders of the same job
        first = given["body"].decode().partition("<Key>")[2].partition("<")[0]
        return f"arn:aws:s3:::{BUCKET}/{first}"
    if service == "s3":
        return (
            "arn:aws:s3:::" + given["path"].strip("/")
            if action.endswith("Object")
            else f"arn:aws:s3:::{BUCKET}"
        )
    if service == "iam":
        return f"arn:aws:iam::123456789012:instance-profile/{name_in(given)}"
    if service == "ssm":
        return f"arn:aws:ssm:{REGION}::parameter" + json.loads(given["body"])["Name"]
    kinds = {"CreateLaunchTemplate": "launch-template", "DeleteLaunchTemplate": "launch-template"}
    return f"arn:aws:ec2:{REGION}:123456789012:{kinds.get(action, 'instance')}/i-1"


def name_in(given: Mapping[str, Any]) -> str:
    """The profile that a call of IAM asks for."""
    return parse_qs(given["body"].decode())["InstanceProfileName"][0]


def facts_of(action: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Tags of the request; those that are ended have them already."""
    if action in ("TerminateInstances", "GetConsoleOutput", "DeleteLaunchTemplate"):
        return {"aws:ResourceTag/deepvm:job": "job"}
    asked = [v for k, v in given.items() if k.startswith("TagSpecification") and k.endswith(".Key")]
    return {f"aws:RequestTag/{key}": "x" for key in asked}


def test_every_call_is_allowed(tmp_path: Path) -> None:
    policy = ec2_settings.policy("run", SETTINGS)
    with running() as ec2:
        cloud = ec2.cloud(tmp_path, anchor_ami="/aws/service/canonical/none")
        cloud.zones("g4dn.xlarge", "spot")
        start = Start("job", "m1", b"s", "http://127.0.0.1:9")
        cloud.request(
            MachineRecord("m1", Pool("g4dn.xlarge", REGION, "spot", 1.0), time.time()), start
        )
        cloud.announce("job", "http://127.0.0.1:9")
        with pytest.raises(RefusedError, match="no image"):
            cloud.request(
                MachineRecord("m2", Pool("m7g.large", REGION, "on-demand", 1.0), time.time()), start
            )
        cloud.listing("job")
        cloud.last_lines("job", "m1")
        cloud.release("job", "m1")
        cloud.finish("job")
        calls = list(ec2.calls)
        ec2.calls.clear()
        cloud = ec2.cloud(tmp_path)
        cloud.check_head()
        cloud.start_head("job", 1)
        objects = cloud.objects("job")
        tag = objects.replace("x", b"1", None)
        assert objects.get("x") is not None and objects.replace("x", b"2", tag) and objects.keys("")
        objects.remove(["x"])
        cloud.end_head("job", "head-1")
        of_heads = list(ec2.calls)
    seen = set()
    assert any(
        action == "GetInstanceProfile" and name_in(g) == "deepvm-head" for _, action, g in of_heads
    )
    for service, action, given in (*calls, *of_heads):
        name = f"{service}:{ACTIONS.get(action, action)}"
        seen.add(name)
        what, facts = resource_of(service, action, given), facts_of(action, given)
        assert allowed(policy, name, what, facts), (name, given)
        if (service, action, given) in calls:
            assert allowed(ec2_settings.policy("head", SETTINGS), name, what, facts), (name, given)
    # A fleet launches instances for the caller, tags what it makes, and gives it the role.
    made = {"aws:RequestTag/deepvm:job": "job"}
    assert allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{REGION}:1:instance/i-1", made)
    assert allowed(policy, "ec2:RunInstances", f"arn:aws:ec2:{REGION}::image/ami-1")
    assert allowed(
        policy,
        "ec2:CreateTags",
        f"arn:aws:ec2:{REGION}:1:instance/i-1",
        {"ec2:CreateAction": "CreateFleet"},
    )
    to_ec2 = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert allowed(policy, "iam:PassRole", "arn:aws:iam::1:role/deepvm-job", to_ec2)
    assert allowed(policy, "iam:PassRole", "arn:aws:iam::1:role/deepvm-head", to_ec2)
    assert not allowed(
        ec2_settings.policy("head", SETTINGS),
        "iam:PassRole",
        "arn:aws:iam::1:role/deepvm-head",
        to_ec2,
    )
    implied = {"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole", "iam:CreateServiceLinkedRole"}
    implied |= {"s3:AbortMultipartUpload"}  # 'deepvm ckpt' tidies versions
    given_away = {action for s in policy["Statement"] for action in s["Action"]}
    assert given_away == seen | implied, "more is allowed than is used"


def test_what_is_not_ours_is_not_touched() -> None:
    policy, instance = ec2_settings.policy("run", SETTINGS), f"arn:aws:ec2:{REGION}:1:instance/i-1"
    assert not allowed(policy, "ec2:TerminateInstances", instance)
    assert not allowed(policy, "ec2:RunInstances", instance)
    assert not allowed(policy, "ec2:CreateTags", instance)
    assert not allowed(
        policy, "ec2:DeleteLaunchTemplate", f"arn:aws:ec2:{REGION}:1:launch-template/lt-1"
    )
    assert not allowed(
        policy,
        "iam:PassRole",
        "arn:aws:iam::1:role/admin",
        {"iam:PassedToService": "ec2.amazonaws.com"},
    )
    assert not allowed(policy, "s3:GetObject", f"arn:aws:s3:::{BUCKET}/other")
    machine = ec2_settings.policy("machine", SETTINGS)
    for job in ("job", "head", "versions"):  # names that a job may have
        place = f"arn:aws:s3:::{BUCKET}/deepvm/0123456789ab/{job}"
        for key in ("machines/m1.json", "controller", "package.tar.gz", "versions/7/x"):
            assert allowed(machine, "s3:GetObject", f"{place}/{key}")
        for key in ("folder/0000", "history.json.gz", "settings.json"):
            assert not allowed(machine, "s3:GetObject", f"{place}/head/{key}")
    assert allowed(machine, "s3:PutObject", f"arn:aws:s3:::{BUCKET}/deepvm/o/job/versions/x")
    assert not allowed(
        machine, "s3:PutObject", f"arn:aws:s3:::{BUCKET}/deepvm/o/job/package.tar.gz"
    )


def test_the_doctor_prints_them() -> None:
    def printed(*words: str, bucket: str = BUCKET) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "deepvm.cli.main", "doctor", *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "DEEPVM_AWS_BUCKET": bucket},
        )

    settings = Ec2Settings(REGION, bucket=BUCKET)
    assert json.loads(printed("--iam", "--for", "run").stdout) == ec2_settings.policy(
        "run", settings
    )
    assert json.loads(printed("--iam", "--for", "head").stdout) == ec2_settings.policy(
        "head", settings
    )
    assert json.loads(printed("--iam", "--for", "machine").stdout) == ec2_settings.policy(
        "machine", settings
    )
    # A policy for a bucket that is nobody's would be put as it is
    for purpose in ("run", "head", "machine"):
        unset = printed("--iam", "--for", purpose, bucket="")
        assert (unset.returncode, unset.stdout) == (2, "")
        assert "DEEPVM_AWS_BUCKET: not given (expected the bucket that" in unset.stderr
    wrong = printed("--iam", "--for", "ruin")
    assert wrong.returncode == 2 and "run" in wrong.stderr
    assert printed("--for", "run").returncode == 2


def test_the_guide_s_statements_for_other_buckets() -> None:
    """What reading data and keeping versions there takes, and nothing else of that bucket."""
    text = (ROOT / "docs" / "internals" / "guide" / "aws.md").read_text(encoding="utf-8")
    policy = json.loads(text.partition("```json\n")[2].partition("```")[0])
    bucket = "arn:aws:s3:::other"
    for statement in ec2_settings.policy("machine", SETTINGS)["Statement"]:
        place = (
            bucket if statement["Resource"] == f"arn:aws:s3:::{BUCKET}" else f"{bucket}/run/job/x"
        )
        assert all(allowed(policy, action, place) for action in statement["Action"])
    assert all(
        allowed(policy, "s3:GetObject", f"{bucket}/{key}") for key in ("train/1.jpg", "train")
    )
    assert not allowed(policy, "s3:PutObject", f"{bucket}/train/1.jpg")
    assert not allowed(policy, "s3:GetObject", f"{bucket}/else")
