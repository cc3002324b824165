"""Machines that always fail before they can train: a few are paid for, and then the job stops and
says why.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs.runs import Home

from deepvm.jobs.controller.messages import event_of
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool
from deepvm.jobs.decisions.world_document import from_document, to_document
from deepvm.jobs.history.job_report import final_document

SPOT = Pool("a", "z", "spot", 3.6)
BROKEN = """
import os
if b"deepvm.jobs.agent.main" in open("/proc/self/cmdline", "rb").read():
    {}
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    found = Home(tmp_path)
    yield found
    found.end()


def broken(home: Home, how: str) -> None:
    """All machines from now on."""
    (home.folder / "site").mkdir()
    (home.folder / "site" / "sitecustomize.py").write_text(BROKEN.format(how))
    home.env["PYTHONPATH"] = str(home.folder / "site")


@pytest.mark.slow
def test_an_agent_that_exits_at_once(home: Home) -> None:
    broken(home, "os.write(2, b'libgone.so.1: cannot open shared object file\\n'); os._exit(127)")
    job = home.job("dead", "exec python own.py 20 0.02;")
    done = home.run("run", str(job), "-o", "json", limit_s=60)
    assert done.returncode == 3, done.stderr
    assert "libgone.so.1: cannot open shared object file" in done.stderr
    assert len(list((home.jobs / "dead" / "machines").iterdir())) == 3


@pytest.mark.slow
def test_a_machine_that_cannot_write(home: Home) -> None:
    (home.code / "large").write_bytes(os.urandom(1_000_000))
    broken(home, "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))")
    done = home.run(
        "run", str(home.job("full", "exec python own.py 20 0.02;")), "-o", "json", limit_s=60
    )
    assert done.returncode == 3, done.stderr
    assert (
        "the last 3 ended before they could train; m3: OSError: [Errno 27] File too large"
        in done.stderr
    )
    found = json.loads(done.stdout)
    assert [m["end_reason"] for m in found["machines"]] == ["unready"] * 3 and not found[
        "preemptions"
    ]


@pytest.mark.slow
def test_it_goes_on_once_it_is_mended(home: Home) -> None:
    broken(home, "os._exit(127)")
    assert (
        home.run(
            "run", str(home.job("mended", "exec python own.py 20 0.02;")), limit_s=60
        ).returncode
        == 3
    )
    del home.env["PYTHONPATH"]
    assert home.document("jobs", "resume", "mended")["steps"] == 20


def pool() -> Pool:
    return Pool("g4dn.xlarge", "z", "spot", 0.3)


def started(terms: JobLimits) -> JobState:
    return react(JobState(terms, 0.0, pools=(pool(),)), d.Tick(), 0.0)[0]


def test_a_job_without_its_data_ends_with_a_code_of_its_own() -> None:
    """Agents of an older deepvm do not say that it is the data.

    Its documents do not know of it either.
    """
    for more, code in [({"data": True}, 4), ({"data": False}, 1), ({}, 1)]:
        report = event_of("m1", {"event": "unusable", "why": "data: it: there is nothing", **more})
        assert report is not None
        world, _ = react(started(JobLimits(1, 1)), report, 5.0)
        assert world.job is Job.FAILED
        written = json.loads(json.dumps(to_document(world)))
        again = from_document(written, world.machines)
        assert again == world and final_document("it", 0.0, again, [], {})["exit_code"] == code
        del written["no_data"]
        assert (
            final_document("it", 0.0, from_document(written, world.machines), [], {})["exit_code"]
            == 1
        )


def test_exit_codes_of_the_other_ends() -> None:
    codes = {
        s: final_document("it", 0.0, JobState(JobLimits(1, 1), 0.0, s), [], {})["exit_code"]
        for s in Job
    }
    assert codes.pop(Job.DONE) == 0 and codes.pop(Job.STOPPED) == 3 and codes.pop(Job.FAILED) == 1
    assert set(codes.values()) == {None}


def coming(world: JobState) -> list[str]:
    return [m.id for m in world.machines.values() if m.state.coming]


