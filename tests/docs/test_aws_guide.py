"""The guide to AWS: its commands make what jobs need and remove it again.

Its first job is one, and trains.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.jobs.fake_ec2 import BUCKET, CREDENTIALS, IMAGE, FakeEc2
from support.jobs.fake_machines import Machines
from support.jobs.runs import Home, until
from support.jobs.simulated_aws import ec2, machines
from support.pages import ROOT, blocks, text_of

from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings, policy

__all__ = ["ec2", "machines"]

pytestmark = pytest.mark.slow  # simulated AWS

PAGE, REGION, USER = "docs/guide/aws.md", "us-east-1", "ME"
THEIRS = "my-deepvm-jobs"


@pytest.fixture
def account() -> Iterator[dict[str, str]]:
    """The environment of an account without anything but AWS's own policies, in a process of its
    own.
    """
    pytest.importorskip("moto.server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "DEEPVM_AWS_"))}
    found |= {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_PAGER": ""}
    found |= {"MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
    found["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), found["PATH"]])
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-p", str(port)],
        env=found,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: server.poll() is not None or answers(port), 60)
        yield found
    finally:
        server.kill()
        server.wait()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return not probe.connect_ex(("127.0.0.1", port))


def client(account: dict[str, str], service: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": REGION}
    return boto3.session.Session().client(service, endpoint_url=account["AWS_ENDPOINT_URL"], **keys)


def section(title: str) -> str:
    """The commands of a section."""
    text = text_of(PAGE).partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


@pytest.mark.skipif(shutil.which("aws") is None, reason="the AWS command line is not installed")
def test_what_is_set_up_is_what_jobs_need_and_is_removed_again(
    account: dict[str, str], tmp_path: Path
) -> None:
    ec2, s3, iam, budgets = (client(account, name) for name in ("ec2", "s3", "iam", "budgets"))
    number = client(account, "sts").get_caller_identity()["Account"]
    iam.create_user(UserName=USER)

    def bash(script: str) -> str:
        done = subprocess.run(
            ["bash", "-uc", script],
            env=account,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr

    said = bash(
        f"set -e\n{section('Set the account up')}\ndeclare -p AWS_REGION BUCKET POLICY > known"
    )
    assert said == ""
    for name in ("deepvm-job", "deepvm-head"):
        profile = iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
        assert [role["RoleName"] for role in profile["Roles"]] == [name]
        found = iam.get_role_policy(RoleName=name, PolicyName="deepvm")["PolicyDocument"]
        purpose = name.removeprefix("deepvm-").replace("job", "machine")
        assert found == policy(purpose, Ec2Settings(REGION, bucket=THEIRS))
    (rule,) = s3.get_bucket_lifecycle_configuration(Bucket=THEIRS)["Rules"]
    assert rule["Status"] == "Enabled" and rule["AbortIncompleteMultipartUpload"] == {
        "DaysAfterInitiation": 1
    }
    assert [
        p["PolicyName"] for p in iam.list_attached_user_policies(UserName=USER)["AttachedPolicies"]
    ] == ["deepvm-run"]
    assert [b["BudgetName"] for b in budgets.describe_budgets(AccountId=number)["Budgets"]] == [
        "deepvm"
    ]

    bash(
        next(
            line
            for line in section("Get onto a machine").splitlines()
            if "attach-role-policy" in line
        )
    )
    s3.put_object(Bucket=THEIRS, Key="deepvm/0123456789ab/first/versions/x", Body=b"x")
    s3.create_multipart_upload(Bucket=THEIRS, Key="deepvm/0123456789ab/first/versions/y")
    tags = [{"ResourceType": "launch-template", "Tags": [{"Key": "deepvm:job", "Value": "first"}]}]
    ec2.create_launch_template(
        LaunchTemplateName="ours", LaunchTemplateData={"ImageId": IMAGE}, TagSpecifications=tags
    )
    ec2.create_launch_template(LaunchTemplateName="other", LaunchTemplateData={"ImageId": IMAGE})

    said = bash(f"source known\n{section('Remove all of it')}")
    # The head's role has no such policy
    assert said.count("rror occurred") == 1 and "DetachRolePolicy" in said
    assert [
        t["LaunchTemplateName"] for t in ec2.describe_launch_templates()["LaunchTemplates"]
    ] == ["other"]
    assert s3.list_buckets()["Buckets"] == [] and iam.list_roles()["Roles"] == []
    assert iam.list_instance_profiles()["InstanceProfiles"] == []
    assert iam.list_policies(Scope="Local")["Policies"] == []
    assert budgets.describe_budgets(AccountId=number)["Budgets"] == []


def test_policies_are_no_longer_than_iam_takes() -> None:
    """Without blanks 6144 characters of a managed policy, 10240 of those in a role."""
    for purpose, limit in {"run": 6144, "head": 10240, "machine": 10240}.items():
        text = json.dumps(policy(purpose, Ec2Settings(REGION, bucket="b" * 63)))
        assert len("".join(text.split())) <= limit


@pytest.fixture
def home(ec2: FakeEc2, tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    found.env |= {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL": ec2.url,
        "AWS_REGION": REGION,
        "DEEPVM_AWS_BUCKET": BUCKET,
    }
    found.env |= {"DEEPVM_AWS_ANCHOR_AMI": IMAGE, "DEEPVM_AWS_PYTHON": sys.executable}
    yield found
    found.end()


def test_the_first_job_trains(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    """All of it but the setup, which installs packages of Ubuntu, and fewer steps."""
    folder = home.folder / "first"
    folder.mkdir()
    shutil.copy(ROOT / "docs" / "examples" / "four-lines" / "train.py", folder)
    job = yaml.safe_load(blocks(PAGE, "yaml")[0])
    assert "boto3" in job.pop("setup") and job["machines"] == {"type": "c5.large"}
    job["train"] = job["train"].replace("20000", "500")
    (folder / "job.yaml").write_text(yaml.safe_dump(job))

    laptop = {**home.env, "AWS_EC2_METADATA_DISABLED": "true"}
    words = home.command("run", "job.yaml", "--detach", "--dry-run")
    dry = subprocess.run(words, cwd=folder, env=laptop, capture_output=True, text=True, timeout=60)
    assert dry.returncode == 0, dry.stderr
    shown = blocks(PAGE, "text")[0].replace(THEIRS, BUCKET)
    for what in (r"[0-9a-f]{12}", r"\d+\.\d{4}"):
        seen = iter(re.findall(what, dry.stdout))
        shown = re.sub(what, lambda match, seen=seen: next(seen, match[0]), shown)
    assert dry.stdout == shown

    home.env["DEEPVM_CONTROLLER_HOST"] = "127.0.0.1"
    done = subprocess.run(
        home.command("run", "job.yaml"),
        cwd=folder,
        env=home.env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "state 4900.000000 after 500 steps" in home.run("jobs", "logs", "first").stdout
    assert home.document("jobs", "orphans")["orphans"] == [] and ec2.alive() == []
