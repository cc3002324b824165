"""The controller's decisions in simulated time: whatever happens, the job ends, and nothing is
left.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.jobs.simulation import Faults, Simulation, finished

from deepvm.core.preemption.savepolicy import parse_policy
from deepvm.jobs.decisions import events as d
from deepvm.jobs.decisions.apply_events import between_steps
from deepvm.jobs.decisions.reconcile import react
from deepvm.jobs.decisions.states import Job, Machine
from deepvm.jobs.decisions.world import JobLimits, JobState, Pool, Reason
from deepvm.jobs.decisions.world_document import from_document, to_document
from deepvm.jobs.history.pools import learnt


def test_nothing_happens() -> None:
    world = finished(Simulation(random.Random(1), JobLimits(2, 2), Faults()))
    assert (world.job, world.generation, world.preemptions, world.lost_steps) == (Job.DONE, 1, 0, 0)
    assert len(world.machines) == 2


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 10**9), size=st.sampled_from([(1, 1), (2, 2), (1, 3)]))
def test_no_step_is_lost_where_a_notice_comes_in_time(seed: int, size: tuple[int, int]) -> None:
    simulation = Simulation(random.Random(seed), JobLimits(*size), Faults(notices=3))
    world = finished(simulation)
    assert world.job is Job.DONE and world.lost_steps == simulation.lost == 0
    assert world.notices == world.preemptions


@settings(max_examples=examples(300), deadline=None)
@given(
    seed=st.integers(0, 10**9),
    size=st.sampled_from([(1, 1), (2, 2), (3, 3), (1, 4), (2, 4)]),
    notices=st.integers(0, 4),
    losses=st.integers(0, 4),
    cuts=st.integers(0, 4),
    crashes=st.integers(0, 4),
    refusals=st.sampled_from([0.0, 0.3]),
    replies=st.sampled_from([0.0, 0.3]),
)
def test_it_ends_and_leaves_nothing(
    seed: int,
    size: tuple[int, int],
    notices: int,
    losses: int,
    cuts: int,
    crashes: int,
    refusals: float,
    replies: float,
) -> None:
    faults = Faults(notices, 8.0, losses, cuts, crashes, refusals, replies)
    simulation = Simulation(random.Random(seed), JobLimits(*size), faults)
    world = finished(simulation)
    assert world.job is Job.DONE
    assert all(m.state.over or m.state is Machine.RELEASING for m in world.machines.values())
    assert world.saves.get(Reason.EMERGENCY, 0) <= notices


def test_a_script_that_ends_well_before_its_last_step() -> None:
    for steps, done, ending, job, failure in [
        (400, 400, "", Job.DONE, ""),
        (None, 10, "", Job.DONE, ""),
        (400, 0, "", Job.DONE, ""),  # it reports none: nothing is known
        (
            400,
            10,
            "",
            Job.FAILED,
            "the script ended with exit code 0 after 10 of 400 steps; if that is all, leave out",
        ),
        (400, 10, "stopped by the user", Job.STOPPED, ""),
    ]:
        world = JobState(JobLimits(1, 1, steps=steps), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
        for event in (
            d.Tick(),
            d.Launched("m1", 1.0),
            d.Heartbeat("m1", warm=True),
            d.Started("m1", 1),
            d.Tick(),
        ):
            world, _ = react(world, event, 2.0)
        world, _ = react(replace(world, ending=ending), d.Ended("m1", 1, 0, done), 3.0)
        assert (
            world.job is job
            and world.failure.startswith(failure)
            and bool(world.failure) is bool(failure)
        )


def test_a_version_that_was_under_way_is_not_the_emergency_save() -> None:
    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
    first = "m1"
    for event in (
        d.Tick(),
        d.Launched(first, 1.0),
        d.Heartbeat(first, warm=True),
        d.Started(first, 1, 0),
        d.Noticed(first, 120.0),
        d.Safe(1, 40, Reason.INSURANCE),
    ):
        world, acts = react(world, event, 2.0)
    assert world.save is not None and not world.save.safe and not acts
    world, acts = react(world, d.Safe(1, 41, Reason.EMERGENCY), 3.0)
    assert acts[0] == d.Release(first)
    assert world.saves == {Reason.INSURANCE: 1, Reason.EMERGENCY: 1}


def running(*more: d.Event) -> JobState:
    """One machine that trains, after further events."""
    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
    for event in (
        d.Tick(),
        d.Launched("m1", 1.0),
        d.Heartbeat("m1", warm=True),
        d.Started("m1", 1, 0),
        *more,
    ):
        world, _ = react(world, event, 2.0)
    return world


def test_what_passes_between_steps_is_summed_up_over_generations() -> None:
    """Heartbeats say how much it was since their generation began.

    The first trainer's machine counts.
    """
    world = running(
        d.Heartbeat("m1", 1, 5, between_s=1.0, of_s=4.0),
        d.Heartbeat("m1", 1, 9, between_s=2.0, of_s=8.0),
    )
    assert (world.between.s, world.between.of_s) == (2.0, 8.0)
    world = from_document(to_document(world), world.machines)
    again = replace(world, generation=2)
    heard, _ = react(again, d.Heartbeat("m1", 2, 11, between_s=3.0, of_s=4.0), 3.0)
    assert (heard.between.s, heard.between.of_s) == (5.0, 12.0)
    second = replace(again, members=("m7", "m1"))
    assert between_steps(second, d.Heartbeat("m1", 2, 11, between_s=3.0, of_s=4.0)) is second


def test_a_rebalance_recommendation_is_an_insurance_and_nothing_else() -> None:
    world = running(d.Rebalanced("m1"))
    assert world.save is not None and world.save.reason is Reason.INSURANCE
    assert running(d.Rebalanced("m7")).save is None
    world, acts = react(world, d.Safe(1, 40, Reason.INSURANCE), 3.0)
    assert world.save is None and not acts and world.members == ("m1",) and world.generation == 1
    assert world.saves == {Reason.INSURANCE: 1} and not world.notices


@pytest.mark.parametrize("first", [d.Rebalanced("m1"), d.SaveNow()])
def test_a_save_that_does_not_hold_gives_way_to_a_notice(first: d.Event) -> None:
    world = running(first, d.Noticed("m1", 120.0))
    assert world.save is not None and world.save.reason is Reason.EMERGENCY
    assert first != d.Rebalanced("m1") or running(d.Noticed("m1", 120.0), first).save == world.save
    world, acts = react(world, d.Safe(1, 40, world.save.reason), 3.0)
    assert d.Release("m1") in acts


def test_steps_that_were_heard_of_before_their_version_are_not_lost() -> None:
    world = JobState(JobLimits(1, 1), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
    events = (
        d.Tick(),
        d.Launched("m1", 1.0),
        d.Heartbeat("m1", warm=True),
        d.Started("m1", 1, 0),
        d.Heartbeat("m1", 1, 40, warm=True),
        d.Noticed("m1", 120.0),
        d.Safe(1, 41, Reason.EMERGENCY),
        d.Heartbeat("m2", warm=True),
        d.Started("m2", 2),
        d.Heartbeat("m2", 2, 43, warm=True),
        d.Started("m2", 2, 41),
    )
    for event in events:
        world, _ = react(world, event, 2.0)
    assert world.generation == 2 and world.lost_steps == 0 and world.steps == 43


def test_a_newcomer_waits_until_the_others_can_go_on_at_once() -> None:
    world = JobState(JobLimits(1, 2), 0.0, pools=(Pool("a", "z", "spot", 1.0),))
    for event in (d.Tick(), d.Heartbeat("m1", warm=True), d.Tick()):
        world, _ = react(world, event, 20.0)
    world, _ = react(world, (d.Heartbeat("m1", warm=True), d.Tick()), 40.0)
    assert world.members == ("m1",)  # the other did not come in time
    world, _ = react(
        world, (d.Started("m1", 1, 0), d.Heartbeat("m1", 1, 5, warm=True, spare=False)), 41.0
    )
    world, _ = react(world, d.Heartbeat("m2", warm=True), 42.0)
    assert world.save is None and world.job is Job.RUNNING
    loaded, _ = react(world, d.Heartbeat("m1", 1, 9, warm=True), 45.0)
    assert loaded.save is not None and loaded.save.reason is Reason.RESIZE
    beats = (d.Heartbeat("m1", 1, 9, warm=True, spare=False), d.Heartbeat("m2", warm=True))
    late, _ = react(world, beats, 110.0)  # nobody waits for ever
    assert late.save is not None and late.save.reason is Reason.RESIZE


def test_a_noticed_machine_that_falls_silent_delays_no_other() -> None:
    """Whether a version was asked for, and whether the trainers of the others have failed without
    it.
    """
    for policy in ["adaptive", "static:1000"]:
        for exits in [False, True]:
            world = JobState(
                JobLimits(1, 2, policy=parse_policy(policy)),
                0.0,
                pools=(Pool("a", "z", "spot", 1.0),),
            )
            world, _ = react(world, d.Tick(), 1.0)
            world, _ = react(
                world, [d.Heartbeat("m1", warm=True), d.Heartbeat("m2", warm=True)], 1.0
            )
            world, _ = react(world, [d.Started("m1", 1, 0), d.Started("m2", 1)], 2.0)
            world, _ = react(
                world, [d.Heartbeat("m2", 1, 7, warm=True), d.Noticed("m2", 10_000.0)], 2.0
            )
            assert world.members == ("m1", "m2") and (world.save is not None) == (
                policy == "adaptive"
            )
            acts: tuple[d.Act, ...] = ()
            for second in range(3, 19):
                failed = [d.Ended("m1", 1, 1, 7)] if exits and second == 5 else []
                world, acts = react(
                    world,
                    [d.Heartbeat("m1", world.generation, 7, warm=True), *failed],
                    float(second),
                )
                if world.generation == 2:
                    break
            assert (world.generation, world.members, second) == (2, ("m1",), 2 + 15)
            assert d.Release("m2") in acts


@pytest.mark.parametrize("lack", [0, 1])
def test_a_look_at_many_machines_takes_no_longer_than_they_are_many(lack: int) -> None:
    """With a look for each that compares it with all others, a controller of a thousand hears
    nobody any more.

    Nor where another one is asked for, in the zone where it is best by what all these have seen.
    """

    def seconds(count: int) -> float:
        zones = (Pool("a", "y", "spot", 0.3), Pool("a", "z", "spot", 0.3))
        world = react(JobState(JobLimits(count, count), 0.0, pools=zones), d.Tick(), 0.0)[0]
        names = list(world.machines)
        world = react(world, [d.Launched(m, 1.0) for m in names], 1.0)[0]
        world = react(world, [d.Heartbeat(m, warm=True) for m in names], 5.0)[0]
        world = react(world, [d.Started(m, 1, 0) for m in names], 6.0)[0]
        assert len(world.members) == count and world.job is Job.RUNNING
        world = replace(world, terms=replace(world.terms, most=count + lack))
        took_s = []
        for look in range(5):
            began = time.process_time()
            _, acts = react(world, d.Tick(), 7.0 + look)
            learnt(world)
            took_s.append(time.process_time() - began)
            assert sum(isinstance(act, d.Request) for act in acts) == lack
        return min(took_s)

    # Eight times as many take eight times as long; what is looked for takes sixty times as long.
    assert any(seconds(2400) < 25 * seconds(300) for _ in range(3))