def ended(world: JobState, now_s: float, *, taken: bool = False) -> JobState:
    """All machines that come are launched, and end before they can train."""
    gone = coming(world)
    members = {m.id: 0.0 for m in world.machines.values() if m.state is Machine.MEMBER}
    listed = d.InstancesListed(
        members, {m: (now_s - 1, now_s) for m in gone}, taken=frozenset(gone if taken else ())
    )
    heard = [d.Heartbeat(m, world.generation, warm=True) for m in members]
    return react(world, [*heard, *(d.Launched(m, now_s - 1) for m in gone), listed], now_s)[0]


def test_a_few_in_a_row_end_the_job() -> None:
    world = started(JobLimits(1, 1))
    for n in range(1, 4):
        assert not world.ending and coming(world) == [f"m{n}"]
        world = ended(world, 10.0 * n)
    assert (world.job, len(world.machines), world.preemptions) == (Job.STOPPED, 3, 0)
    assert world.ending == "machines keep failing: the last 3 ended before they could train"
    assert {m.end_reason for m in world.machines.values()} == {"unready"}


def test_machines_that_start_at_once_count_together() -> None:
    world = ended(started(JobLimits(4, 4)), 10.0)
    assert not world.ending and len(coming(world)) == 4
    assert ended(world, 20.0).job is Job.STOPPED


def test_lives_that_preemptions_end_may_be_as_short_as_they_like() -> None:
    world = started(JobLimits(1, 1))
    for n in range(50):
        world = ended(world, 10.0 * n, taken=True)
    assert not world.ending and world.preemptions == 50 and coming(world)
    world = started(JobLimits(1, 1))
    for n in range(50):
        m = coming(world)[0]
        world, _ = react(world, [d.Launched(m, 10.0 * n), d.Noticed(m, 10.0 * n + 5)], 10.0 * n)
        world, _ = react(world, d.InstancesListed({}, {m: (10.0 * n, 10.0 * n + 5)}), 10.0 * n + 5)
    assert not world.ending and world.preemptions == 50


def test_one_that_becomes_ready_begins_the_count_anew() -> None:
    world = started(JobLimits(1, 1))
    for n in range(20):
        world = ended(ended(world, 100.0 * n), 100.0 * n + 10)
        m = coming(world)[0]
        world, _ = react(
            world, [d.Launched(m, 100.0 * n + 20), d.Heartbeat(m, warm=True)], 100.0 * n + 20
        )
        listed = d.InstancesListed({}, {m: (100.0 * n + 20, 100.0 * n + 30)}, taken=frozenset([m]))
        world, _ = react(world, listed, 100.0 * n + 30)
    assert not world.ending


def test_one_whose_agent_is_never_heard_counts() -> None:
    world = started(JobLimits(1, 1))
    for now_s in range(0, 6_000, 100):
        heard = [
            d.Launched(m, float(now_s))
            for m in coming(world)
            if world.machines[m].launched_s is None
        ]
        gone = [m.id for m in world.machines.values() if m.state is Machine.RELEASING]
        world, _ = react(
            world,
            [*heard, d.InstancesListed({}, {m: (0.0, float(now_s)) for m in gone})],
            float(now_s),
        )
    assert world.job is Job.STOPPED and len(world.machines) == 3


def training(terms: JobLimits) -> JobState:
    world = started(terms)
    world, _ = react(world, d.Heartbeat("m1", warm=True), 5.0)
    world, _ = react(world, d.Heartbeat("m1", warm=True), 30.0)
    return react(world, d.Started("m1", world.generation, 0), 31.0)[0]


def test_what_trains_goes_on_without_those_that_fail() -> None:
    world = training(JobLimits(1, 2))
    for n in range(4):
        world = ended(world, 40.0 + 10 * n)
    assert not world.ending and world.formed and not coming(world)
    for now_s in range(100, 3_600, 10):
        world, _ = react(world, [d.Heartbeat("m1", 1, now_s), d.Tick()], float(now_s))
    assert not coming(world)
    again, _ = react(world, [d.Heartbeat("m1", 1, 3_690), d.Tick()], 3_700.0)
    assert len(coming(again)) == 1  # once more
    # Without the one that trains there is one more try, too.
    world, _ = react(
        world, d.InstancesListed({}, {"m1": (0.0, 3_600.0)}, taken=frozenset(["m1"])), 3_600.0
    )
    assert len(coming(world)) == 2
    assert ended(world, 3_610.0).job is Job.STOPPED


