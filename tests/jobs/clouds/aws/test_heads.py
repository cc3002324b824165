"""``deepvm run --detach`` from a computer that machines do not reach: the controller runs on an instance of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import BUCKET, CREDENTIALS, IMAGE, FakeEc2, running
from support.jobs.fake_machines import HEADS, Machine, Machines, step_of
from support.jobs.runs import Home, until

pytestmark = pytest.mark.slow  # whole jobs

TRAIN = "python own.py {steps} 0.05;"


@pytest.fixture
def ec2() -> Iterator[FakeEc2]:
    with running() as found:
        yield found


@pytest.fixture
def machines(ec2: FakeEc2, tmp_path: Path) -> Iterator[Machines]:
    found = Machines(ec2, tmp_path / "instances")
    yield found
    found.end()
    HEADS.clear()


@pytest.fixture
def home(ec2: FakeEc2, tmp_path: Path) -> Iterator[Home]:
    """A laptop: no metadata service, no address at which machines reach it."""
    found = Home(tmp_path)
    found.env |= CREDENTIALS
    found.env |= {"AWS_ENDPOINT_URL": ec2.url, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true"}
    found.env |= {"DEEPVM_AWS_BUCKET": BUCKET, "DEEPVM_AWS_AMI": IMAGE, "DEEPVM_AWS_ANCHOR_AMI": IMAGE}
    found.env |= {"DEEPVM_AWS_PYTHON": "python"}
    yield found
    found.end()


def submit(home: Home, machines: Machines, steps: int = 300, name: str = "one") -> None:
    tiers = [(home.folder / "versions").as_uri()]
    done = home.run("run", str(home.job(name, TRAIN.format(steps=steps), cloud="aws", tiers=tiers)), "--detach")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{name}\n" and "head-1 will run" in done.stderr


def head_of(machines: Machines, number: int = 1) -> Machine:
    return until(lambda: next((m for m in list(machines.all.values()) if m.name == f"head-{number}"), None), 30)


def state_of(home: Home, name: str = "one") -> str:
    return str(home.document("jobs", "show", name)["state"])


def console(machines: Machines) -> str:
    return "\n".join(f"--- {m.name}\n{(m.place / 'console').read_text()}" for m in machines.all.values())


def test_a_job_runs_without_the_computer_that_started_it(home: Home, ec2: FakeEc2, machines: Machines) -> None:
    submit(home, machines)
    until(lambda: step_of(home.result) == 1, 90)
    until(lambda: state_of(home) == "running", 30)
    (row,) = home.document("jobs", "ls")["jobs"]
    assert (row["controller"], row["machines"]) == ("alive", 1)
    assert not home.document("jobs", "orphans")["orphans"]
    until(lambda: state_of(home) == "done", 90)
    found = home.document("jobs", "show", "one")
    assert (found["steps"], found["preemptions"], found["generations"]) == (300, 0, 1), console(machines)
    assert 0 < found["head_usd"] < found["cost_usd"] < 0.1
    until(lambda: ec2.alive() == [], 30)
    assert not [key for key in ec2.objects() if "/versions" not in key], ec2.objects()
    assert json.dumps(found).count("head-1") == 0  # no machine of the job
