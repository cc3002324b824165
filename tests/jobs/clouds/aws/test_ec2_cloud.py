"""EC2 as a cloud of jobs, on moto behind a proxy with faults: one machine for each name, whatever happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import BUCKET, FakeEc2, running

from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
from deepvm.jobs.clouds.base import Launch, RefusedError, Start, UnknownError
from deepvm.jobs.wire import new_secret, secret_of
from deepvm.jobs.world import MachineRecord, Pool

TYPE = "g4dn.xlarge"
ZONE = Pool(TYPE, "us-east-1b", "spot", 0.3)
REGION = Pool(TYPE, "us-east-1", "spot", 0.3)
SECRET = new_secret()


@pytest.fixture
def ec2() -> Iterator[FakeEc2]:
    with running() as found:
        yield found


@pytest.fixture
def cloud(ec2: FakeEc2, tmp_path: Path) -> Ec2Cloud:
    return ec2.cloud(tmp_path)


def ask(cloud: Ec2Cloud, name: str = "m1", pool: Pool = ZONE) -> Launch:
    start = Start("job", name, secret_of(SECRET, name), "http://127.0.0.1:9")
    return cloud.request(MachineRecord(name, pool, time.time()), start)


def test_life_of_a_machine(cloud: Ec2Cloud, ec2: FakeEc2) -> None:
    assert not cloud.listing("job").alive
    launch = ask(cloud)
    assert launch.zone == "us-east-1b" and abs(launch.launched_s - time.time()) < 5
    found = cloud.listing("job")
    assert list(found.alive) == ["m1"] and found.zones == {"m1": "us-east-1b"}
    assert not cloud.listing("other").alive
    cloud.release("job", "m1")
    found = cloud.listing("job")
    began_s, ended_s = found.ended["m1"]
    assert not found.alive and 0 <= ended_s - began_s < 10
    cloud.release("job", "m1")  # once more, and one that never was
    cloud.release("job", "m9")
    cloud.finish("job")
    assert ec2.alive() == [] and not [k for k in ec2.keys() if "versions" not in k]
    assert not ec2.client("ec2").describe_launch_templates()["LaunchTemplates"]