SETUP = "setup failed with exit code 1"


def test_a_machine_that_fails_is_released_and_replaced_at_once() -> None:
    world, acts = react(training(JobLimits(1, 2)), d.Failed("m2", SETUP), 40.0)
    assert (
        acts == (d.Release("m2"), d.Request("m3"))
        and world.machines["m2"].state is Machine.RELEASING
    )
    world, acts = react(world, d.Failed("m2", SETUP), 41.0)  # the answer was lost
    assert not acts
    world, _ = react(world, d.InstancesListed({"m1": 0.0, "m3": 40.0}, {"m2": (1.0, 42.0)}), 42.0)
    assert (
        world.machines["m2"].end_reason == "unready"
        and sum(u.count for u in world.unready.values()) == 1
    )
    assert world.formed and not world.job.over


def test_a_machine_that_nobody_needs_any_more_ends_no_job() -> None:
    """As on spot, where it is taken back during its setup, which fails for that."""
    for event in (d.Noticed("m1", 50.0), d.InstancesListed({}, {"m1": (1.0, 20.0)})):
        world, _ = react(started(JobLimits(1, 1)), [d.Launched("m1", 1.0), event], 20.0)
        assert world.machines["m1"].state in (Machine.RELEASING, Machine.ENDED)
        world, _ = react(world, d.Failed("m1", SETUP), 21.0)
        assert not world.job.over and coming(world) == ["m2"]


def test_a_setup_that_has_succeeded_once_is_the_machine_s_fault() -> None:
    world, _ = react(
        training(JobLimits(1, 2)), d.Failed("m2", "setup failed with exit code 1"), 40.0
    )
    assert not world.job.over and not world.failure
    for n in range(4):
        world = ended(world, 50.0 + 10 * n)
    world, _ = react(
        world, d.InstancesListed({}, {"m1": (0.0, 100.0)}, taken=frozenset(["m1"])), 100.0
    )
    world = ended(world, 110.0)
    assert world.ending.endswith("m2: setup failed with exit code 1"), world.ending
    world, _ = react(
        started(JobLimits(1, 1)), d.Failed("m1", "setup failed with exit code 1"), 40.0
    )
    assert world.job is Job.FAILED


def test_a_setup_that_fails_while_another_may_succeed_is_the_machines_fault() -> None:
    """The other machine, silent for a moment or not, has not been reported ready yet."""
    for silent in (False, True):
        world = started(JobLimits(2, 2))
        world, _ = react(
            world,
            [d.Heartbeat("m1"), d.Heartbeat("m2"), *([d.Silent("m2")] if silent else [])],
            5.0,
        )
        world, acts = react(world, d.Failed("m1", SETUP), 10.0)
        assert not world.job.over and acts == (d.Release("m1"), d.Request("m3"))
        world, _ = react(world, [d.Heartbeat("m2", warm=True), d.Heartbeat("m3", warm=True)], 20.0)
        assert (
            world.formed
            and world.members == ("m2", "m3")
            and world.machines["m1"].end_reason == "unready"
        )


def test_a_setup_that_fails_on_all_machines_is_the_jobs_fault() -> None:
    """Replacements that were requested after the first failure are not waited for."""
    world = started(JobLimits(3, 3))
    for n in (1, 2):
        world, _ = react(world, d.Failed(f"m{n}", SETUP), 10.0 + n)
        assert not world.job.over
    again = from_document(json.loads(json.dumps(to_document(world))), world.machines)
    for known in (world, again):
        failed, _ = react(known, d.Failed("m3", SETUP), 20.0)
        assert (failed.job, failed.failure, failed.requests) == (Job.FAILED, SETUP, 5)


