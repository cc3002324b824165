"""A simulated AWS for the tests of clouds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import BUCKET, CREDENTIALS, IMAGE, FakeEc2
from support.jobs.runs import Home
from support.jobs.simulated_aws import ec2, machines

__all__ = ["ec2", "home", "machines"]


@pytest.fixture
def home(ec2: FakeEc2, tmp_path: Path) -> Iterator[Home]:
    """A laptop with the account's credentials: no metadata service, no address at which machines
    reach it.
    """
    found = Home(tmp_path)
    found.env |= CREDENTIALS
    found.env |= {
        "AWS_ENDPOINT_URL": ec2.url,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    found.env |= {
        "DEEPVM_AWS_BUCKET": BUCKET,
        "DEEPVM_AWS_AMI": IMAGE,
        "DEEPVM_AWS_ANCHOR_AMI": IMAGE,
    }
    found.env["DEEPVM_AWS_PYTHON"] = sys.executable
    yield found
    found.end()
