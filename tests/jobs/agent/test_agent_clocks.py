"""Machines whose clock on the wall is set while they train, by an hour forwards or back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.campaign import world_of
from support.jobs.kills import CHAIN, MUTATIONS, TORCH, final_of, nothing_is_left
from support.jobs.runs import Home, until

from deepvm.jobs.clouds.local import LocalCloud

pytestmark = pytest.mark.slow  # whole jobs


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "chain.py").write_text(CHAIN)
    (found.code / "train.py").write_text(TORCH)
    found.env |= {"PYTHONPATH": str(MUTATIONS), "JOBS_CLOCK": str(tmp_path / "clock")}
    yield found
    found.end()


@pytest.mark.parametrize("jump_s", [3600, -3600])
@pytest.mark.parametrize("kind", ["chain", "torch"])
def test_nothing_is_lost(home: Home, kind: str, jump_s: int) -> None:
    """A notice that comes before, and one that comes after, are heeded in time; nobody holds for longer."""
    if kind == "torch":
        pytest.importorskip("torch")
    train = {"chain": "exec python chain.py 3000;", "torch": "python train.py 600 0.05"}[kind]
    process = home.start("run", str(home.job("set", train)))
    try:
        until(lambda: _steps(home) > 20, 60)
        (home.folder / "clock").write_text(str(jump_s))
        until(lambda: _steps(home) > 60, 60)
        for machine, generation in (("m1", 2), ("m2", 3)):
            LocalCloud(home.jobs).preempt("set", machine, 8.0)
            noticed_s = time.monotonic()
            until(lambda: _generation(home) == generation, 30)  # noqa: B023
            assert time.monotonic() - noticed_s < 25
            steps = _steps(home)
            until(lambda: _steps(home) > steps + 20, 60)  # noqa: B023
        home.hurry()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    found = nothing_is_left(home, "set")
    assert (found["state"], found["notices"], found["lost_steps"]) == ("done", 2, 0)
    assert found["saves"]["emergency"] == 2
    result = (home.result / "final-0").read_text()
    if kind == "chain":
        assert result == final_of(3000)


def _steps(home: Home) -> int:
    world = world_of(home, "set")
    return 0 if world is None else world.steps


def _generation(home: Home) -> int:
    world = world_of(home, "set")
    return 0 if world is None else world.generation
