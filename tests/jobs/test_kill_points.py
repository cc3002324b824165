"""Each labeled point kills once, on both sides of each change of a state.

The job ends as it would have.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.effort import THOROUGH
from support.jobs.campaign import processes
from support.jobs.kills import (
    CHAIN,
    TORCH,
    arm,
    final_of,
    nothing_is_left,
    points,
    said_by,
    undisturbed,
    until_it_ends,
)
from support.jobs.runs import Home, until

from deepvm.jobs.history.history import PLACE, History

pytestmark = pytest.mark.slow  # whole jobs

STEPS = 200


def of(*states: str) -> set[str]:
    return {f"{state}.{where}" for state in states for where in ("unwritten", "written")}


STOPPED, FAILED = of("job.stopped"), of("job.failed")
SILENT, REFUSED = of("machine.suspect", "machine.lost"), of("machine.failed")
ANCHORED = {"anchor.before-node", "anchor.after-node", "warm.loaded", "warm.ordered"} | of(
    "machine.warming"
)
HEADS = {point for point in points() if point.startswith("head.")}
"""tests/jobs/clouds/aws/test_heads.py and tests/jobs/head kill there."""
SCHEDULED = {
    "controller.before-schedule",
    "agent.scheduled",
    "agent.before-kill",
    "agent.after-kill",
}
QUICK = {
    "job.pending.begun",
    "job.running.unwritten",
    "cloud.before-request",
    "local.before-reply",
    "backup.before-rename",
    "outputs.before-list",
    "outputs.before-send",
}
AT_THE_END = of("job.done") | {"job.finished", "agent.ended"}
ELSEWHERE = STOPPED | FAILED | SILENT | REFUSED | ANCHORED | SCHEDULED | HEADS
HERE = sorted(points() - ELSEWHERE)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "chain.py").write_text(CHAIN)
    (found.code / "train.py").write_text(TORCH)
    yield found
    found.end()


def test_every_point_is_in_a_campaign() -> None:
    assert points() >= ELSEWHERE and points() >= QUICK


def hurry_when(home: Home, folder: Path, most_s: float) -> Callable[[], None]:
    """Let the training end once only points at its end are left, or after so long."""
    until_s = time.monotonic() + most_s

    def look() -> None:
        if time.monotonic() > until_s or not {p.name for p in folder.iterdir()} - AT_THE_END:
            home.hurry()

    return look


@pytest.mark.parametrize("part", range(6) if THOROUGH else ["quick"])
def test_a_job_ends_well_whatever_is_killed(home: Home, part: Any) -> None:
    labels, steps = sorted(QUICK) if part == "quick" else HERE[part::6], 50 * STEPS
    inject = {"mttp": "1s", "count": 200, "grace": "6s", "seed": 3}  # kills are counted, too
    more = {"setup": "true", "inject": inject, "outputs": ["kept.txt"]}
    job = home.job("points", f"exec python chain.py {steps};", **more)
    folder = arm(home, labels)
    assert until_it_ends(home, job, "points", 300, hurry_when(home, folder, 150)) == 0
    assert (home.result / "final-0").read_text() == final_of(steps)
    # Whatever was killed, the last output is whole and the newest
    fetched = home.run("jobs", "fetch", "points", "--to", str(home.folder / "got"))
    assert fetched.returncode == 0, fetched
    assert (home.folder / "got" / "kept.txt").read_text() == final_of(steps)
    assert nothing_is_left(home, "points")["state"] == "done"
    assert not sorted(p.name for p in folder.iterdir()), "points that were not reached"


@pytest.mark.skipif(not THOROUGH, reason="the thorough suite")
@pytest.mark.parametrize("labels", [ANCHORED, SCHEDULED], ids=["anchor", "schedule"])
def test_two_ranks_and_an_anchor(home: Home, tmp_path: Path, labels: set[str]) -> None:
    pytest.importorskip("torch")
    inject = {"mttp": "3s", "count": 200, "grace": "8s", "seed": 2}
    job = home.job(
        "torch", "python train.py 3000 0.1", count=2, anchor={"type": "m7g.large"}, inject=inject
    )
    folder = arm(home, labels)
    assert until_it_ends(home, job, "torch", 500, hurry_when(home, folder, 240)) == 0
    finals = {(home.result / f"final-{rank}").read_text() for rank in range(2)}
    assert nothing_is_left(home, "torch")["state"] == "done"
    assert not sorted(p.name for p in folder.iterdir()), "points that were not reached"
    calm = Home(tmp_path / "calm")
    (calm.code / "train.py").write_text(TORCH)
    assert finals == {undisturbed(calm, 3000)}


def noting(name: str) -> str:
    """A line of the script that notes its step; appended, so that a kill leaves the one before."""
    return (
        f'    open(f"{{here}}/{name}-{{epoch}}-{{dist.get_rank()}}", "a").write(f"{{step +'
        ' 1}\\n")\n'
    )


COUNTED = TORCH.replace("    time.sleep(", noting("did") + "    time.sleep(").replace(
    "    optimizer.zero_grad()", noting("begun") + "    optimizer.zero_grad()"
)


@pytest.mark.parametrize("anchor", [{"type": "m7g.large"}, "none"], ids=["anchor", "folder"])
def test_a_version_that_is_complete_when_rank_0_vanishes_unheard(home: Home, anchor: Any) -> None:
    """Between the commit and the report: nobody has said that it is there, and the next generation
    begins with it.
    """
    pytest.importorskip("torch")
    (home.code / "train.py").write_text(COUNTED)
    job = home.job(
        "torch", "python train.py 400 0.05", count=2, anchor=anchor, save_policy="static:60"
    )
    armed, restored = arm(home, ["agent.before-saved"]), home.result / "restored-0"
    process = home.start("run", str(job))
    until(
        lambda: (
            (restored.exists() and len(restored.read_text().splitlines()) == 2)
            or process.poll() is not None
        ),
        90,
    )
    assert process.poll() is None, said_by(process)
    assert not list(armed.iterdir()) and restored.read_text().splitlines() == ["1 0 0", "2 60 1"]
    with History.open({PLACE: str(home.jobs.parent / "history.db")}) as history:
        until(lambda: any(e.facts.get("version") == 60 for e in history.events("torch")))
        events, world = history.events("torch"), history.world("torch")
    assert [e.kind for e in events if e.facts.get("version") == 60] == ["started"]
    assert (world.version, world.generation) == (60, 2)
    home.hurry()
    assert process.wait(90) == 0, said_by(process)
    said_by(process)
    begun, did = (
        max(int((home.result / f"{name}-1-{rank}").read_text().split()[-1]) for rank in range(2))
        for name in ("begun", "did")
    )
    found = nothing_is_left(home, "torch")
    assert (found["state"], found["version"] % 60) == ("done", 0)
    # The step that the kill interrupted may have been counted; the one before it may not have been
    # told.
    assert did - 60 - 1 <= found["lost_steps"] <= begun - 60
    assert len({(home.result / f"final-{rank}").read_text() for rank in range(2)}) == 1


def scenario_stopped(home: Home) -> tuple[Path, Callable[[], None], int]:
    # Again where the controller was killed: a stopped job that is resumed goes on
    def stop() -> None:
        if list(home.result.glob("mine-0-*-25")) and time.monotonic() >= asked_s[-1] + 10:
            asked_s.append(time.monotonic())
            home.run("jobs", "stop", "job")

    asked_s = [-math.inf]
    return home.job("job", "exec python chain.py 100000;", save_policy="static:25"), stop, 3


def scenario_failed(home: Home) -> tuple[Path, Callable[[], None], int]:
    return home.job("job", "exit 9;"), lambda: None, 1


def scenario_silent(home: Home) -> tuple[Path, Callable[[], None], int]:
    def silence() -> None:
        agents = processes(home, "agent")
        if not stopped and agents and (home.result / "mine-0-1-25").exists():
            stopped.append(agents[0])
            os.kill(agents[0], signal.SIGSTOP)

    stopped: list[int] = []
    return (
        home.job("job", f"exec python chain.py {8 * STEPS};", save_policy="static:25"),
        silence,
        0,
    )


def scenario_refused(home: Home) -> tuple[Path, Callable[[], None], int]:
    def refuse() -> None:  # where m1 should be there is something else
        with contextlib.suppress(OSError):
            (home.jobs / "job").mkdir(parents=True, exist_ok=True)
            (home.jobs / "job" / "machines").mkdir()
            (home.jobs / "job" / "machines" / "m1").touch()

    refuse()
    return home.job("job", f"exec python chain.py {STEPS};"), lambda: None, 0


@pytest.mark.skipif(not THOROUGH, reason="the thorough suite")
@pytest.mark.parametrize(
    ("labels", "scenario"),
    [
        (STOPPED, scenario_stopped),
        (FAILED, scenario_failed),
        (SILENT, scenario_silent),
        (REFUSED, scenario_refused),
    ],
)
def test_the_other_states(home: Home, labels: set[str], scenario: Callable[[Home], Any]) -> None:
    job, meanwhile, code = scenario(home)
    folder, began = arm(home, labels), time.monotonic()
    assert until_it_ends(home, job, "job", 200, meanwhile) == code, time.monotonic() - began
    assert not sorted(p.name for p in folder.iterdir()), "points that were not reached"
    assert until(lambda: not home.processes(), 15)
    assert not home.document("jobs", "orphans")["orphans"]