def test_a_replacement_that_fails_is_judged_as_the_first_one_was() -> None:
    world, _ = react(started(JobLimits(2, 2)), d.Failed("m1", SETUP), 10.0)
    world, _ = react(world, d.Failed("m3", SETUP), 20.0)  # m2 may still succeed
    assert not world.job.over and coming(world) == ["m2", "m4"]
    world, _ = react(
        world, d.InstancesListed({"m4": 20.0}, {"m2": (0.0, 30.0)}, taken=frozenset(["m2"])), 30.0
    )
    assert react(world, d.Failed("m4", SETUP), 40.0)[0].job is Job.FAILED


def test_anchors_count_by_themselves() -> None:
    """The machines that train get ready in between, and cannot begin without the anchor."""
    anchor = Pool("m7g.large", "z", "on-demand", 0.1)
    world = started(JobLimits(1, 1, anchor=(anchor,), anchors=1))
    trainer = next(m.id for m in world.machines.values() if m.pool != anchor)
    for n in range(1, 4):
        assert not world.ending
        world, _ = react(world, d.Heartbeat(trainer, warm=True), 10.0 * n)
        world = ended(world, 10.0 * n + 1)
    assert world.job is Job.STOPPED and world.ending.startswith(
        "machines keep failing: the last 3 ended"
    )
    assert len(world.machines) == 4


def at_once(steps: int = 0) -> JobState:
    """A job whose only trainer, m2, has just failed.

    Whether its anchor, m1, lives is not known yet.
    """
    world = JobState(
        JobLimits(1, 1, anchor=(Pool("m", "z", "on-demand", 1.0),), anchors=1), 0.0, pools=(SPOT,)
    )
    told: list[tuple[list[d.Event], float]] = [
        ([d.Tick()], 0.0),
        ([d.InstancesListed({"m1": 0.0, "m2": 0.0})], 1.0),
        ([d.Heartbeat("m1", warm=True), d.Heartbeat("m2", warm=True)], 5.0),
        ([d.Started("m2", 1, 0), d.Heartbeat("m2", 1, steps, warm=True)], 6.0),
        ([d.Ended("m2", 1, 1, steps)], 7.0),
        ([d.Heartbeat("m2", 1, steps, warm=True)], 8.0),
    ]
    for events, now_s in told:
        world, _ = react(world, events, now_s)
    assert (world.anchors, world.members) == (("m1",), ("m2",))
    return world


@pytest.mark.parametrize("steps", [0, 40])
def test_trainers_that_fail_because_their_anchor_is_gone_have_not_failed(steps: int) -> None:
    """They cannot reach the memory node, and nobody knows yet why."""
    world = at_once(steps)
    assert world.formed and not world.job.over
    for lost in range(3):  # it may happen again and again
        anchor, number = world.anchors[0], world.generation
        world, _ = react(
            world, [d.InstancesListed({"m2": 0.0}, {anchor: (0.0, 9.0)})], 9.0 + 10 * lost
        )
        assert (world.job, world.formed, world.crashes) == (Job.FORMING, False, 0)
        (fresh,) = (m.id for m in world.machines.values() if m.state is Machine.INTENT)
        world, _ = react(
            world, [d.Launched(fresh, 10.0), d.Heartbeat(fresh, warm=True)], 10.0 + 10 * lost
        )
        assert (world.generation, world.anchors) == (number + 1, (fresh,))
        world, _ = react(world, [d.Started("m2", number + 1, 0)], 11.0 + 10 * lost)
        world, _ = react(world, [d.Ended("m2", number + 1, 1, steps)], 12.0 + 10 * lost)
        world, _ = react(world, [d.Heartbeat("m2", number + 1, steps, warm=True)], 13.0 + 10 * lost)


def test_trainers_that_fail_beside_a_silent_anchor_are_judged_without_it() -> None:
    world = at_once()
    for now_s in range(9, 60):
        world, _ = react(world, d.Heartbeat("m2", world.generation, warm=True), float(now_s))
        if not world.formed:
            break
    assert (world.job, world.crashes, now_s) == (Job.FORMING, 0, 5 + 15)


def test_trainers_that_fail_beside_an_anchor_that_lives_have_failed() -> None:
    world, _ = react(at_once(), d.Heartbeat("m1", warm=True), 9.0)
    assert world.job is Job.FAILED
