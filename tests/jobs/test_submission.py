"""What a job file asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deepvm.jobs import submission
from deepvm.jobs.clouds.aws.ec2_cloud import Ec2Cloud
from deepvm.jobs.clouds.aws.ec2_settings import Ec2Settings
from deepvm.jobs.decisions.world import PREEMPTED
from deepvm.jobs.jobfile import JobFile

NOW = 1_000_000_000.0
ZONES = {"us-east-1a": 0.2, "us-east-1b": 0.2}


class Zones(Ec2Cloud):
    """EC2 as far as a job asks it before anything is rented."""

    def zones(self, instance_type: str, market: str) -> dict[str, float | None]:
        return dict(ZONES)


def taken(cloud: str) -> dict[str, Any]:
    """A machine of us-east-1a that lived for half a minute."""
    pool = {"instance_type": "g4dn.xlarge", "zone": "us-east-1a", "market": "spot", "cloud": cloud}
    times = {"requested_s": NOW - 1000, "launched_s": NOW - 1000, "ended_s": NOW - 970}
    return {**pool, **times, "end_reason": PREEMPTED}


@pytest.mark.parametrize(("cloud", "first"), [("aws", "us-east-1b"), ("local", "us-east-1a"), ("netns", "us-east-1a")])
def test_zones_are_in_the_order_of_what_their_market_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str, first: str
) -> None:
    """And not of what a rehearsal with preemptions on purpose did in a local zone of the same name."""
    ec2 = Zones(tmp_path, Ec2Settings("us-east-1"))
    monkeypatch.setattr(submission, "cloud_of", lambda name: ec2)
    job = JobFile.model_validate(
        {"name": "job", "train": "true", "machines": {"type": "g4dn.xlarge", "count": 2}, "cloud": "aws"}
    )
    world = submission.world_of(job, tmp_path, NOW, [taken(cloud)] * 20)
    assert world.pools[0].zone == first
