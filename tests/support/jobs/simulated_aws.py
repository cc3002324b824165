"""Fixtures: a simulated EC2, and instances that run what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.fake_ec2 import FakeEc2, running
from support.jobs.fake_machines import HEADS, Machines

__all__ = ["ec2", "machines"]


@pytest.fixture
def ec2() -> Iterator[FakeEc2]:
    with running() as found:
        yield found


@pytest.fixture
def machines(ec2: FakeEc2, tmp_path: Path) -> Iterator[Machines]:
    """Its instances run what they are given."""
    found = Machines(ec2, tmp_path / "instances")
    yield found
    found.end()
    HEADS.clear()
