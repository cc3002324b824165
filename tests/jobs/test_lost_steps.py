"""Steps that were done again: what is said of them beside what trainings have really done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import MEET, Home

from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason

SCRIPT = (
    MEET
    + """
import os, sys, time
import deepvm.training as dt

here, rank, epoch = os.environ["RESULT"], os.environ["RANK"], os.environ["DEEPVM_EPOCH"]
latest = dt.latest()
first = step = int(latest.read_text()) if latest else 0
done = open(f"{here}/done-{epoch}-{rank}", "w")
done.write(f"{first}\\n")
while step < int(sys.argv[1]):
    with dt.step_context():
        time.sleep(0.03)
    step += 1
    done.write(f"{step}\\n")
    done.flush()
    if dt.check_save():
        mine = f"{here}/mine-{rank}-{epoch}-{step}"
        open(mine, "w").write(str(step))
        dt.backup(mine)
"""
)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    (found.code / "counted.py").write_text(SCRIPT)
    yield found
    found.end()


def really_lost(home: Home) -> int:
    """By what the ranks have written of each generation: its first step, and each that was done."""
    first, last = dict[int, int](), dict[int, int]()
    for file in home.result.glob("done-*-*"):
        generation, steps = (
            int(file.name.split("-")[1]),
            [int(line) for line in file.read_text().split()],
        )
        first[generation] = steps[0]
        last[generation] = max(last.get(generation, 0), steps[-1])
    return sum(max(last[n - 1] - first[n], 0) for n in sorted(first)[1:])


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_of_a_whole_job(home: Home, count: int) -> None:
    inject = {"mttp": "5s", "count": 3, "seed": 4, "missed": 1.0}
    job = home.job(
        "again", "exec python counted.py 700;", count=count, save_policy="static:90", inject=inject
    )
    found = home.document("run", str(job))
    assert found["state"] == "done" and found["preemptions"] == 3
    lost = really_lost(home)
    assert lost >= 40
    assert abs(found["lost_steps"] - lost) <= 0.05 * lost + 3, lost


def training(count: int) -> JobState:
    """Machines that have done 20 steps of half a second at 10 s, with a version after 10."""
    world, _ = react(
        JobState(JobLimits(1, count), 0.0, pools=(Pool("a", "z", "spot", 1.0),)), d.Tick(), 0.0
    )
    names = list(world.machines)
    world, _ = react(world, [d.Heartbeat(m, warm=True) for m in names], 0.0)
    world, _ = react(world, [d.Started(m, 1, 0 if m == "m1" else None) for m in names], 0.0)
    world, _ = react(world, d.Safe(1, 10, Reason.INSURANCE, took_s=0.1), 5.1)
    return react(world, [d.Heartbeat(m, 1, 20, True, 0.5) for m in names], 10.0)[0]


def resumed(
    world: JobState, *events: d.Event, at_s: float, version: int, done: int = 0
) -> JobState:
    """After events, and once others have taken over from a version."""
    for event in events:
        world, _ = react(world, event, at_s)
    if not world.members or not world.formed:
        name = list(world.machines)[-1]
        world, _ = react(world, d.Heartbeat(name, warm=True), at_s + 5)
    first = world.members[0]
    world, _ = react(world, d.Started(first, 2, done=done), at_s + 5)
    return react(world, d.Started(first, 2, version), at_s + 5)[0]


def test_survivors_say_how_far_they_were() -> None:
    gone = d.InstancesListed({"m1": 0.0}, {"m2": (0.0, 14.0)})
    assert resumed(training(2), gone, at_s=14.2, version=10, done=27).lost_steps == 17


def test_where_nobody_survives_steps_follow_from_the_time() -> None:
    gone = d.InstancesListed({}, {"m1": (0.0, 14.0)})
    assert resumed(training(1), gone, at_s=30.0, version=10).lost_steps == 20 + 8 - 10


def test_nothing_is_done_while_training_stands_still() -> None:
    notice, safe = d.Noticed("m1", 120.0), d.Safe(1, 21, Reason.EMERGENCY, took_s=0.1)
    world, gone = training(1), d.InstancesListed({}, {"m1": (0.0, 14.0)})
    for event in (notice, safe):
        world, _ = react(world, event, 10.6)
    assert (
        resumed(world, d.Heartbeat("m1", 1, 21, True, 0.5), gone, at_s=14.0, version=21).lost_steps
        == 0
    )


def test_a_machine_that_is_gone_before_its_first_heartbeat_has_done_what_there_was_time_for() -> (
    None
):
    world = resumed(training(1), d.InstancesListed({}, {"m1": (0.0, 14.0)}), at_s=14.0, version=10)
    world, _ = react(
        world, d.InstancesListed({}, {"m2": (14.0, 22.0)}), 22.0
    )  # 3 s after its start
    world, _ = react(world, d.Heartbeat("m3", warm=True), 30.0)
    world, _ = react(world, d.Started("m3", 3, 10), 30.0)
    assert world.lost_steps == 18 + 6


def test_a_version_that_nobody_has_announced_counts_once_training_goes_on_from_it() -> None:
    """Its rank 0 was gone between the commit and the report; another generation finds it."""
    world = resumed(
        training(2),
        d.InstancesListed({"m2": 0.0}, {"m1": (0.0, 14.0)}),
        at_s=14.2,
        version=25,
        done=27,
    )
    assert (world.version, world.steps, world.lost_steps) == (25, 25, 2)
    assert world.lasts == 25  # it was where all machines look, as there is no anchor
    again, _ = react(world, d.Started("m2", 2, 25), 20.0)
    assert (again.version, again.lost_steps) == (25, 2)


def test_a_version_that_was_announced_and_is_not_found_is_none() -> None:
    world = resumed(training(1), d.InstancesListed({}, {"m1": (0.0, 14.0)}), at_s=30.0, version=4)
    assert (world.version, world.lasts, world.steps, world.lost_steps) == (4, 4, 4, 20 + 8 - 4)


def test_nothing_is_done_behind_a_version_before_a_preemption_that_nobody_has_announced() -> None:
    """Trainers hold from step 21 on, until their machine is gone three seconds later."""
    world, gone = training(1), d.InstancesListed({}, {"m1": (0.0, 14.0)})
    world, _ = react(world, d.Noticed("m1", 120.0), 10.6)
    assert world.save is not None and world.save.reason is Reason.EMERGENCY
    found = resumed(world, gone, at_s=14.0, version=22)
    assert (found.version, found.lost_steps) == (22, 0)
    assert resumed(world, gone, at_s=14.0, version=10).lost_steps == 12
