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
from deepvm.jobs.decisions.states import Job
from deepvm.jobs.standing import ALIVE, controller_in

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
    """A notice that comes before, and one that comes after, are heeded in time.

    Nobody holds for longer.
    """
    if kind == "torch":
        pytest.importorskip("torch")
    train = {"chain": "exec python chain.py 3000;", "torch": "python train.py 3000 0.05"}[kind]
    process = home.start("run", str(home.job("set", train)))
    try:
        until(lambda: _runs(home) == 1, 60)
        time.sleep(1)
        (home.folder / "clock").write_text(str(jump_s))
        time.sleep(2)
        for generation, machine in ((2, "m1"), (3, "m2")):
            LocalCloud(home.jobs).preempt("set", machine, 8.0)
            noticed_s = time.monotonic()
            until(lambda: _runs(home) == generation, 40)  # noqa: B023
            assert time.monotonic() - noticed_s < 30
            time.sleep(2)
        home.hurry()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    found = nothing_is_left(home, "set")
    assert (found["state"], found["notices"], found["lost_steps"]) == ("done", 2, 0)
    assert found["saves"]["emergency"] == 2
    results = {(home.result / "final-0").read_text()}
    assert results == {final_of(3000)} or kind == "torch"


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_job_costs_what_it_took(home: Home, jump_s: int) -> None:
    """The clock is set while a job with a budget and a deadline runs, and again while it has no
    controller.
    """
    home.env["JOBS_CLOCK_OF_ALL"] = "1"
    began_s = time.monotonic()
    budget = {"total_usd": 0.1, "deadline": "40min"}
    process = home.start("run", str(home.job("set", "exec python chain.py 3000;", budget=budget)))
    until(lambda: _runs(home) == 1, 60)
    (home.folder / "clock").write_text(str(jump_s))
    LocalCloud(home.jobs).preempt("set", "m1", None)
    until(lambda: _runs(home) == 2, 60)  # a machine from before, and one from after
    process.kill()
    process.communicate()
    (home.folder / "clock").write_text(str(2 * jump_s))
    assert 0 < home.document("jobs", "show", "set")["cost_usd"] < 0.02
    resumed = home.start("jobs", "resume", "set")
    until(lambda: controller_in(home.jobs / "set") == ALIVE, 30)
    home.hurry()
    _, printed = resumed.communicate(timeout=90)
    assert resumed.returncode == 0, printed
    took_s = time.monotonic() - began_s
    found = nothing_is_left(home, "set")
    assert found["state"] == "done" and 1 < found["total_s"] < took_s + 5
    assert len(found["machines"]) == 2 and all(0 < m["usd"] < 0.005 for m in found["machines"])


def _runs(home: Home) -> int:
    """The generation that trains, 0 while none does."""
    world = world_of(home, "set")
    return world.generation if world is not None and world.job is Job.RUNNING else 0
